"""Folders of tokens against the .jsonl they were made from."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from methods.core.data import Data
from methods.core.tokens import Document, TokenFile, write_tokens
from tests import steps
from tests.toys.texts import make_tokenizer, write_jsonl

ROWS: list[dict[str, Any]] = [
    {"text": "w1 w2 w3"},
    {"prompt": "w4 w5 w6", "completion": "w7 w8", "task": "second"},
    {"messages": [
        {"role": "user", "content": "w9"}, {"role": "assistant", "content": "w10 w11"},
        {"role": "user", "content": "w12"}, {"role": "assistant", "content": "w13"},
    ]},
    {"fed": "w14 w15 w16 w17", "prompt": "w14 w15", "task": "first"},
    {"text": " ".join(f"w{n}" for n in range(30)), "task": "second"},
]  # fmt: skip


def data(file: Path, length: int = 16, **changes: Any) -> Data:
    given = {"tokenizer": make_tokenizer(), "vocab_size": 64, "max_length": length}
    return Data(training_file=file, **(given | changes))


@pytest.fixture
def made(llama: Path, tmp_path: Path) -> tuple[Path, Path]:
    """Rows, and the folder of their tokens."""
    rows, folder = write_jsonl(tmp_path / "rows.jsonl", ROWS), tmp_path / "rows.tokens"
    where = ["--backbone", llama, "--data", rows, "--out", folder]
    steps.call("tokens", *where, "--max-length", 16)
    return rows, folder


def test_documents_are_those_of_the_rows(made: tuple[Path, Path]) -> None:
    rows, folder = (data(file).training() for file in made)
    assert isinstance(folder, TokenFile)
    assert list(folder) == rows
    assert (len(folder), folder[-1], folder[1:4:2]) == (5, rows[4], [rows[1], rows[3]])
    assert {type(document.ids) for document in folder} == {type(rows[0].ids)}
    assert [len(document.answers) for document in folder] == [1, 1, 2, 1, 1]
    with pytest.raises(IndexError):
        folder[5]


def test_what_tokens_of_a_probe_stand_for_is_not_lost(tmp_path: Path) -> None:
    texts = [Document([3, 4], 1), Document([3, 4], 1, counts=(0.5, 2.0))]
    with pytest.raises(ValueError, match="document 2 has 'counts', which a folder of tokens does"):
        write_tokens(texts, tmp_path, "any")


def test_a_fit_on_the_folder_is_that_on_the_rows(
    made: tuple[Path, Path], llama: Path, tmp_path: Path
) -> None:
    given = ["--params", '{"updates": 2, "batch_tokens": 40}', "--max-length", 16]
    fits = [
        steps.fit("lora", llama, tmp_path / name, "--train", file, *given)
        for name, file in zip(("rows", "folder"), made, strict=True)
    ]
    for file in ("decisions.json", "trained.safetensors"):
        assert (fits[0] / file).read_bytes() == (fits[1] / file).read_bytes()


def test_tokens_of_another_making_are_refused(made: tuple[Path, Path]) -> None:
    other = make_tokenizer()
    other.chat_template = "{{ messages }}"
    for changed in (data(made[1], 17), data(made[1], tokenizer=make_tokenizer(2)),
                    data(made[1], tokenizer=other)):  # fmt: skip
        with pytest.raises(ValueError, match="another tokenizer or maximum length"):
            changed.training()


@pytest.mark.filterwarnings("ignore:.*cut to the backbone's window")
def test_the_window_cuts_rows_and_the_folder_alike(llama: Path, tmp_path: Path) -> None:
    text = " ".join(["w1"] * 300)
    rows, folder = write_jsonl(tmp_path / "rows.jsonl", [{"text": text}]), tmp_path / "a.tokens"
    given = ["--params", '{"updates": 1, "batch_tokens": 40}']
    with pytest.warns(UserWarning, match="cut to the backbone's window of 256 tokens, not to 2048"):
        steps.call("tokens", "--backbone", llama, "--data", rows, "--out", folder)
    fits = [
        steps.fit("lora", llama, tmp_path / name, *given, "--train", file)
        for name, file in (("rows", rows), ("folder", folder))
    ]
    (document,) = data(folder, 2048, window=256).training()
    assert len(document.ids) == 256
    made = [(fit / "trained.safetensors").read_bytes() for fit in fits]
    assert made[0] == made[1]


@pytest.mark.parametrize(
    "harm",
    [
        lambda folder: (folder / "known.npy").unlink(),
        lambda folder: (folder / "ids.bin").write_bytes(b"1234"),
        lambda folder: (folder / "about.json").write_text("{"),
        lambda folder: (folder / "about.json").write_text("{}"),
        lambda folder: (folder / "starts.npy").write_bytes(b""),
        lambda folder: np.save(folder / "starts.npy", np.zeros(0, dtype=np.int64)),
        lambda folder: np.save(folder / "known.npy", np.load(folder / "known.npy")[:1]),
        lambda folder: np.save(folder / "runs.npy", np.load(folder / "runs.npy")[:1]),
        shutil.rmtree,
    ],
)
def test_a_folder_that_is_not_whole_is_refused(
    harm: Callable[[Path], object], made: tuple[Path, Path]
) -> None:
    harm(made[1])
    with pytest.raises(ValueError, match="rows.tokens is no whole folder of tokens"):
        data(made[1]).training()


def test_wrong_names_and_empty_files_leave_nothing(
    llama: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    empty = write_jsonl(tmp_path / "rows.jsonl", [])
    refuse = steps.Refuse(capfd, tmp_path)
    where = ["--backbone", llama, "--data", empty, "--out"]
    assert "must end in .tokens" in refuse("tokens", *where, tmp_path / "rows.npy")
    assert "holds no document" in refuse("tokens", *where, tmp_path / "rows.tokens")
    write_jsonl(empty, [{"fed": ""}])
    said = refuse("tokens", *where, tmp_path / "rows.tokens")
    assert said.endswith("holds no document of two tokens or more")
