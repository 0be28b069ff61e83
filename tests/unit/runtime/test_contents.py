"""Hashes of files: read once, told by what is held."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from methods.core import facts
from workflows.runtime import contents
from workflows.runtime.contents import (
    SETTINGS_FILES,
    TOKENIZER_FILES,
    WEIGHTS_FILES,
    Contents,
    digest,
    model_files,
)


def test_a_known_hash_holds_while_size_and_time_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, known = tmp_path / "text.txt", tmp_path / "known.json"
    file.write_text("one")
    first = Contents(known)
    told = first.of([file])
    first.save()
    with monkeypatch.context() as patch:
        patch.setattr(facts, "sha256", None)
        assert Contents(known).of([file]) == told
    before = file.stat()
    file.write_text("two")
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns - 1))
    assert Contents(known).of([file]) != told


def test_a_rule_sees_an_older_file_in_the_place_of_a_newer_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "text.txt"

    def told() -> str:
        contents._content.cache_clear()
        return digest([str(file), str(tmp_path), str(tmp_path / "to be made")])

    file.write_text("one")
    first = told()
    os.utime(file, (0, 0))
    assert told() == first
    file.write_text("two")
    os.utime(file, (0, 0))
    assert told() != first
    monkeypatch.setattr(contents, "LARGE", 2)
    large = told()
    file.write_text("six")
    os.utime(file, (1, 1))
    assert told() != large


def test_of_a_models_folder_counts_what_is_read(tmp_path: Path) -> None:
    read = [
        "additional_chat_templates/tool.jinja", "chat_template.jinja", "config.json", "merges.txt",
        "model.safetensors", "tokenizer.json", "vocab.json",
    ]  # fmt: skip
    for name in [*read, "README.md", "record.json", "pytorch_model.bin"]:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    found = model_files(tmp_path, *SETTINGS_FILES, *TOKENIZER_FILES, *WEIGHTS_FILES)
    assert [str(file.relative_to(tmp_path)) for file in found] == read
