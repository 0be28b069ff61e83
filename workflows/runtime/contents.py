"""What files hold: hashes that are read once, and the files of a model's folder that count."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from workflows.runtime.files import whole_file

SETTINGS = ("config.json", "generation_config.json", "*.safetensors.index.json")
TOKENIZER = (
    "tokenizer*", "special_tokens_map.json", "added_tokens.json", "vocab*", "merges.txt",
    "chat_template*", "additional_chat_templates/*",
)  # fmt: skip
WEIGHTS = ("*.safetensors",)
# A rule reads files of up to so many bytes before each run; larger ones count by their size.
LARGE = 2**24


class Contents:
    """Hashes of files; a known one holds while size and time of the last change stay.

    Args:
        file: Where :meth:`save` puts what is known, and where an earlier run put it; None: nowhere.
    """

    def __init__(self, file: Path | None = None) -> None:
        self.file = file
        self.known: dict[str, Any] = {}
        if file is not None and file.is_file():
            self.known = json.loads(file.read_text(encoding="utf-8"))

    def of(self, files: Iterable[Path]) -> list[list[str]]:
        """Name and sha256 of each file."""
        return [[file.name, self._sha256(file)] for file in files]

    def save(self) -> None:
        """Keep what is known for the next run."""
        if self.file is not None:
            with whole_file(self.file) as temporary:
                temporary.write_text(json.dumps(self.known, indent=1) + "\n", encoding="utf-8")

    def _sha256(self, file: Path) -> str:
        # Asked before the file is read: a change while it is read is seen by the next call.
        status, key = file.stat(), str(file.absolute())
        told = [status.st_size, status.st_mtime_ns]
        if self.known.get(key, {}).get("told") != told:
            self.known[key] = {"told": told, "sha256": _read(file)}
        return str(self.known[key]["sha256"])


def _read(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def digest(files: Sequence[str]) -> str:
    """What a rule holds of the files it waits for; folders and files still to be made count not.

    The time alone would not show a file that an older one took the place of.
    """
    found = hashlib.sha256()
    for name in files:
        found.update(f"{name}\0{_held(name)}\0".encode())
    return found.hexdigest()[:16]


@cache
def _held(name: str) -> str:
    file = Path(name)
    if not file.is_file():
        return ""
    size = file.stat().st_size
    return _read(file) if size <= LARGE else str(size)


def model_files(folder: Path, *patterns: str) -> list[Path]:
    """Files of a model's folder by ``SETTINGS``, ``TOKENIZER``, ``WEIGHTS``, in a fixed order."""
    found = {file for pattern in patterns for file in folder.glob(pattern) if file.is_file()}
    return sorted(found)
