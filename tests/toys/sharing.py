"""Toys as lm-eval calls them, with and without shared contexts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from lm_eval.models.huggingface import HFLM

from methods.core.model.backbone import count, layers
from methods.core.model.ledger import Ledger
from methods.core.routing.routed import route
from methods.core.routing.router import ffn_units
from methods.random_skip import RandomRouter
from tests.toys.models import make_model
from tests.toys.texts import make_tokenizer
from workflows.evaluation.harness import CountingLM

WINDOW = 32
Request = tuple[tuple[str, str], list[int], list[int]]


def random_skip(kind: str = "llama", **changes: Any) -> Any:
    model = make_model(kind, **changes)
    return route(model, RandomRouter(ffn_units(model, [1, 2, 3]), seed=9, skips=1.3))


def make_lm(model: Any, batch_size: int, share: bool, **options: Any) -> CountingLM:
    ledger = Ledger.of(model, count(model), len(layers(model)))
    tokenizer = make_tokenizer()
    options = {"max_length": WINDOW} | options
    return CountingLM(model, tokenizer, ledger, batch_size, share_prefix=share, **options)


@torch.no_grad()
def executed(model: Any, ids: Sequence[int]) -> np.ndarray:
    """Decisions (U, T) of one sequence on its own."""
    return model.model(torch.tensor([ids]), use_cache=False).executed[0].numpy()


def ask(lm: HFLM, requests: list[Request]) -> list[tuple[float, bool]]:
    return lm._loglikelihood_tokens(requests, disable_tqdm=True)


def same_answers(answers: list[tuple[float, bool]], expected: list[tuple[float, bool]]) -> None:
    for (log, written), (other, stock) in zip(answers, expected, strict=True):
        assert log == pytest.approx(other, abs=1e-4)
        assert written == stock
