"""Energy per token, with a counter and a clock that both go by calls."""

from __future__ import annotations

from itertools import count, groupby
from types import SimpleNamespace

import pytest
import torch

from workflows.timing import meters


def test_energy_is_measured_back_and_forth_behind_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    calls, clock = list[str](), count()
    monkeypatch.setattr(meters, "_counter", lambda: lambda: calls.count("row") + 3.0 * len(calls))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(meters, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
    names = ("row", "dense")
    line = meters.joules([lambda name=name: calls.append(name) for name in names], tokens=2)
    assert line == {"joules_per_token": 2.0, "dense_joules_per_token": 1.5}
    runs = [(name, len(list(run))) for name, run in groupby(calls)]
    assert [name for name, _ in runs] == ["row", "dense", "row"]
    # One call of each window is not counted.
    assert [number % 10 for _, number in runs] == [1, 2, 1]
