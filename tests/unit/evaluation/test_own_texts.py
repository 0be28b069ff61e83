"""Texts that a toy writes itself: what it is fed, how they repeat, what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from methods.core.chat import conversation
from methods.core.data import Data
from tests.steps import Refuse, call
from tests.toys.models import make_backbone, make_model
from tests.toys.texts import BOS, EOS, VOCABULARY, make_tokenizer
from workflows.evaluation import own_texts
from workflows.evaluation.own_texts import Writer

# Turns end with <unk>, which is no end token of the toy.
CHAT = (
    "{{ bos_token }}{% for m in messages %} {{ 'w1' if m['role'] == 'user' else 'w2' }} "
    "{{ m['content'] }} <unk>{% endfor %}{% if add_generation_prompt %} w2{% endif %}"
)


def writer(chat: bool = True, seed: int = 0, length: int = 24, purpose: str = "x") -> Writer:
    tokenizer = make_tokenizer()
    tokenizer.chat_template = CHAT if chat else None
    return Writer(make_model(), tokenizer, length, seed, purpose)


@pytest.mark.parametrize("chat", [True, False])
def test_texts_repeat_and_depend_on_seed_and_purpose(chat: bool) -> None:
    first = list(writer(chat).texts(5))
    assert len(first) == 5
    torch.rand(1)
    assert list(writer(chat).texts(5)) == first
    assert list(writer(chat, seed=1).texts(5)) != first
    assert list(writer(chat, purpose="y").texts(5)) != first
    words = [json.dumps(text) for text in first]
    assert len(set(words)) == 5


def test_a_draw_leaves_the_generator_of_torch_alone() -> None:
    before = torch.get_rng_state()
    list(writer().texts(2))
    assert torch.equal(torch.get_rng_state(), before)


def test_a_chat_model_is_fed_the_opening_of_a_user_turn_then_its_own_question(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fed = []
    monkeypatch.setattr(own_texts, "BATCH", 1)
    asked = writer()
    generate = asked.model.generate

    def note(ids: Any, **options: Any) -> Any:
        fed.append((ids, options))
        return generate(ids, **options)

    monkeypatch.setattr(asked.model, "generate", note)
    (document,) = asked.texts(1)
    (opening, first), (prompt, second) = fed
    assert opening.tolist() == [[BOS, 1]]
    question = document["messages"][0]["content"]
    ids = asked.tokenizer(question)["input_ids"]
    assert prompt.tolist() == [[BOS, 1, *ids, 60, 2]]
    # The template has four tokens around the question, and one after the answer.
    assert (first["max_new_tokens"], second["max_new_tokens"]) == (9, 24 - prompt.shape[1] - 1)
    assert [turn["role"] for turn in document["messages"]] == ["user", "assistant"]
    assert {EOS, 60} == asked.ends


def test_words_after_an_end_token_are_not_taken() -> None:
    assert writer()._before_end([3, 4, 60, 5]) == [3, 4]
    assert writer(chat=False)._before_end([3, EOS, 5]) == [3]


@pytest.mark.parametrize("chat", [True, False])
def test_fewer_rows_are_the_first_of_more(chat: bool) -> None:
    more = list(writer(chat).texts(20))
    for rows in (3, 16, 18):
        assert list(writer(chat).texts(rows)) == more[:rows]


@pytest.mark.parametrize("chat", [True, False])
def test_no_document_is_longer_than_asked(chat: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each word of the toy becomes two tokens when it is read again."""
    model = writer(chat, length=16)
    read = model._text
    monkeypatch.setattr(model, "_text", lambda ids: " ".join(f"{w} w9" for w in read(ids).split()))
    for text in model.texts(20):
        whole = conversation(model.tokenizer, text["messages"]) if chat else text["text"]
        assert 8 <= len(model.tokenizer(whole, add_special_tokens=not chat)["input_ids"]) <= 16


def test_a_template_that_leaves_no_room_is_refused() -> None:
    tokenizer = make_tokenizer()
    tokenizer.chat_template = CHAT.replace("{{ bos_token }}", "{{ bos_token }}" + " w3" * 30)
    with pytest.raises(ValueError, match=r"takes 35 tokens: a text of at most 42 \(max_length, or"):
        Writer(make_model(), tokenizer, 42, 0, "x")
    assert list(Writer(make_model(), tokenizer, 43, 0, "x").texts(1))


def test_draws_follow_the_whole_distribution(monkeypatch: pytest.MonkeyPatch) -> None:
    """First words, drawn many times, against the probabilities of the model itself."""
    monkeypatch.setattr(own_texts, "BATCH", 4000)
    model = writer(chat=False, length=2)
    words = [text["text"] for text in model.texts(3900)]
    with torch.no_grad():
        shares = model.model(torch.tensor([[BOS]])).logits[0, -1].softmax(0)
    counts = torch.zeros(VOCABULARY)
    for word in words:
        counts[model.tokenizer(word)["input_ids"][0]] += 1
    shares = shares[:60] / shares[:60].sum()
    assert (counts[:60] / counts[:60].sum() - shares).abs().max() < 0.03
    assert (counts[:60] > 0).sum() > 50  # more than the library's fifty most likely


def test_without_template_and_begin_token_no_text_is_written() -> None:
    tokenizer = make_tokenizer()
    tokenizer.bos_token = None
    with pytest.raises(ValueError, match="this tokenizer has neither"):
        Writer(make_model(), tokenizer, 24, 0, "x")


def test_a_template_without_the_users_words_is_refused() -> None:
    tokenizer = make_tokenizer()
    tokenizer.chat_template = "w1"
    with pytest.raises(ValueError, match="does not show the words of a user"):
        Writer(make_model(), tokenizer, 24, 0, "x")


def test_a_model_that_writes_nothing_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    silent = writer()
    monkeypatch.setattr(silent, "_text", lambda tokens: "")
    with pytest.raises(ValueError, match="ends its texts before their first word"):
        list(silent.texts(2))


def test_the_step_writes_documents_that_a_fit_reads(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    backbone = make_backbone(tmp_path / "toy")
    fixed = ["--model", backbone, "--max-length", 16, "--device", "cpu"]
    call("texts", *fixed, "--rows", 3, "--out", tmp_path / "own.jsonl")
    data = Data(make_tokenizer(), VOCABULARY, 64, calibration_file=tmp_path / "own.jsonl")
    (batch,) = data.calibration()
    assert len(batch.ids) == 3
    assert batch.valid.sum(1).max() <= 16
    refuse = Refuse(capfd, tmp_path)
    assert "--rows is 0" in refuse("texts", *fixed, "--rows", 0, "--out", tmp_path / "no.jsonl")
