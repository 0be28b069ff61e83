"""A row's own update on the clock: it trains what the row trains, and leaves both models alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from methods import load_method
from methods.core.routing.routed import router_of
from tests.toys.models import make_model, wrap
from workflows.timing import modes
from workflows.timing.modes import Bench, time_update

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
