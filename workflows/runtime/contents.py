"""Hashes of files' contents, and which files of a model's folder count."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from methods.core.facts import file_facts, sha256
from workflows.runtime.files import write_json

SETTINGS_FILES = ("config.json", "generation_config.json", "*.safetensors.index.json")
TOKENIZER_FILES = (
    "tokenizer*", "special_tokens_map.json", "added_tokens.json", "vocab*", "merges.txt",
    "chat_template*", "additional_chat_templates/*",
)  # fmt: skip
WEIGHTS_FILES = ("*.safetensors",)
# Bytes. Before each run a rule hashes its input files up to this size; of larger ones it takes size
# and time.
LARGE = 2**30


class Contents:
    """Hashes of files; a file is read again only if its size or the time of its change differs.

    Args:
        file: JSON file for the hashes: read here, written by :meth:`save`. None: no file.
    """

    def __init__(self, file: Path | None = None) -> None:
        self.file = file
        self.facts: dict[str, Any] = {}
        if file is not None and file.is_file():
            self.facts = json.loads(file.read_text(encoding="utf-8"))

    def of(self, files: Iterable[Path]) -> list[list[str]]:
        """Name and sha256 of each file."""
        return [[file.name, self._sha256(file)] for file in files]

    def save(self) -> None:
        """Write all hashes for the next run."""
        if self.file is not None:
            write_json(self.file, self.facts)

    def _sha256(self, file: Path) -> str:
        key = str(file.absolute())
        self.facts[key] = file_facts(file, self.facts.get(key))
        return str(self.facts[key]["sha256"])


def digest(files: Sequence[str]) -> str:
    """One hash over the input files of a rule; folders and missing files count as empty.

    Snakemake compares times, which do not change when an older file replaces a newer one.
    """
    total = hashlib.sha256()
    for name in files:
        total.update(f"{name}\0{_content(name)}\0".encode())
    return total.hexdigest()[:16]


@cache
def _content(name: str) -> str:
    """Hash of a file, size and time of a large one, nothing if there is no file."""
    file = Path(name)
    if not file.is_file():
        return ""
    facts = file.stat()
    large = facts.st_size > LARGE
    return f"{facts.st_size} {facts.st_mtime_ns}" if large else sha256(file)


def model_files(folder: Path, *patterns: str) -> list[Path]:
    """Sorted files of a model's folder that match, such as by ``WEIGHTS_FILES``."""
    return sorted({file for pattern in patterns for file in folder.glob(pattern) if file.is_file()})
