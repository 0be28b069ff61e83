"""Retain and its interval on numbers that a pencil can check."""

from __future__ import annotations

import numpy as np
import pytest

from workflows.stats.retain import retain, retain_interval, summarise


def items(n: int, right: int) -> np.ndarray:
    """n items, the first ``right`` of them solved."""
    return (np.arange(n) < right).astype(float)


def test_retain_is_a_mean_of_ratios() -> None:
    assert retain({"a": 0.4, "b": 0.9}, {"a": 0.5, "b": 0.9}) == pytest.approx((0.8 + 1.0) / 2)
    # A ratio of means would give 1.3 / 1.4.
    assert retain({"a": 0.4, "b": 0.9}, {"a": 0.5, "b": 0.9}) != pytest.approx(1.3 / 1.4)


def test_tasks_of_the_reference_that_are_not_asked_for_do_not_enter() -> None:
    assert retain({"a": 0.25}, {"a": 0.5, "b": 0.9}) == 0.5


@pytest.mark.parametrize("reference", [{}, {"a": 0.0}, {"a": float("nan")}, {"b": 1.0}])
def test_a_reference_without_a_positive_score_is_refused(reference: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="positive reference score of task 'a'"):
        retain({"a": 0.5}, reference)


def test_no_task_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one task"):
        retain({}, {"a": 1.0})


def test_the_reference_against_itself_is_exactly_one() -> None:
    base = {"a": items(50, 30), "b": items(40, 39)}
    kept = summarise([base], base, stochastic=False)
    assert (kept.value, kept.std, kept.low, kept.high) == (1.0, None, 1.0, 1.0)


def test_summary_over_seeds_by_hand() -> None:
    base = {"a": items(10, 8), "b": items(10, 5)}
    runs = [{"a": items(10, 6), "b": items(10, 5)}, {"a": items(10, 4), "b": items(10, 4)}]
    kept = summarise(runs, base, stochastic=True)
    first, second = (6 / 8 + 5 / 5) / 2, (4 / 8 + 4 / 5) / 2
    assert kept.value == pytest.approx((first + second) / 2)
    assert kept.std == pytest.approx(abs(first - second) / 2**0.5)
    assert kept.low < kept.value < kept.high


def test_a_single_seed_and_a_fixed_row_have_no_deviation() -> None:
    base = {"a": items(10, 8)}
    assert summarise([base], base, stochastic=True).std is None
    assert summarise([base, base], base, stochastic=False).std is None


def test_interval_is_deterministic_and_narrows_with_items() -> None:
    def width(n: int) -> float:
        base, run = {"a": items(n, 8 * n // 10)}, {"a": np.roll(items(n, 6 * n // 10), n // 5)}
        low, high = retain_interval([run], base)
        assert (low, high) == retain_interval([run], base)
        assert low < 0.75 < high
        return high - low

    assert width(4000) < 0.4 * width(400)


def test_pairing_narrows_the_interval() -> None:
    base = items(400, 200)
    same_items, other_items = items(400, 180), np.roll(items(400, 180), 210)
    widths = [
        np.diff(retain_interval([{"a": run}], {"a": base}))[0] for run in (same_items, other_items)
    ]
    assert widths[0] < 0.5 * widths[1]


def test_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    rng = np.random.default_rng(5)
    hits = 0
    for _ in range(200):
        base = (rng.random(200) < 0.8).astype(float)
        run = base * (rng.random(200) < 0.75)
        low, high = retain_interval([{"a": run}], {"a": base}, resamples=300)
        hits += low <= 0.75 <= high
    assert 180 <= hits <= 199


def test_seeds_that_differ_widen_the_interval() -> None:
    base = {"a": items(2000, 1600)}
    equal = [{"a": items(2000, 1200)}] * 2
    apart = [{"a": items(2000, 800)}, {"a": items(2000, 1600)}]
    (low, high), (wide_low, wide_high) = (retain_interval(r, base) for r in (equal, apart))
    assert wide_high - wide_low > 5 * (high - low)


def test_resamples_in_which_the_reference_solves_nothing_stay_finite() -> None:
    low, high = retain_interval([{"a": items(4, 1)}], {"a": items(4, 1)})
    assert np.isfinite([low, high]).all()


def test_different_items_are_refused() -> None:
    with pytest.raises(ValueError, match="task 'a': 9 items, the reference 10"):
        retain_interval([{"a": items(9, 3)}], {"a": items(10, 3)})
