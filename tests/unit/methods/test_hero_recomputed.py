"""HeRo's gates run again in the backward pass where memory is dear: the same bits, little kept."""

from __future__ import annotations

import gc
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from methods.core.routing.decisions import Decider, recompute_gate
from methods.core.routing.router import Context, Tokens, Unit
from methods.hero.heads import Sizes
from methods.hero.router import HeroRouter
from tests.toys.routed import IDS
from tests.toys.training import build_row, same_bits, trainer_for, values

BLOCKS, BATCH, LENGTH, WIDTH = 5, 2, 3, 256
PLACES = BLOCKS * BATCH * LENGTH


def made(variant: Any = "full") -> HeroRouter:
    units = [Unit(number, "ffn", 1) for number in range(BLOCKS)]
    rng = torch.Generator().manual_seed(1)
    return HeroRouter(units, Sizes(WIDTH, 32, 64, 8), 1e-5, variant, 0.0, rng)


def streams(dtype: torch.dtype = torch.float32, length: int = LENGTH) -> list[Tensor]:
    rng = torch.Generator().manual_seed(2)
    drawn = [torch.randn(BATCH, length, WIDTH, generator=rng) for _ in range(BLOCKS)]
    return [each.to(dtype).requires_grad_() for each in drawn]


def gates(router: HeroRouter, hbars: list[Tensor], recomputed: bool) -> Tensor:
    """All gates (B, R, T)."""
    ask = partial(recompute_gate, router) if recomputed else router.gate
    ids = torch.zeros(hbars[0].shape[:2], dtype=torch.int64)
    state = router.start(Tokens(ids, ids, ids == 0), hbars[0], Context())
    found = []
    for index, hbar in enumerate(hbars):
        gate, state = ask(index, hbar, hbar, state, Context())
        found.append(gate.value)
    return torch.stack(found, dim=1)


def kept(run: Callable[[], Tensor]) -> list[Tensor]:
    """What the backward pass of ``run`` holds: tensors of distinct storage that were not before."""

    def alive() -> dict[int, Tensor]:
        gc.collect()
        found = (each for each in gc.get_objects() if type(each) in (Tensor, torch.nn.Parameter))
        return {tensor.untyped_storage().data_ptr(): tensor for tensor in found}

    before = set(alive())
    # What autograd saves is seen through a hook, what closures hold without one.
    with saved_tensors_hooks(lambda tensor: tensor, lambda tensor: tensor):
        found = run()
    before.add(found.untyped_storage().data_ptr())
    return [tensor for place, tensor in alive().items() if place not in before]


def kept_bytes(recomputed: bool) -> int:
    """Bytes per pass that the backward pass holds for more tokens, beside the residual stream."""
    held = []
    for length in (LENGTH, 2 * LENGTH):
        router, hbars = made(), streams(length=length)
        found = kept(lambda: gates(router, hbars, recomputed))  # noqa: B023
        held.append(sum(tensor.untyped_storage().nbytes() for tensor in found))
    return held[1] - held[0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("variant", ["full", "no-memread", "same-size"])
def test_a_recompute_gate_has_the_same_bits(variant: str, dtype: torch.dtype) -> None:
    found = []
    for recomputed in (False, True):
        router, hbars = made(variant), streams(dtype)
        soft = gates(router, hbars, recomputed)
        (soft * torch.arange(1.0, BLOCKS + 1)[:, None]).square().sum().backward()
        grads = {n: p.grad for n, p in router.named_parameters() if p.grad is not None}
        grads |= {f"stream {n}": hbar.grad for n, hbar in enumerate(hbars)}
        found.append({"gates": soft.detach(), **grads})
    assert len(found[0]) > BLOCKS + 3
    same_bits(*found)


def test_a_recompute_gate_keeps_less_than_a_kilobyte_per_token_and_block() -> None:
    assert kept_bytes(False) > 5 * 1024 * PLACES
    assert kept_bytes(True) < 1024 * PLACES


def test_a_recomputed_layer_keeps_its_input_and_its_stream() -> None:
    model = build_row("hero").train()
    model.model.checkpointing = True
    width = model.config.hidden_size
    states = [
        tensor
        for tensor in kept(lambda: model.model(IDS, use_cache=False).last_hidden_state)
        if tensor.shape == (*IDS.shape, width) and tensor.is_floating_point()
    ]
    # The inputs of four layers and of the norm behind them, three streams that the next gate reads.
    assert len(states) == 4 + 1 + 3


@pytest.mark.parametrize(
    ("row", "params"), [("hero", {"unit": "block"}), ("flexidepth", {}), ("diffskip", {})]
)
def test_every_row_with_heavy_gates_trains_alike(
    row: str, params: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def train(name: str) -> list[dict[str, float]]:
        model = build_row(row, initial_bias=0.0, **params)
        assert model.model.router.heavy
        return trainer_for(row, tmp_path / name, model=model, updates=3, micro_tokens=40).run()

    log = train("plain")
    # As on a GPU.
    monkeypatch.setattr(Decider, "_recomputes_gates", lambda *_: torch.is_grad_enabled())
    assert train("recomputed") == [pytest.approx(entry, rel=1e-5) for entry in log]


def test_recompute_gates_change_no_bit_of_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = trainer_for("hero", tmp_path / "plain", updates=3, micro_tokens=40)
    log = plain.run()
    # As on a GPU.
    monkeypatch.setattr(Decider, "_recomputes_gates", lambda *_: torch.is_grad_enabled())
    recomputed = trainer_for("hero", tmp_path / "recomputed", updates=3, micro_tokens=40)
    calls = []
    step = HeroRouter.step
    monkeypatch.setattr(HeroRouter, "step", lambda *args: calls.append(1) or step(*args))
    assert recomputed.run() == log
    same_bits(values(plain), values(recomputed))
    passes = len(calls) // (2 * 4)
    assert passes >= 3
    assert len(calls) == 2 * 4 * passes, "four gates, once forward and once backward"
