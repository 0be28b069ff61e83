"""Texts without a token, beside lm-eval's own class; whole documents are in test_loading.py."""

from __future__ import annotations

from typing import Any

import pytest
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM

from tests.toys.models import make_model
from tests.toys.sharing import WINDOW, make_lm
from tests.toys.texts import make_tokenizer


def asked(lm: Any, kind: str, *arguments: tuple[Any, ...]) -> Any:
    requests = [Instance(kind, {}, given, 0) for given in arguments]
    return getattr(lm, kind)(requests, disable_tqdm=True)


def stock() -> HFLM:
    """lm-eval's own class."""
    plain = make_model()
    return HFLM(pretrained=plain, tokenizer=make_tokenizer(), batch_size=2, max_length=WINDOW)


WRITE = {"until": ["w7"], "max_gen_toks": 4}


@pytest.mark.parametrize("share", [False, True])
def test_empty_texts_are_scored_as_by_the_stock_class(share: bool) -> None:
    lm = make_lm(make_model(), 2, share)
    answers = ("", "w1 w2"), ("w3", " w4"), ("", "<eos> w1"), ("", "<bos> w1")
    found, expected = (asked(one, "loglikelihood", *answers) for one in (lm, stock()))
    assert [log for log, _ in found] == pytest.approx([log for log, _ in expected], abs=1e-4)
    assert [best for _, best in found] == [best for _, best in expected]
    for texts in ((("",),), (("w1 w2",), ("",), (" ",), ("w3 w4 w5",))):
        found, expected = (asked(one, "loglikelihood_rolling", *texts) for one in (lm, stock()))
        assert found == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("share", [False, True])
@pytest.mark.parametrize(
    ("kind", "arguments", "said"),
    [
        ("loglikelihood", ("w1", ""), "a context of 1 and an answer of 0 tokens: each has one at"),
        ("loglikelihood", ("w1", " "), "a context of 1 and an answer of 0 tokens"),
        ("loglikelihood", ("", ""), "a context of 0 and an answer of 0 tokens"),
        ("loglikelihood", (" ", " w1"), "a context of 0 and an answer of 1 tokens"),
        ("loglikelihood", ("", "<bos>"), "a context of 1 and an answer of 0 tokens"),
        ("generate_until", ("", WRITE), "a prompt has no token, and a model writes from one"),
        ("generate_until", (" ", WRITE), "a prompt has no token, and a model writes from one"),
    ],
)
def test_what_the_stock_class_cannot_score_is_refused_in_words(
    kind: str, arguments: tuple[Any, ...], said: str, share: bool
) -> None:
    with pytest.raises((AssertionError, IndexError, RuntimeError)):
        asked(stock(), kind, arguments)
    lm = make_lm(make_model(), 2, share)
    beside = ("w1 w2", WRITE if kind == "generate_until" else " w3")
    with pytest.raises(ValueError, match=said):
        asked(lm, kind, beside, arguments)
