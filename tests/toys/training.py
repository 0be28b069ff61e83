"""Short runs of the training loop on toys."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from methods import load_method
from methods.core.data import Document
from methods.core.routing.routed import router_of
from methods.core.routing.router import Context, Gate, Router, Tokens, ffn_units
from methods.core.routing.steering import Controller, Gates, Target, Term, squared_use, unit_shares
from methods.core.training.loop import Trainer
from methods.core.training.objective import MATCH_KINDS, Objective, Routing
from methods.core.training.params import TrainingParams
from tests.toys.models import make_model, wrap
from tests.toys.texts import documents

SHORT = {"updates": 6, "batch_tokens": 60, "learning_rate": 3e-3, "row_length": 40, "clip": 1e9}


def build_row(row: str, dtype: torch.dtype = torch.float32, **params: Any) -> nn.Module:
    """A toy Llama under ``row``, with noise on every trained parameter."""
    structure = {"layers": [2, 3, 4, 5], "seed": 7, "threshold": 0.5, "rates": [0.5] * 4}
    backbone = wrap(make_model().to(dtype))
    model = load_method(row, params).build(backbone, structure)
    rng = torch.Generator().manual_seed(11)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter += 0.2 * torch.randn(parameter.shape, generator=rng)
    return model


def trainer_for(
    row: str,
    workdir: Path,
    texts: Sequence[Document] | None = None,
    model: nn.Module | None = None,
    budget: float = 0.2,
    match: str = "pooled",
    **changes: Any,
) -> Trainer:
    params = TrainingParams(**(SHORT | changes))
    if model is None:
        model = build_row(row, **({"initial_bias": 0.0} if row == "hero" else {"rank": 4}))
    texts = documents() if texts is None else texts
    if row == "lora":
        return Trainer(model, params, texts, 5, workdir)
    shares = unit_shares(router_of(model).units, 40_000)
    terms = {k: Term(Controller(Target(budget), 0.02), hero_penalty) for k in MATCH_KINDS[match]}
    return Trainer(model, params, texts, 5, workdir, Routing(shares, terms))


def hero_penalty(gates: Gates) -> Tensor:
    return squared_use(gates.soft, gates.counted)


def values(trainer: Trainer) -> dict[str, Tensor]:
    """A copy of every trained parameter."""
    return {name: p.detach().clone() for name, p in trainer.parameters.items()}


def one_update(trainer: Trainer) -> tuple[dict[str, float], dict[str, Tensor]]:
    """The log entry and the gradients of the first update."""
    entry = trainer.run()[0]
    return entry, {name: p.grad.clone() for name, p in trainer.parameters.items()}


def same_gradients(one: dict[str, Tensor], other: dict[str, Tensor], tolerance: float) -> None:
    assert any(bool((gradient != 0).any()) for gradient in one.values())
    for name, gradient in one.items():
        scale = max(1.0, float(gradient.abs().max()))
        torch.testing.assert_close(
            other[name] / scale, gradient / scale, rtol=0, atol=tolerance,
            msg=lambda text, name=name: f"{name}: {text}",
        )  # fmt: skip


def same_bits(one: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    assert one.keys() == other.keys()
    for name, value in one.items():
        assert torch.equal(value, other[name]), name


class ByNumber(Router):
    """Unit 0 runs even ids with gate id / 10, unit 1 runs ids from 4 with gate id / 5,
    at most 1.

    ``size`` multiplies every gate.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.units = ffn_units(model, [3, 5])
        self.size = nn.Parameter(torch.ones(()))

    def start(self, tokens: Tokens, hidden: Tensor, at: Context) -> Tensor:
        return tokens.ids

    def gate(
        self,
        index: int,
        block_input: Tensor,
        post_attention: Tensor | None,
        state: Tensor,
        at: Context,
    ) -> tuple[Gate, Tensor]:
        execute = state >= 4 if index else state % 2 == 0
        value = (state / (5 if index else 10)).clamp(max=1)
        return Gate(self.size * value, execute=execute), state


def slow_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the trainer's clock move by a minute per update, which reads it once."""
    ticks = count(0, 60)
    monkeypatch.setattr("methods.core.training.loop.monotonic", lambda: next(ticks))


def signal_in(monkeypatch: pytest.MonkeyPatch, at: int, number: signal.Signals) -> None:
    """Send this process a signal during pass ``at``, counted from 0."""
    backward, passes = Objective.backward, count()

    def signalled(self: Objective, *arguments: Any) -> Tensor:
        if next(passes) == at:
            os.kill(os.getpid(), number)
        return backward(self, *arguments)

    monkeypatch.setattr(Objective, "backward", signalled)


def interrupt_and_follow(
    monkeypatch: pytest.MonkeyPatch, at: int, run: Callable[[], object]
) -> list[int]:
    """Stop a training run in update ``at``; the list fills with the updates of a later run."""
    update = Trainer._update

    def interrupt(self: Trainer, number: int, texts: Sequence[Document]) -> dict[str, float]:
        if number == at:
            raise KeyboardInterrupt
        return update(self, number, texts)

    monkeypatch.setattr(Trainer, "_update", interrupt)
    with pytest.raises(KeyboardInterrupt):
        run()
    updates: list[int] = []
    monkeypatch.setattr(
        Trainer, "_update", lambda self, n, texts: updates.append(n) or update(self, n, texts)
    )
    return updates
