"""HeRo's router against its equations in float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from methods.hero.router import HeroRouter
from tests.reference import hero_oracle as oracle
from tests.reference.hero_router import NORM_EPS, make_router, run, stacked, streams
from tests.reference.recurrent_memory import RecurrentMemory


def compare(router: HeroRouter, hbar: Tensor, tolerance: float) -> None:
    expected = oracle.all_gates(router.formula_parameters(), hbar, NORM_EPS, router.variant)
    traces = run(router, hbar)
    for name, values in expected.items():
        found = stacked(traces, name).double()
        torch.testing.assert_close(
            found, values, rtol=tolerance, atol=tolerance, msg=lambda text, name=name: name + text
        )


@pytest.fixture
def in_double(monkeypatch: pytest.MonkeyPatch) -> None:
    """The router casts to float32; here that cast gives float64, so rounding hides nothing."""
    monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)


@pytest.mark.parametrize("blocks", [2, 6, 16])
def test_every_value_equals_the_oracle(blocks: int) -> None:
    compare(make_router(blocks), streams(blocks), 1e-5)


@pytest.mark.parametrize("blocks", [2, 6, 16])
@pytest.mark.usefixtures("in_double")
def test_every_value_equals_the_oracle_in_double(blocks: int) -> None:
    router = make_router(blocks).double()
    compare(router, streams(blocks).double(), 1e-12)


@pytest.mark.parametrize(
    "variant", ["no-history", "no-memread", "no-aux", "no-position", "same-size"]
)
@pytest.mark.usefixtures("in_double")
def test_ablation_equals_the_oracle_with_the_stated_change(variant: str) -> None:
    router = make_router(6, variant).double()
    compare(router, streams(6).double(), 1e-12)
    if variant in ("no-history", "same-size"):
        return
    # The change must matter, or the comparison above says nothing about it.
    full = make_router(6).double()
    full.load_state_dict(router.state_dict(), strict=variant != "no-aux")
    change = stacked(run(full, streams(6).double()), "gate") - stacked(
        run(router, streams(6).double()), "gate"
    )
    assert change.abs().max() > 1e-2


@pytest.mark.parametrize("memory", [32, 128])
@pytest.mark.usefixtures("in_double")
def test_other_memory_widths_equal_the_oracle(memory: int) -> None:
    router = make_router(5, memory=memory).double()
    shapes = {name: tuple(w.shape) for name, w in router.formula_parameters().items()}
    assert [shapes[name] for name in ("W_q", "W_k", "W_v")] == [(memory, 64)] * 3
    assert shapes["W_c"] == (64, memory)
    assert shapes["W_n"] == (64, 64)
    assert shapes["hist_W1"] == (16, 64 + memory + 1)
    compare(router, streams(5).double(), 1e-12)


@pytest.mark.parametrize("blocks", [2, 3, 16, 24])
@pytest.mark.usefixtures("in_double")
def test_memory_forms_agree_in_values_and_gradients(blocks: int) -> None:
    gates, gradients = [], []
    for recurrent in (False, True):
        router, hbar = make_router(blocks).double(), streams(blocks).double().requires_grad_()
        memory = RecurrentMemory(torch.sigmoid(router.eta)) if recurrent else None
        gate = torch.stack([trace.gate for trace in run(router, hbar, memory)])
        weights = torch.linspace(-1, 1, gate.numel(), dtype=gate.dtype).view_as(gate)
        gates.append(gate)
        names = router.formula_parameters()
        found = torch.autograd.grad(
            (gate * weights).sum(), [hbar, *names.values()], materialize_grads=True
        )
        gradients.append(dict(zip(["hbar", *names], found, strict=True)))
    torch.testing.assert_close(*gates, rtol=0, atol=1e-12)
    for name, value in gradients[0].items():
        # With two blocks no decay is ever read.
        assert value.abs().max() > 0 or (blocks, name) == (2, "eta")
        torch.testing.assert_close(value, gradients[1][name], rtol=1e-10, atol=1e-11)
