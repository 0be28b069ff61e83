"""Gates that decide otherwise when a checkpointed layer runs again in the backward pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import CheckpointError

from methods import d_llm, skipgpt
from methods.core.routing.decisions import Decider
from methods.core.routing.gates import sample_gates
from methods.core.routing.routed import route
from methods.core.routing.router import Context, Gate, Router, module_units
from tests.toys.models import make_model
from tests.toys.routed import IDS, shake_variant, training_context
from tests.toys.training import build_row, same_bits


class Undecided(Router):
    """Draws who executes anew whenever it is asked."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.units = module_units(model, range(1, 6))
        self.rng = torch.Generator().manual_seed(4)
        self.gates = torch.nn.Parameter(torch.rand(len(self.units), 1, 1, generator=self.rng))

    def gate(
        self, index: int, block_input: Tensor, post: Tensor | None, state: Any, at: Context
    ) -> tuple[Gate, Any]:
        gate = self.gates[index].expand(block_input.shape[:2])
        execute = torch.rand(gate.shape, generator=self.rng) < 0.5
        return Gate(gate, gate, execute), state


def model_of(row: str) -> Any:
    if row == "undecided":
        model = make_model().requires_grad_(False)
        return route(model, Undecided(model))
    if row == "hero":
        return build_row("hero", initial_bias=0.0)
    model = shake_variant(row)
    # As in training: tokens compete.
    model.model.router.levels = None
    return model


def turn(row: str, model: Any, patch: pytest.MonkeyPatch) -> None:
    """Make the router decide otherwise from now on."""

    def otherwise(difference: Tensor, noise: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
        execute, soft = sample_gates(difference, noise, temperature)
        return ~execute, soft

    router = model.model.router
    if row == "hero":
        router.threshold = 0.8
    elif row == "mod-d":
        router.capacity = 0.3
    elif row != "undecided":
        patch.setattr(d_llm if row == "d-llm" else skipgpt, "sample_gates", otherwise)


def gradients(model: Any, checkpointing: bool, between: Callable[[], None]) -> dict[str, Tensor]:
    model.train()
    model.model.checkpointing = checkpointing
    output = model.model(IDS, use_cache=False, context=training_context(0.5))
    loss = output.last_hidden_state.square().mean()
    if output.soft is not None:
        loss = loss + output.soft.square().mean()
    between()
    loss.backward()
    return {n: p.grad for n, p in model.named_parameters() if p.grad is not None}


def test_forced_decisions_hold_in_recomputed_layers() -> None:
    model = model_of("hero").train()
    forced = torch.rand(len(IDS), 4, IDS.shape[1], generator=torch.Generator().manual_seed(3)) < 0.5
    for model.model.checkpointing in (False, True):
        executed = model.model(IDS, use_cache=False, forced=forced).executed
        assert torch.equal(executed, forced)


@pytest.mark.parametrize(
    "row", ["hero", "mod-d", "d-llm", "skipgpt-rt", "skipgpt-joint", "undecided"]
)
def test_a_recomputed_layer_does_what_its_first_pass_decided(
    row: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = gradients(model_of(row), False, lambda: None)
    with monkeypatch.context() as patch:
        model = model_of(row)
        found = gradients(model, True, lambda: turn(row, model, patch))
    same_bits(expected, found)
    # Left to itself it would have done something else.
    monkeypatch.setattr(Decider, "_first", lambda self, index, execute: execute)
    model = model_of(row)
    try:
        alone = gradients(model, True, lambda: turn(row, model, monkeypatch))
    except CheckpointError:
        return
    assert any(not torch.equal(alone[name], expected[name]) for name in expected)


def test_checkpointing_of_transformers_runs_every_layer_twice() -> None:
    expected = gradients(model_of("hero"), False, lambda: None)
    model, ran = model_of("hero"), []
    model.gradient_checkpointing_enable({"use_reentrant": False})
    for number, layer in enumerate(model.model.layers):
        layer.self_attn.q_proj.register_forward_hook(lambda *_, at=number: ran.append(at))
    same_bits(expected, gradients(model, False, lambda: None))
    assert sorted(ran) == sorted([*range(len(model.model.layers))] * 2)


def test_recomputed_layers_leave_no_cache() -> None:
    """They would write their keys and values again."""
    model = model_of("d-llm").train()
    model.gradient_checkpointing_enable({"use_reentrant": False})
    output = model(IDS, labels=IDS, use_cache=True)
    output.loss.backward()
    assert output.past_key_values is None
