"""Functions timed in turn, what is told of their times, and their energy per token."""

from __future__ import annotations

from itertools import count, groupby
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy import stats

from workflows.timing import clock, meters


def test_functions_are_called_in_turn_and_a_warm_up_does_not_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ticks = iter([0, 9, 10, 18, 20, 21, 30, 32, 40, 43, 50, 54])
    monkeypatch.setattr(clock, "time", SimpleNamespace(perf_counter=ticks.__next__))
    calls: list[str] = []
    functions = [lambda name=name: calls.append(name) for name in "ab"]
    seconds = clock.time_in_turn(functions, rounds=2, warmup=1, device="cpu")
    assert calls == ["a", "b"] * 3
    assert seconds == [[1, 3], [2, 4]]


def test_the_interval_of_a_ratio_is_the_bootstrap_of_its_median() -> None:
    rng = np.random.default_rng(3)
    dense, ratios = rng.lognormal(0, 0.5, 60), rng.lognormal(0, 0.6, 60)
    theirs = stats.bootstrap(
        (ratios,), np.median, n_resamples=20_000, method="percentile", rng=np.random.default_rng(2)
    ).confidence_interval
    told = clock.time_ratio((ratios * dense).tolist(), dense.tolist(), bound=0.5)
    assert told["over_dense"] == pytest.approx(np.median(ratios))
    assert told["interval"] == pytest.approx([theirs.low, theirs.high], abs=0.01)


def test_what_is_told_of_times_by_hand() -> None:
    seconds, dense = [float(n) for n in range(1, 12)], [10.0] * 11
    told = clock.time_ratio(seconds, dense, bound=0.2)
    assert told["seconds"] == pytest.approx({10: 2, 50: 6, 90: 10})
    assert told["dense_seconds"] == pytest.approx({10: 10, 50: 10, 90: 10})
    assert (told["raw"], told["dense_raw"]) == (seconds, dense)
    assert told["realised_share"] == pytest.approx(0.4 / 0.8)
    nearer = clock.time_ratio(seconds, dense, bound=0.2, timed_bound=0.5)
    assert nearer["realised_share"] == pytest.approx(0.4 / 0.5)
    for bound in (None, 0.996):
        assert clock.time_ratio(seconds, dense, bound=bound)["realised_share"] is None


def test_energy_is_measured_back_and_forth_behind_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """The counter and the clock both go by calls."""
    calls, ticks = list[str](), count()
    monkeypatch.setattr(meters, "_counter", lambda: lambda: calls.count("row") + 3.0 * len(calls))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(meters, "time", SimpleNamespace(perf_counter=lambda: next(ticks)))
    names = ("row", "dense")
    line = meters.joules([lambda name=name: calls.append(name) for name in names], tokens=2)
    assert line == {"joules_per_token": 2.0, "dense_joules_per_token": 1.5}
    runs = [(name, len(list(run))) for name, run in groupby(calls)]
    assert [name for name, _ in runs] == ["row", "dense", "row"]
    # One call of each window is not counted.
    assert [number % 10 for _, number in runs] == [1, 2, 1]
