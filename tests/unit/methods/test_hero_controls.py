"""The controls of HeRo that see no state: one gate per block, and bypass by a hash."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from methods.core.routing.hashing import uniform_hash
from methods.core.routing.router import Context, Tokens, Unit
from methods.hero.controls import RandomBypass, StaticGates
from methods.hero.router import Sizes

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
    decision, _ = router.gate(1, hbar[0], hbar[1], state, Context())
    gate = 1 / (1 + math.exp(-logit))
    torch.testing.assert_close(decision.soft, torch.full((2, 3), gate))
    assert decision.execute.unique().tolist() == [runs]
    torch.testing.assert_close(decision.scale, torch.full((2, 3), gate if runs else 1 - gate))
    decision.scale.sum().backward()
    slope = 6 * gate * (1 - gate) * (1 if runs else -1)
    assert router.logits.grad.tolist() == pytest.approx([0.0, slope], rel=1e-5)


def test_random_bypass_follows_the_hash_of_layer_position_and_token() -> None:
    units = [Unit(n, "ffn", 10) for n in (4, 7)]
    router = RandomBypass(units, SIZES, [0.2, 0.7], 9, None)
    ids = torch.arange(4000).reshape(2, 2000) % 61
    positions = torch.arange(2000).expand(2, -1)
    hidden = torch.zeros(2, 2000, 1)
    state = router.start(Tokens(ids, positions, ids >= 0), hidden, Context())
    for index, (layer, rate) in enumerate(((4, 0.2), (7, 0.7))):
        decision, _ = router.gate(index, hidden, hidden, state, Context())
        assert torch.equal(decision.execute, uniform_hash(9, layer, positions, ids) >= rate)
        assert float((~decision.execute).double().mean()) == pytest.approx(rate, abs=0.03)
        assert decision.scale is None
    with pytest.raises(ValueError, match="input_ids"):
        router.start(Tokens(None, positions, ids >= 0), hidden, Context())
