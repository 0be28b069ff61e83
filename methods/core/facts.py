"""Facts of a file: size, times of the last change, sha256. No torch here."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from methods.core.jsonfile import read_json

# Written by the fetch step into a folder that it downloaded.
FETCHED = "fetched.json"
SHA256 = re.compile(r"[0-9a-f]{64}")


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


def read_fetched(path: Path) -> dict[str, Any]:
    """What the fetch step wrote about a folder: repository, commit, facts of its files.

    Empty for a folder that it did not download.

    Raises:
        ValueError: It is not JSON, or has other values than that step writes.
    """
    file = path / FETCHED
    if not file.is_file():
        return {}
    fetched = read_json(file)
    if not isinstance(fetched.get("commit"), str | None):
        raise ValueError(f"{file}: commit must be a text")
    facts_by_name = fetched.get("files", {})
    if not isinstance(facts_by_name, dict):
        raise ValueError(f"{file}: files must be an object, with facts by the name of a file")
    for name, facts in facts_by_name.items():
        digest = facts.get("sha256") if isinstance(facts, dict) else None
        if not isinstance(digest, str) or not SHA256.fullmatch(digest):
            raise ValueError(f"{file}: files has no sha256 of 64 hex digits for '{name}'")
    return fetched
