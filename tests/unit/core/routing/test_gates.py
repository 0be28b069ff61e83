"""Gates sampled with logistic noise against Gumbel-softmax over two components."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from methods.core.routing.decisions import decision_of
from methods.core.routing.gates import (
    decide_gates,
    hashed_noise,
    logistic_noise,
    sample_gates,
)
from methods.core.routing.router import Context, Gate, Tokens

RNG = torch.Generator().manual_seed(0)
LOGITS = torch.randn(3, 50, 2, generator=RNG)
# Standard Gumbel noise on both components.
GUMBEL = -(-torch.rand(3, 50, 2, generator=RNG).log()).log()


def tokens(batch: int, length: int) -> Tokens:
    ids = torch.randint(0, 60, (batch, length), generator=torch.Generator().manual_seed(1))
    return Tokens(ids, torch.arange(length).expand(batch, -1), torch.ones_like(ids, dtype=bool))


def by_hand(temperature: float) -> tuple[Tensor, Tensor]:
    """Decisions and soft gates of component 0, entry by entry."""
    execute, soft = torch.zeros(3, 50, dtype=torch.bool), torch.zeros(3, 50)
    for b in range(3):
        for t in range(50):
            first, second = ((LOGITS + GUMBEL)[b, t] / temperature).tolist()
            soft[b, t] = math.exp(first) / (math.exp(first) + math.exp(second))
            execute[b, t] = first > second
    return execute, soft


@pytest.mark.parametrize("temperature", [5.0, 2.3, 1.0])
def test_a_sampled_gate_is_gumbel_softmax_with_a_straight_through_gradient(
    temperature: float,
) -> None:
    logits = LOGITS.clone().requires_grad_()
    difference = logits[..., 0] - logits[..., 1]
    ran, value = sample_gates(difference, GUMBEL[..., 0] - GUMBEL[..., 1], temperature)
    decision = decision_of(Gate(value, "straight-through"), ran)
    execute, soft = by_hand(temperature)
    assert torch.equal(decision.execute, execute)
    assert torch.equal(decision.scale, execute.float())
    assert decision.run_all
    decision.soft.sum().backward()
    slope = soft * (1 - soft) / temperature
    torch.testing.assert_close(logits.grad, torch.stack([slope, -slope], dim=-1))
    # One gradient moves a component up and the other one down by as much.
    assert torch.equal(logits.grad.sum(dim=-1), torch.zeros(3, 50))


def test_the_temperature_moves_the_gradient_and_no_decision() -> None:
    difference, noise = LOGITS[..., 0] - LOGITS[..., 1], GUMBEL[..., 0] - GUMBEL[..., 1]
    executed, slopes = [], []
    for temperature in (5.0, 1.0):
        given = difference.clone().requires_grad_()
        execute, soft = sample_gates(given, noise, temperature)
        soft.sum().backward()
        executed.append(execute)
        slopes.append(given.grad)
    assert torch.equal(*executed)
    assert (slopes[0] - slopes[1]).abs().max() > 0.05


def test_hard_gates_are_exactly_zero_or_one() -> None:
    soft = torch.rand(10_000, generator=torch.Generator().manual_seed(3))
    for execute in (torch.ones(10_000, dtype=torch.bool), torch.zeros(10_000, dtype=torch.bool)):
        decision = decision_of(Gate(soft, "straight-through"), execute)
        assert torch.equal(decision.scale, execute.float())
        assert torch.equal(decision.soft, execute.float())


def test_an_unknown_scale_is_named() -> None:
    scale: Any = "straight"
    with pytest.raises(ValueError, match="scale is 'straight', must be a tensor, none, gate or "):
        decision_of(Gate(torch.ones(2), scale), torch.ones(2, dtype=torch.bool))


def test_ties_execute() -> None:
    zero = torch.zeros(1, 2)
    assert bool(sample_gates(zero, zero, 1.0)[0].all())
    assert bool(decide_gates(zero, 0.5).all())
    assert not bool(decide_gates(zero - 1e-6, 0.5).any())


@pytest.mark.parametrize("threshold", [0.2, 0.5, 0.9])
def test_a_threshold_is_one_of_probabilities(threshold: float) -> None:
    difference = LOGITS[..., 0] - LOGITS[..., 1]
    expected = LOGITS.double().softmax(dim=-1)[..., 0] >= threshold
    assert torch.equal(decide_gates(difference, threshold), expected)


def test_noise_has_the_distribution_of_a_difference_of_two_gumbels() -> None:
    at = Context(0.0, torch.Generator().manual_seed(5))
    noise = logistic_noise(20, tokens(10, 500), at)
    gumbel = -(-torch.rand(2, 100_000, generator=RNG, dtype=torch.float64).log()).log()
    for x in (-4.0, -1.0, 0.0, 0.5, 3.0):
        found = float((noise <= x).double().mean())
        assert found == pytest.approx(1 / (1 + math.exp(-x)), abs=0.006)
        assert found == pytest.approx(float((gumbel[0] - gumbel[1] <= x).double().mean()), abs=8e-3)
    assert noise.shape == (10, 20, 500)
    assert noise.dtype == torch.float32
    assert bool(noise.isfinite().all())


def test_training_noise_follows_its_generator_and_ends_with_training() -> None:
    def drawn(seed: int) -> Tensor:
        return logistic_noise(3, tokens(2, 5), Context(0.0, torch.Generator().manual_seed(seed)))

    assert torch.equal(drawn(1), drawn(1))
    assert not torch.equal(drawn(1), drawn(2))
    assert logistic_noise(3, tokens(2, 5), Context()) is None


def test_hashed_noise_depends_on_token_position_unit_and_seed_alone() -> None:
    whole = tokens(4, 400)
    noise = hashed_noise(7, 3, whole)
    part = Tokens(*(values[1:3, 100:] for values in whole))
    assert torch.equal(hashed_noise(7, 2, part), noise[1:3, :2, 100:])
    assert (noise[:, 0] != noise[:, 1]).all()
    assert (hashed_noise(8, 3, whole) != noise).all()
    moved = whole._replace(positions=whole.positions + 1)
    assert (hashed_noise(7, 3, moved) != noise).all()
    for x in (-2.0, 0.0, 1.0):
        expected = 1 / (1 + math.exp(-x))
        assert float((noise <= x).double().mean()) == pytest.approx(expected, abs=0.04)


def test_hashed_noise_needs_ids() -> None:
    with pytest.raises(ValueError, match="need input_ids"):
        hashed_noise(7, 0, tokens(1, 2)._replace(ids=None))
