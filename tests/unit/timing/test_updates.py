"""A row's own update on the clock: it trains what the row trains, and leaves both models alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch

from methods import load_method
from methods.core.model.checkpoint import cast_alternatives
from methods.core.routing.routed import router_of
from tests.toys.models import make_model, wrap
from workflows.timing import modes
from workflows.timing.modes import Bench, time_training, time_update
from workflows.timing.pair import build_pair

BENCH = Bench("cpu", rounds=2, warmup=1)
STRUCTURE = {
    "layers": [2, 3, 4, 5],
    "seed": 7,
    "threshold": 0.5,
    "rates": [0.5] * 4,
    "capacity": 0.5,
    "levels": None,
}


@pytest.mark.parametrize("row", ["lora", "hero", "d-llm", "mod-d", "skipgpt-joint"])
def test_what_a_row_trains_gets_its_gradients(row: str, monkeypatch: pytest.MonkeyPatch) -> None:
    dense, start = make_model(), make_model()
    params = {} if row == "hero" else {"rank": 4}
    backbone = wrap(start)
    model: Any = load_method(row, params).build(backbone, STRUCTURE)
    trained = {name for name, p in model.named_parameters() if p.requires_grad}
    before = {name: p.clone() for name, p in dense.named_parameters()}
    ids, seen, plain = torch.arange(24).view(2, 12), [], modes._training_step

    def step(stepped: Any, *rest: Any) -> None:
        plain(stepped, *rest)
        if stepped is model:
            assert model.training
            seen.append(
                {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
            )

    monkeypatch.setattr(modes, "_training_step", step)
    line = time_update(model, dense, ids, BENCH)
    assert (line["mode"], line["case"], line["bound"]) == ("training", "2x12", None)
    assert len(line["raw"]) == 2
    assert len(seen) == BENCH.turns
    assert set(seen[0]) == trained
    if router_of(model) is not None:
        # The noise of every turn is the same.
        assert all(torch.equal(grad, seen[2][name]) for name, grad in seen[1].items())
    assert not model.training
    assert all(p.grad is None for p in model.parameters())
    assert set(before) == {name for name, _ in dense.named_parameters()}
    assert all(torch.equal(p, before[name]) for name, p in dense.named_parameters())


def hero(dense: Any) -> Any:
    return load_method("hero").build(wrap(dense), STRUCTURE).eval()


def test_loaded_adapters_are_trained_in_32_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    model, plain, seen = hero(make_model().bfloat16()), modes._training_step, set[torch.dtype]()
    cast_alternatives(model)
    before = {name: p.clone() for name, p in model.named_parameters()}
    assert {p.dtype for p in model.model.router.adapters.parameters()} == {torch.bfloat16}

    def step(*given: Any) -> None:
        plain(*given)
        seen.update(p.grad.dtype for p in given[0].parameters() if p.grad is not None)

    monkeypatch.setattr(modes, "_training_step", step)
    time_update(model, make_model().bfloat16(), torch.arange(24).view(2, 12), BENCH)
    assert seen == {torch.float32}
    for name, parameter in model.named_parameters():
        assert parameter.dtype == before[name].dtype
        assert torch.equal(parameter, before[name])


@pytest.mark.parametrize("recompute", [False, True])
def test_forced_decisions_leave_every_gate_its_gradient(
    recompute: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The gates scale what runs, and there is a penalty on them."""
    model, plain, steps = hero(make_model()), modes._training_step, list[bool]()
    trained = {name for name, p in model.named_parameters() if p.requires_grad}
    penalised, squared_use = list[bool](), modes.squared_use

    def step(stepped: Any, *rest: Any) -> None:
        plain(stepped, *rest)
        if stepped is model:
            found = {name for name, p in model.named_parameters() if p.grad is not None}
            steps.append(model.training and found == trained)

    def penalty(soft: torch.Tensor, *rest: Any) -> torch.Tensor:
        penalised.append(soft.requires_grad and soft.shape == (2, 4, 8))
        return squared_use(soft, *rest)

    monkeypatch.setattr(modes, "_training_step", step)
    monkeypatch.setattr(modes, "squared_use", penalty)
    time_training(model, (2, 8), 0.5, recompute, BENCH)
    assert steps == penalised == [True] * BENCH.turns
    assert not model.training


def test_forced_decisions_are_scaled_in_training_alone() -> None:
    model, ids = hero(make_model()), torch.arange(24).view(2, 12)
    forced = torch.ones(2, 4, 12, dtype=torch.bool)
    dense = make_model()(ids).logits
    torch.testing.assert_close(model(ids, forced=forced).logits, dense)
    model.train()
    assert not torch.allclose(model(ids, forced=forced).logits, dense, atol=1e-2)
    with torch.no_grad():
        torch.testing.assert_close(model(ids, forced=forced).logits, dense)


def test_a_pair_is_in_eval_mode() -> None:
    for model in build_pair("hero", "cpu_16", 0.25, "float32", "cpu"):
        assert not any(module.training for module in model.modules())


def test_peak_memory_of_a_step_holds_no_gradients_of_the_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    models: list[Any] = [hero(make_model())]
    with_lora, held = modes._with_lora, list[bool]()

    def keep(*given: Any) -> Any:
        models.append(with_lora(*given))
        return models[-1]

    def peaks(functions: Iterable[Callable[[], Any]]) -> dict[str, Any]:
        for function in functions:
            held.append(any(p.grad is not None for model in models for p in model.parameters()))
            function()
        return {}

    monkeypatch.setattr(modes, "_with_lora", keep)
    monkeypatch.setattr(modes, "peak_memory", peaks)
    time_training(models[0], (2, 8), 0.5, False, BENCH)
    assert held == [False, False]
