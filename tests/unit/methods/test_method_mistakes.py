"""Mistakes in a method's own file are named: units, gates, penalties, what a fit returns."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from methods.api import Fitted, Gate, Request, RoutedMethod, Unit
from methods.core.jsonfile import check_plain
from methods.core.model.finite import check_buffers
from tests.examples.linear_gates import LinearGates, LinearRouter
from tests.examples.quiet_tokens import QuietTokens
from tests.toys.models import make_model, wrap
from tests.toys.routed import TRAINING, Texts

Change = Callable[..., Any]


def fit(method: RoutedMethod, folder: Path) -> Fitted:
    return method.fit(wrap(make_model()), Texts(), Request(0.2, 5, folder))


def linear(**changes: Change) -> RoutedMethod:
    """Linear gates with other functions in place of its own."""
    return type("Own", (LinearGates,), changes)(TRAINING)


def test_units_count_what_their_kind_has(tmp_path: Path) -> None:
    def doubled(self: Any, backbone: Any, layers: list[int]) -> list[Any]:
        units = LinearGates.units(self, backbone, layers)
        return [unit._replace(parameters=2 * unit.parameters) for unit in units]

    said = r"a unit of kind 'ffn' in layer 3 counts \d+ parameters, must be \d+; make units by ffn_"
    with pytest.raises(ValueError, match=said):
        fit(linear(units=doubled), tmp_path)


@pytest.mark.parametrize(
    ("unit", "said"),
    [
        (Unit(9, "ffn", 3), "a unit is of kind 'ffn' in layer 9, kinds are .*, layers 0 to 5"),
        (Unit(2, "mlp", 3), "a unit is of kind 'mlp' in layer 2, kinds are attention, ffn, "),
    ],
)
def test_units_name_layers_and_kinds_that_there_are(unit: Unit, said: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=said):
        fit(linear(units=lambda *_: [unit]), tmp_path)


@pytest.mark.parametrize(
    ("penalty", "said"),
    [
        (lambda g: g.executed.double().sum(), "must be a tensor that has a gradient in gates.soft"),
        (lambda g: 1.0, "must be a tensor that has a gradient in gates.soft"),
        (lambda g: g.soft, r"a penalty has the shape \(\d+, \d+, \d+\), must be a sum"),
        (lambda g: g.soft.sum(), "by gates.counted: with doubled weights it goes from"),
    ],
)
def test_a_penalty_is_a_weighted_sum_over_gates(penalty: Change, said: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=said):
        fit(linear(penalty=lambda *_: penalty), tmp_path)


@pytest.mark.parametrize("size", [-1.0, 2.0])
def test_gates_lie_in_0_to_1(size: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = LinearRouter.gate

    def scaled(*arguments: Any) -> Any:
        answer, state = gate(*arguments)
        return answer._replace(value=size * answer.value), state

    monkeypatch.setattr(LinearRouter, "gate", scaled)
    with pytest.raises(ValueError, match=r"gates reach from .* to .*, must be in \[0, 1\]"):
        fit(linear(), tmp_path)


def test_a_gate_has_a_value_or_decisions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LinearRouter, "gate", lambda *_: (Gate(), None))
    with pytest.raises(ValueError, match="LinearRouter.gate, unit 0: a gate needs a value or dec"):
        fit(linear(), tmp_path)


def test_a_knob_is_a_param(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="knob is 'share', which is no param"):
        fit(type("Own", (QuietTokens,), {"knob": "share"})(), tmp_path)


def test_decisions_are_json_before_training_begins(tmp_path: Path) -> None:
    def prepare(self: Any, backbone: Any, data: Any, plan: Any) -> None:
        plan.decisions["norms"] = torch.ones(2)

    with pytest.raises(ValueError, match="decisions, norms is a Tensor, which JSON does not hold"):
        fit(linear(prepare=prepare), tmp_path)


@pytest.mark.parametrize("value", [np.float32(1), {1, 2}, float("nan"), {3: 4}])
def test_what_json_does_not_hold_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match="decisions, a"):
        check_plain({"a": value}, "decisions")


def test_weights_in_a_buffer_are_refused() -> None:
    model = make_model()
    check_buffers(model, "row 'own'")
    model.model.layers[1].mlp.register_buffer("map", torch.ones(3))
    said = r"row 'own': buffer 'model\.layers\.1\.mlp\.map' holds weights; make it a parameter"
    with pytest.raises(ValueError, match=said):
        check_buffers(model, "row 'own'")


def test_training_in_float16_on_a_cpu_is_refused(tmp_path: Path) -> None:
    backbone = wrap(make_model().half())
    with pytest.raises(ValueError, match="gradients underflow in float16 on a CPU"):
        linear().fit(backbone, Texts(), Request(0.2, 5, tmp_path))
