"""Facts of a file: size, times of the last change, sha256. No torch here."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

# Written by the fetch step into a folder that it downloaded.
FETCHED = "fetched.json"


def file_facts(file: Path, earlier: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """``size`` in bytes, ``mtime_ns``, ``ctime_ns`` and ``sha256`` of a file.

    Args:
        file: Read as a whole, unless its earlier facts still hold.
        earlier: Facts of an earlier call; they hold if size and both times are the same. Whoever
            packs a folder chooses the first time, but not the second, the system's own.
    """
    # Asked before the file is read: if it changes during that, the next call sees another time.
    status = file.stat()
    stamp = {
        "size": status.st_size,
        "mtime_ns": status.st_mtime_ns,
        "ctime_ns": status.st_ctime_ns,
    }
    if earlier and {key: earlier.get(key) for key in stamp} == stamp:
        return dict(earlier)
    return stamp | {"sha256": sha256(file)}


def sha256(file: Path) -> str:
    """Hash of a file's content, in hex digits."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
