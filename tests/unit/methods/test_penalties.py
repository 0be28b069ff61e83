"""Penalties by hand: values, signs, what counts."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from methods import load_method
from methods.core.routing.steering import Gates, Target, aim_of, mean_deviation
from methods.d_llm import depth_deviation, ramp

# Two micro-batch rows of three tokens, the last ones pads or last tokens of a document.
GATES = torch.tensor([[[1.0, 0, 0], [1, 1, 0]], [[0, 1, 0], [0, 0, 0]]])
COUNTED = torch.tensor([[True, True, False], [True, False, False]])


@pytest.mark.parametrize(
    ("weights", "skips"),
    # Skipped share of the three counted tokens: none; unit 1; both.
    [([0.5, 0.5], [0.0, 0.5, 1.0]), ([0.1, 0.4], [0.0, 0.1, 0.5])],
    ids=["module", "params"],
)
@pytest.mark.parametrize("target", [0.1, 0.25, 0.9])
def test_skipgpt_pulls_the_mean(weights: list[float], skips: list[float], target: float) -> None:
    """|mean - target|; pads do not enter; the gradient flips its sign across the target."""
    gates = GATES.clone().requires_grad_()
    total = mean_deviation(gates, COUNTED, torch.tensor(weights), target)
    mean = sum(skips) / 3
    assert float(total.detach()) / 3 == pytest.approx(abs(mean - target), rel=1e-6)
    total.backward()
    sign = -1.0 if mean > target else 1.0
    expected = sign * torch.tensor(weights)[:, None] * COUNTED[:, None]
    torch.testing.assert_close(gates.grad, expected.expand_as(GATES))


def test_at_the_target_there_is_no_penalty_and_no_gradient() -> None:
    gates = GATES.clone().requires_grad_()
    total = mean_deviation(gates, COUNTED, torch.tensor([0.5, 0.5]), 0.5)
    total.backward()
    assert float(total.detach()) == 0
    assert not bool(gates.grad.any())


# Of four layers the first always runs; tokens of two sequences, the last one a pad.
DEPTHS = torch.tensor([[[1.0, 1, 0], [1, 0, 0], [1, 0, 0]], [[0, 1, 1], [0, 1, 0], [0, 0, 0]]])
REAL = torch.tensor([[True, True, False], [True, True, False]])


@pytest.mark.parametrize("omega", [0.3, 0.75])
def test_d_llm_pulls_each_token(omega: float) -> None:
    """Sums of |depth - omega|; a layer without a router counts as run."""
    gates = DEPTHS.clone().requires_grad_()
    found = depth_deviation(gates, REAL, omega, 4)
    depths = [[4 / 4, 2 / 4], [1 / 4, 3 / 4]]
    by_hand = sum(abs(depth - omega) for row in depths for depth in row)
    assert float(found.detach()) == pytest.approx(by_hand, rel=1e-6)
    found.backward()
    sign = torch.tensor([[math.copysign(1, d - omega) * (d != omega) for d in r] for r in depths])
    expected = torch.cat([sign, torch.zeros(2, 1)], dim=1)[:, None].expand(2, 3, 3) / 4
    torch.testing.assert_close(gates.grad, expected)


def test_d_llm_at_the_two_ends() -> None:
    """Property 6."""
    ones = torch.ones(2, 3, 3)
    found = depth_deviation(ones, REAL, 0.6, 4)
    assert float(found) / 4 == pytest.approx(0.4)
    halves = torch.tensor([1.0, 0.0, 0.0])[None, :, None].expand(2, 3, 3)
    assert float(depth_deviation(halves, REAL, 0.5, 4)) == 0


@pytest.mark.parametrize(
    ("row", "params", "counted"),
    [("hero", {}, 12), ("hero", {"unit": "block"}, 6), ("flexidepth", {}, 6)],
)
def test_a_gate_of_attention_and_ffn_counts_once(
    row: str, params: dict[str, Any], counted: int
) -> None:
    """Twelve units of one half, on ten positions."""
    soft, everywhere = torch.full((2, 12, 5), 0.5), torch.ones(2, 5)
    nothing: Any = None
    penalty = load_method(row, params).penalty("pooled", None, nothing)
    assert float(penalty(Gates(soft, soft >= 0.5, everywhere, 0.0))) == 10 * (counted / 2) ** 2


def test_the_ramp_of_d_llm() -> None:
    """Property 7: 0 at the start, a half after a third, 1 at the end."""
    for progress, share in ((0.0, 0.0), (1 / 3, 0.5), (1.0, 1.0)):
        assert ramp(progress) == pytest.approx(share)


def test_what_inference_skips_more_scales_targets() -> None:
    """A budget of 0.2 with 0.05 more in inference: three quarters of a target in any measure."""
    target = Target(0.2, rate=0.18, mean=0.18)
    target.correct(0.23)
    assert aim_of(0.4, target) == pytest.approx(0.4 * 0.75)
    assert aim_of(0.4, None) == 0.4
