"""The tokenizer of a GGUF file that the test writes, as later steps read it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from methods.core.model.backbone import load_backbone
from tests.toys.gguf import byte_level, pieces, write
from tests.toys.models import make_model
from tests.toys.texts import SPECIAL
from workflows.runtime.gguf_model import convert


def read(tmp_path: Path, size: int, change: Any, kind: str = "llama") -> Any:
    """The tokenizer that is read from the folder of a file."""
    model = make_model(kind, vocab_size=size)
    (tmp_path / "plain").mkdir()
    convert(write(tmp_path / "toy.gguf", model, kind, change=change), tmp_path / "plain")
    return load_backbone(tmp_path / "plain").tokenizer


def tokens(tokenizer: Any, text: str) -> list[str]:
    found: list[str] = tokenizer.convert_ids_to_tokens(tokenizer(text).input_ids)
    return found


@pytest.mark.parametrize(
    ("pre", "expected"),
    [
        ("smollm", "ĊĊ 1 2 3 4 ."),
        ("gpt-2", "Ċ Ċ 123 4 ."),
        ("olmo", "Ċ Ċ 123 4 ."),
        ("llama-bpe", "<bos> ĊĊ 123 4 ."),
        ("tekken", "<bos> ĊĊ 1 2 3 4 ."),
        ("qwen2", "ĊĊ 1 2 3 4 ."),
    ],
)
def test_texts_are_split_as_the_file_says(pre: str, expected: str, tmp_path: Path) -> None:
    assert tokens(read(tmp_path, *byte_level(pre)), "\n\n1234.") == expected.split()


@pytest.mark.parametrize("pre", ["default", "no-such-name", None])
def test_an_unknown_split_is_refused(pre: str | None, tmp_path: Path) -> None:
    said = (
        f"toy.gguf has tokenizer.ggml.pre '{pre}'" if pre else "toy.gguf lacks tokenizer.ggml.pre"
    )
    with pytest.raises(ValueError, match=rf"{said} \(taken: dbrx, .*, olmo, .*, smollm, "):
        read(tmp_path, *byte_level(pre))


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        ({"model": "bert"}, r"holds a tokenizer 'bert' \(taken: gpt2, llama\)"),
        ({"model": None}, r"holds no tokenizer \(taken: gpt2, llama\)"),
    ],
)
def test_an_unknown_tokenizer_is_refused(
    keys: dict[str, Any], sentence: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=rf"toy\.gguf {sentence}"):
        read(tmp_path, *byte_level(**keys))


def test_a_word_that_is_a_token_needs_no_merges(tmp_path: Path) -> None:
    size, change = byte_level("llama-bpe", words=["xyz"], add_bos_token=False)
    assert tokens(read(tmp_path, size, change), "xyz") == ["xyz"]
    (tmp_path / "other").mkdir()
    size, change = byte_level("qwen2", words=["xyz"])
    assert tokens(read(tmp_path / "other", size, change), "xyz") == ["x", "y", "z"]


@pytest.mark.parametrize("kind", [3, 4])
@pytest.mark.parametrize("token", ["<|user|>", "<my token>", "<｜User｜>"])
def test_tokens_that_are_found_whole_stay_one(kind: int, token: str, tmp_path: Path) -> None:
    size, change = byte_level(special=[*SPECIAL, token], kinds=[3, 3, 3, 3, kind])
    tokenizer = read(tmp_path, size, change)
    assert tokenizer(f"a{token}b").input_ids[1] == size - 1
    assert tokenizer.decode([size - 1]) == token
    assert (token in tokenizer.decode([size - 1], skip_special_tokens=True)) == (kind == 4)


def test_special_tokens_of_other_letters_have_their_own_ids(tmp_path: Path) -> None:
    names = ["<unk>", "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<pad>"]
    size, change = byte_level("deepseek-r1-qwen", special=names, add_bos_token=True)
    assert read(tmp_path, size, change)("a").input_ids[0] == size - 3


def test_a_token_that_is_cut_is_refused(tmp_path: Path) -> None:
    size, change = byte_level(special=[*SPECIAL, "<eos>"], kinds=[3, 3, 3, 3, 3])
    with pytest.raises(ValueError, match=r"toy\.gguf marks '<eos>' as one token \("):
        read(tmp_path, size, change)


def test_pieces_begin_with_a_space_unless_told_otherwise(tmp_path: Path) -> None:
    assert tokens(read(tmp_path, *pieces()), "a b") == ["<s>", "▁a", "▁", "b"]
    (tmp_path / "other").mkdir()
    tokenizer = read(tmp_path / "other", *pieces(add_space_prefix=False))
    assert tokens(tokenizer, "a b") == ["<s>", "a", "▁", "b"]
    assert tokenizer.decode(tokenizer(" a").input_ids[1:]) == " a"


def test_a_tokenizer_that_is_read_as_another_one_is_refused(tmp_path: Path) -> None:
    assert tokens(read(tmp_path, *byte_level("llama-bpe"), "qwen3"), "123") == ["<bos>", "123"]
    (tmp_path / "other").mkdir()
    with pytest.raises(ValueError, match="'llama-bpe', which transformers reads as another one"):
        read(tmp_path / "other", *byte_level("llama-bpe"), "qwen2")
