"""HeRo's memory over depth as a unit: keys, values and decays are given."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import pad

from methods.hero.memory import Memory
from methods.kernels.hero.formulas import decays, phi
from tests.reference.recurrent_memory import RecurrentMemory

FORMS = pytest.mark.parametrize("recurrent", [False, True], ids=["list", "recurrent"])


def read(recurrent: bool, query: Tensor, values: Tensor, keys: Tensor, rho: Tensor) -> Tensor:
    """What a block behind as many as there are keys reads."""
    memory: Any = RecurrentMemory(rho) if recurrent else Memory()
    for key, value in zip(keys, values, strict=True):
        memory = memory.write(phi(key), pad(value, (0, 1), value=1.0))
    after = torch.cat([rho, rho.new_ones(1)])
    return memory.read(phi(query), decays(after)[-1, :-1])


def entries(count: int, width: int = 8, seed: int = 3) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """query (B, T, M), keys and values (n, B, T, M), rho (n,)."""
    rng = torch.Generator().manual_seed(seed)
    many = torch.randn(2 * count + 1, 2, 3, width, generator=rng, dtype=torch.float64)
    rho = torch.rand(count, generator=rng, dtype=torch.float64)
    return many[0], many[1 : count + 1], many[count + 1 :], rho


def test_memory_forms_agree_as_units() -> None:
    """Property 5, first part."""
    query, keys, values, rho = entries(9)
    first, other = [read(recurrent, query, values, keys, rho) for recurrent in (True, False)]
    torch.testing.assert_close(other, first, rtol=0, atol=1e-12)
    assert first.abs().max() > 0.1


@FORMS
def test_reading_is_a_decayed_mean_by_hand(recurrent: bool) -> None:
    # One feature; phi(0) = 1, phi(1) = 2, phi(-1) = 1/e. Weights of the entries, oldest first:
    # 1 * 2 * 0.5 * 0.25, 1 * 1 * 0.25, 1 / e; the last rho is not yet used.
    keys = torch.tensor([1.0, 0.0, -1.0]).view(3, 1, 1, 1).double()
    values = torch.tensor([8.0, 4.0, -2.0]).view(3, 1, 1, 1).double()
    rho = torch.tensor([0.9, 0.5, 0.25]).double()
    query = torch.zeros(1, 1, 1).double()
    weights = [2 * 0.5 * 0.25, 1 * 0.25, math.exp(-1)]
    above = weights[0] * 8 + weights[1] * 4 - weights[2] * 2
    found = float(read(recurrent, query, values, keys, rho))
    assert found == pytest.approx(above / (sum(weights) + 1e-6), rel=1e-12)


@FORMS
def test_memory_is_linear_and_keeps_to_the_range_of_its_values(recurrent: bool) -> None:
    """Property 5, second part."""
    query, keys, values, rho = entries(5)
    once = read(recurrent, query, values, keys, rho)
    assert torch.equal(read(recurrent, query, 2 * values, keys, rho), 2 * once)
    shift = torch.linspace(-3, 3, 8, dtype=torch.float64)
    shifted = read(recurrent, query, values + shift, keys, rho)
    torch.testing.assert_close(shifted, once + shift, rtol=0, atol=1e-5)
    assert bool((once <= values.amax(0) + 1e-6).all())
    assert bool((once >= values.amin(0) - 1e-6).all())


@FORMS
def test_full_decay_leaves_the_last_entry_alone(recurrent: bool) -> None:
    """Property 6, first part."""
    query, keys, values, _ = entries(4)
    found = read(recurrent, query, values, keys, torch.zeros(4, dtype=torch.float64))
    weight = (phi(query) * phi(keys[-1])).sum(-1, keepdim=True)
    torch.testing.assert_close(found, values[-1] * weight / (weight + 1e-6), rtol=1e-12, atol=0)
