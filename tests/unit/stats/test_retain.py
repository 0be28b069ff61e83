"""Retain on numbers that a pencil can check."""

from __future__ import annotations

import numpy as np
import pytest

from workflows.stats.retain import retain


def test_retain_is_a_mean_of_ratios() -> None:
    value = retain({"a": 0.4, "b": 0.9}, {"a": 0.5, "b": 0.9})
    assert value == pytest.approx((0.8 + 1.0) / 2)
    # A ratio of means would give 1.3 / 1.4.
    assert value != pytest.approx(1.3 / 1.4)


def test_tasks_of_the_reference_that_are_not_asked_for_do_not_enter() -> None:
    assert retain({"a": 0.25}, {"a": 0.5, "b": 0.9}) == 0.5


def test_many_runs_at_once_equal_one_by_one() -> None:
    rng = np.random.default_rng(0)
    scores = {task: rng.random((3, 5)) for task in "ab"}
    base = {task: rng.random(5) + 0.1 for task in "ab"}
    for run, resample in np.ndindex(3, 5):
        one = retain(
            {task: float(values[run, resample]) for task, values in scores.items()},
            {task: float(values[resample]) for task, values in base.items()},
        )
        assert retain(scores, base)[run, resample] == pytest.approx(one)


@pytest.mark.parametrize("reference", [{}, {"a": 0.0}, {"a": float("nan")}, {"b": 1.0}])
def test_a_reference_without_a_positive_score_is_refused(reference: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="positive reference score of task 'a'"):
        retain({"a": 0.5}, reference)


def test_no_task_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one task"):
        retain({}, {"a": 1.0})
