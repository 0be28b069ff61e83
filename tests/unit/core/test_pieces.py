"""Compiled pieces: the numbers of the plain model, compiled once whatever the number of layers."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch._dynamo.utils import counters
from torch._inductor.utils import fresh_cache

from methods.core.model.backbone import attention, layers
from methods.core.model.families import split_matrices
from methods.core.model.pieces import ROTARY, compile_pieces
from methods.core.routing.decoding import StaticDecoder
from tests.contract.fits import IDS
from tests.toys.models import OTHERS
from tests.unit.core.routing.test_decoding import model_of

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="torch compiles with g++")

CASES = [("dense", "llama"), ("hero", "llama")]
LONG = [("skipgpt-rt", "llama"), *(("hero", kind) for kind in OTHERS)]


def decoded(model: Any) -> torch.Tensor:
    """Logits of eight steps (8, B, V)."""
    decoder = StaticDecoder(model, len(IDS), 40, graph=False)
    decoder.prefill(IDS)
    logits = []
    for _ in range(8):
        decoder.step()
        logits.append(decoder.logits.clone())
    return torch.stack(logits)


@pytest.fixture(autouse=True)
def _own_cache() -> Iterator[None]:
    """In torch's cache code of another vector width has the same key; its numbers are NaN."""
    with fresh_cache():
        yield


@pytest.mark.parametrize(
    ("row", "kind"), [*CASES, *(pytest.param(*case, marks=pytest.mark.long) for case in LONG)]
)
def test_the_numbers_are_those_of_the_plain_model(
    row: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "sliding_window" in OTHERS.get(kind, {}):
        monkeypatch.setitem(OTHERS[kind], "sliding_window", 64)
    model = split_matrices(model_of(row, kind))
    home = sys.modules[type(attention(layers(model)[0])).__module__]
    plain = getattr(home, ROTARY)
    # Put back after the test.
    monkeypatch.setattr(home, ROTARY, plain)
    expected = decoded(model)
    torch.compiler.reset()
    counters.clear()
    compile_pieces(model)
    torch.testing.assert_close(decoded(model), expected, rtol=1e-4, atol=1e-5)
    assert not counters["graph_break"]
    # A graph per piece, for the prompt and for a step; per layer they would be four times as many.
    assert 5 <= counters["stats"]["unique_graphs"] <= 12
    compiled = getattr(home, ROTARY)
    compile_pieces(model)
    assert getattr(home, ROTARY) is compiled is not plain
