"""The controls of HeRo that see no state: one gate per block, and bypass by a hash."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from methods.core.data import Data, Document
from methods.core.routing.hashing import uniform_hash
from methods.core.routing.routed import route
from methods.core.routing.router import Context, Tokens, Unit
from methods.hero import controls
from methods.hero.controls import (
    RandomGates,
    StaticGates,
    count_rates,
    lender_rates,
    token_table,
)
from methods.hero.heads import Sizes
from tests.toys.models import make_model
from tests.toys.routed import decide
from tests.toys.training import ByNumber

SIZES = Sizes(hidden=24, head=16, memory=64, adapter=5)


@pytest.mark.parametrize(("logit", "runs"), [(2.5, True), (1.5, False), (-1.5, False)])
def test_static_gates_are_one_number_per_block(logit: float, runs: bool) -> None:
    units = [Unit(n, "ffn", 10) for n in range(2)]
    router = StaticGates(units, SIZES, 2.0, 1, None)
    assert router.logits.tolist() == [2.0, 2.0]
    nn.init.constant_(router.logits[1], logit)
    hbar = torch.randn(2, 2, 3, SIZES.hidden, generator=torch.Generator().manual_seed(1))
    tokens = Tokens(None, torch.zeros(2, 3), torch.ones(2, 3))
    state = router.start(tokens, hbar[0], Context())
    decision, _ = decide(router, 1, hbar[0], hbar[1], state)
    gate = 1 / (1 + math.exp(-logit))
    torch.testing.assert_close(decision.soft, torch.full((2, 3), gate))
    assert decision.execute.unique().tolist() == [runs]
    torch.testing.assert_close(decision.scale, torch.full((2, 3), gate if runs else 1 - gate))
    decision.scale.sum().backward()
    slope = 6 * gate * (1 - gate) * (1 if runs else -1)
    assert router.logits.grad.tolist() == pytest.approx([0.0, slope], rel=1e-5)


def test_random_bypass_follows_the_hash_of_layer_position_and_token() -> None:
    units = [Unit(n, "ffn", 10) for n in (4, 7)]
    router = RandomGates(units, SIZES, torch.tensor([[0.2], [0.7]]), "unit", 9, None)
    ids = torch.arange(4000).reshape(2, 2000) % 61
    positions = torch.arange(2000).expand(2, -1)
    hidden = torch.zeros(2, 2000, 1)
    state = router.start(Tokens(ids, positions, ids >= 0), hidden, Context())
    for index, (layer, rate) in enumerate(((4, 0.2), (7, 0.7))):
        decision, _ = router.gate(index, hidden, hidden, state, Context())
        drawn = uniform_hash(9, [layer], positions, ids)[:, 0]
        assert torch.equal(decision.execute, drawn >= rate)
        assert float((~decision.execute).double().mean()) == pytest.approx(rate, abs=0.03)
        assert decision.scale == "none"
    with pytest.raises(ValueError, match="input_ids"):
        router.start(Tokens(None, positions, ids >= 0), hidden, Context())


def test_the_threshold_shifts_every_rate() -> None:
    router = RandomGates([Unit(4, "ffn", 10)], SIZES, torch.tensor([[0.2]]), "unit", 9, None)
    ids = torch.arange(20_000)[None] % 61
    hidden = torch.zeros(1, 20_000, 1)
    tokens = Tokens(ids, torch.arange(20_000)[None], ids >= 0)
    router.threshold = 0.8  # odds of 4: 0.25 becomes 1
    decision, _ = router.gate(0, hidden, hidden, router.start(tokens, hidden, Context()), Context())
    assert float((~decision.execute).double().mean()) == pytest.approx(0.5, abs=0.02)


@pytest.mark.parametrize("key", ["kind", "token"])
def test_a_rate_is_looked_up_by_kind_or_token(key: str) -> None:
    units = [Unit(n, "ffn", 10) for n in (4, 7)]
    ids = torch.arange(6000)[None] % 3
    tokens = Tokens(ids, torch.arange(6000)[None], ids >= 0)
    rates = torch.tensor([[0.1, 0.5, 0.9], [0.6, 0.3, 0.2]])[:, : 2 if key == "kind" else 3]
    router = RandomGates(units, SIZES, rates, key, 3, None)
    answers = (ids == 1) * 2.5
    hidden, at = torch.zeros(1, 6000, 1), Context(answers=answers)
    state = router.start(tokens, hidden, at)
    for index in range(2):
        decision, _ = router.gate(index, hidden, hidden, state, at)
        skipped = (~decision.execute).double()
        for token in range(3):
            place = token if key == "token" else int(token == 1)
            found = float(skipped[ids == token].mean())
            assert found == pytest.approx(float(rates[index, place]), abs=0.04)
    assert router.reads_kinds == (key == "kind")
    if key == "kind":
        with pytest.raises(ValueError, match="needs to know which tokens are answer tokens"):
            router.start(tokens, hidden, Context())


@torch.no_grad()
def test_measured_rates_by_hand() -> None:
    model = make_model()
    route(model, ByNumber(model))
    texts = [
        Document([1, 2, 4, 6, 50], 3, "a", [(2, 4)]),
        Document([4, 1, 50], 1, "b", [(0, 2)]),
    ]
    found = count_rates(model, texts)
    # Unit 0 skips odd ids, unit 1 those below 4. Prompts hold 1 and 2; 4, 6, 4 and 1 decide; what
    # closes a text is of no kind.
    assert found["kind_rates"] == [[0.5, 0.8333], [0.3, 0.3]]
    rows = {int(row[0]): row[1:] for row in found["token_rates"]}
    assert set(rows) == {-1, 1, 2, 4, 6}
    assert rows[1] == pytest.approx([2.5 / 3, 2.5 / 3], abs=1e-4)
    assert rows[4] == pytest.approx([0.5 / 3, 0.5 / 3], abs=1e-4)
    assert rows[-1] == pytest.approx([2.5 / 7, 3.5 / 7], abs=1e-4)
    with torch.device("meta"):  # as where weights are still to be read
        table = token_table(found["token_rates"], 64)
    assert table.shape == (2, 64)
    assert table[:, 4].tolist() == rows[4] and table[:, 50].tolist() == rows[-1]
    with pytest.raises(ValueError, match="row -1 and ids below 5"):
        token_table(found["token_rates"], 5)


@pytest.mark.parametrize("key", ["kind", "token"])
def test_a_lender_of_other_units_is_refused(key: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Attention and FFN of the same layers are twice as many."""
    layers = [2, 3]
    units = [Unit(n, kind, 10) for n in layers for kind in ("attention", "ffn")]
    lender = SimpleNamespace(model=SimpleNamespace(router=SimpleNamespace(units=units)))
    monkeypatch.setattr(controls, "load_fitted", lambda folder, device: lender)
    monkeypatch.setattr(controls, "router_of", lambda model: model.router)
    card = SimpleNamespace(structure={"layers": layers})
    monkeypatch.setattr(controls, "read_card", lambda folder: card)
    with pytest.raises(ValueError, match="the lender lent has 4 units, the control 2 FFNs"):
        lender_rates(Path("lent"), key, Data(None, 64), "cpu", layers)
