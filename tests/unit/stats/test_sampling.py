"""Errors of items and of seeds: against formulas, and what pairs of runs share."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from tests.unit.stats.test_resample import items, sample
from workflows.stats.sampling import (
    SamplingError,
    difference,
    interval,
    items_only,
    paired_difference,
    without_seeds,
)


def test_an_end_that_is_zero_but_for_the_order_of_a_sum_is_zero() -> None:
    assert 0.1 + 0.2 - 0.3 > 0
    assert interval(np.array([0.1 + 0.2 - 0.3, 1.0, 1.0, 1.0] * 10)) == (0.0, 1.0)


def test_seeds_that_differ_widen_the_interval() -> None:
    base = {"a": items(2000, 1600)}
    equal = [{"a": items(2000, 1200)}] * 2
    apart = [{"a": items(2000, 800)}, {"a": items(2000, 1600)}]
    narrow, wide = (np.diff(interval(sample(runs, base).draws)) for runs in (equal, apart))
    assert wide > 5 * narrow


def test_equal_runs_differ_by_nothing_when_paired_and_by_their_seeds_when_not() -> None:
    base = {"a": items(400, 300)}
    line = sample([{"a": items(400, 100)}, {"a": items(400, 250)}, {"a": items(400, 180)}], base)
    assert (paired_difference(line, line) == 0).all()
    apart = difference(line, line)
    assert apart.mean() == pytest.approx(0, abs=0.02)
    assert np.ptp(interval(apart)) > 0.5


def test_paired_runs_share_what_a_seed_does_to_both() -> None:
    base = {"a": items(400, 300)}
    before = sample([{"a": items(400, right)} for right in (100, 200, 300)], base)
    after = sample([{"a": items(400, right)} for right in (110, 210, 310)], base)
    paired, apart = (np.ptp(interval(f(before, after))) for f in (paired_difference, difference))
    assert paired < 0.2 * apart
    assert paired_difference(before, after).mean() == pytest.approx(10 / 300, abs=0.003)


def test_runs_that_agree_on_every_item_have_the_t_interval_of_their_means() -> None:
    """Where items are not at chance, what is left is the classical formula."""
    scores = np.array([0.2, 0.5, 0.3, 0.4, 0.6])
    line = sample([{"a": np.full(50, score)} for score in scores], {"a": np.ones(50)}, 10_000)
    width = stats.t.ppf(0.975, 4) * scores.std(ddof=1) / 5**0.5
    assert interval(line.draws) == pytest.approx((0.4 - width, 0.4 + width), rel=1e-3)


def test_what_items_do_under_one_seed_is_not_counted_twice() -> None:
    """The error has items' part 4 + w and seeds' part s^2 / S = 9, in which w stands already."""
    rng = np.random.default_rng(0)
    error = SamplingError(
        rng.normal(0, np.sqrt(4 + 3), 40_000), between=9.0, within=3.0, freedom=200
    )
    assert error.draws(0, "here").var() == pytest.approx(4 + 9, rel=0.03)


def test_degrees_of_freedom_of_a_difference_are_those_of_welch() -> None:
    one, two, single = (
        SamplingError(np.zeros(1), between=3.0, freedom=4),
        SamplingError(np.zeros(1), between=5.0, freedom=2),
        SamplingError(np.ones(1)),
    )
    assert (one - two).freedom == int(8**2 / (3**2 / 4 + 5**2 / 2))
    assert (one - one).freedom == 8
    assert (one - single).freedom == 4
    assert (single - single).draws(0, "here") == [0]


def test_one_run_takes_the_seeds_of_several_that_it_is_compared_with() -> None:
    """With three runs of equal deviation s, a fourth moves by s: s^2 + s^2 / 3 in all."""
    scores = np.array([0.2, 0.5, 0.35])
    base = {"a": np.ones(50)}
    several, one = (
        sample([{"a": np.full(50, score)} for score in runs], base, 10_000)
        for runs in (scores, [0.4])
    )
    assert np.ptp(interval(difference(several, one))) < 1
    alone = without_seeds({"x": {"one": one}}, {"one"})["x"]["one"]
    assert items_only(alone, alone)
    assert not items_only(several, alone)
    width = stats.t.ppf(0.975, 2) * scores.std(ddof=1) * (1 + 1 / 3) ** 0.5
    for apart in (difference(several, alone), -difference(alone, several)):
        assert interval(apart) == pytest.approx((0.05 - width, 0.05 + width), rel=3e-3)
