"""Above chance, flips and changed answers, against values worked out by hand and by simulation."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from workflows.stats.measures import (
    ABOVE,
    ABOVE_RETAIN,
    CHANGED,
    FLIPS,
    LOST,
    WON,
    Measures,
    above_chance,
    has_signal,
    measure,
)
from workflows.stats.resample import RETAIN, bootstrap
from workflows.stats.sampling import interval

DENSE = {"a": [1, 1, 1, 0], "b": [1, 1, 1, 1, 0]}
ROW = {"a": [1, 0, 1, 1], "b": [1, 1, 0, 0, 0]}
ANSWERS = {"a": [0, 1, 2, 3], "b": [1, 1, 1, 1, 0]}
OTHERS = {"a": [0, 2, 2, 1], "b": [1, 1, 2, 2, 0]}


def arrays(values: dict[str, Any]) -> dict[str, Any]:
    return {task: np.array(of_task, dtype=float) for task, of_task in values.items()}


def resampled(
    lines: Any, choices: Any, reference: str, tasks: list[str], chances: Any, resamples: int,
    of_retain: list[str] | None = None,
) -> Measures:  # fmt: skip
    """The measures of lines on the resampled items of their Retain."""
    samples = bootstrap(lines, reference, tasks, resamples)
    return measure(lines, choices, samples, reference, tasks, of_retain or tasks, chances)


def tasks(values: Any) -> dict[str, Any]:
    """Items of two tasks, (2, n)."""
    return dict(zip("ab", values, strict=True))


def of(chances: dict[str, float], resamples: int = 20, **runs: Any) -> Measures:
    lines = {"dense": [DENSE], "row": [ROW]} | runs
    choices = {
        name: [OTHERS if name == "row" else ANSWERS] * len(runs) for name, runs in lines.items()
    }
    return resampled(
        {name: [arrays(run) for run in runs] for name, runs in lines.items()},
        {name: [arrays(run) for run in runs] for name, runs in choices.items()},
        "dense", ["a", "b"], chances, resamples,
    )  # fmt: skip


def value(measures: Measures, name: str, line: str = "row") -> float:
    return measures.samples[name][line].value


def test_lost_won_and_changed_items_are_counted() -> None:
    measures = of({})
    # Task a: one of four lost and one won; b: two of five lost.
    assert value(measures, LOST) == pytest.approx((1 / 4 + 2 / 5) / 2)
    assert value(measures, WON) == pytest.approx((1 / 4 + 0) / 2)
    assert value(measures, FLIPS) == pytest.approx((2 / 4 + 2 / 5) / 2)
    assert value(measures, CHANGED) == pytest.approx((2 / 4 + 2 / 5) / 2)
    assert ABOVE not in measures.samples
    assert all(value(measures, name, "dense") == 0 for name in (LOST, WON, FLIPS, CHANGED))


def test_a_reference_of_several_runs_is_their_mean() -> None:
    runs = [arrays({"a": [1, 1, 0, 0]}), arrays({"a": [1, 0, 0, 0]})]
    retain = bootstrap({"ref": runs, "row": runs[:1]}, "ref", ["a"], 50)[RETAIN]["row"]
    assert retain.value == pytest.approx(0.5 / 0.375)


def test_items_are_compared_with_the_first_run_of_the_reference() -> None:
    runs, chosen = [arrays(DENSE), arrays(ROW)], [arrays(ANSWERS), arrays(OTHERS)]
    found = resampled(
        {"dense": runs, "first": runs[:1], "second": runs[1:]},
        {"dense": chosen, "first": chosen[:1], "second": chosen[1:]},
        "dense", ["a", "b"], {}, 20,
    )  # fmt: skip
    for name in (LOST, WON, FLIPS, CHANGED):
        assert value(found, name, "first") == 0
        assert value(found, name, "second") == value(of({}), name) > 0


def test_flips_are_lost_and_won_items_in_every_draw() -> None:
    samples = of({}).samples
    both = samples[LOST]["row"].draws + samples[WON]["row"].draws
    assert samples[FLIPS]["row"].draws == pytest.approx(both)
    assert samples[WON]["row"].draws.any()


def test_a_task_in_which_a_row_has_parts_of_items_has_no_flips() -> None:
    measures = of({}, row=[{"a": [1, 0.5, 1, 1], "b": ROW["b"]}])
    assert measures.tasks[FLIPS] == ["b"]


def test_equal_scores_may_hide_other_answers() -> None:
    swapped = {"a": [0, 1, 1, 1], "b": [0, 1, 1, 1, 1]}
    measures = of({}, row=[swapped])
    assert np.mean(swapped["a"]) == np.mean(DENSE["a"])
    assert value(measures, FLIPS) == pytest.approx((2 / 4 + 2 / 5) / 2)


def test_above_chance_leaves_out_tasks_without_signal() -> None:
    many = {"a": [1, 1, 1, 0] * 50, "b": [1, 0] * 100}
    half = {"a": [1, 0, 1, 0] * 50, "b": [0, 0] * 100}
    measures = resampled(
        {"dense": [arrays(many)], "row": [arrays(half)]},
        {"dense": [{}], "row": [{}]},
        "dense", ["a", "b"], {"a": 0.25, "b": 0.5}, 50,
    )  # fmt: skip
    # Dense guesses on b. On a the row keeps 0.25 of 0.5 above chance.
    assert measures.tasks[ABOVE] == ["a"]
    assert value(measures, ABOVE) == pytest.approx(0.5)
    assert value(measures, ABOVE, "dense") == pytest.approx(1)
    assert CHANGED not in measures.samples
    assert measures.small_leads == {ABOVE: 0}


def test_above_chance_over_tasks_of_retain_stands_beside_that_over_more() -> None:
    dense, row = (
        [arrays({"a": [1] * 40, "b": [1] * 40})],
        [arrays({"a": [1, 0] * 20, "b": [1] * 40})],
    )
    chances = {"a": 0.25, "b": 0.5}

    def of_retain(names: list[str]) -> Measures:
        runs, nothing = {"dense": dense, "row": row}, {"dense": [{}], "row": [{}]}
        return resampled(runs, nothing, "dense", ["a", "b"], chances, 50, of_retain=names)

    measures = of_retain(["a"])
    assert (measures.tasks[ABOVE], measures.tasks[ABOVE_RETAIN]) == (["a", "b"], ["a"])
    assert value(measures, ABOVE) == pytest.approx((1 / 3 + 1) / 2)
    assert value(measures, ABOVE_RETAIN) == pytest.approx(1 / 3)
    assert ABOVE_RETAIN not in of_retain(["a", "b"]).samples
    assert ABOVE_RETAIN not in of_retain(["c"]).samples


def test_a_guess_is_zero_and_the_reference_is_one() -> None:
    chances = {"a": 0.25, "b": 0.5}
    reference = {"a": 0.75, "b": 0.6}
    assert above_chance(chances, reference, chances) == 0
    assert above_chance(reference, reference, chances) == 1
    assert above_chance({"a": 0.5, "b": 0.45}, reference, chances) == pytest.approx((0.5 - 0.5) / 2)


@pytest.mark.parametrize(
    ("scores", "reference", "words"),
    [
        ({}, {"a": 1.0}, "at least one task"),
        ({"a": 0.5}, {"a": 0.25}, "not above chance on 'a'"),
    ],
)
def test_what_has_no_value_is_refused(scores: Any, reference: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        above_chance(scores, reference, {"a": 0.25})


@pytest.mark.parametrize(
    ("right", "items", "chance", "expected"),
    [
        # Two standard errors of 30 of 100 are 0.0921.
        (30, 100, 0.20, True), (30, 100, 0.21, False), (25, 100, 0.25, False),
        (10, 100, 0.25, False), (1, 1, 0.25, False), (400, 400, 0.25, True),
    ],
)  # fmt: skip
def test_signal_is_a_lead_of_two_standard_errors(
    right: int, items: int, chance: float, expected: bool
) -> None:
    values = np.repeat([1.0, 0.0], [right, items - right])
    assert has_signal(values, chance) is expected


def test_small_leads_are_counted_and_bounded() -> None:
    run, none = [arrays({"a": [1, 1, 1, 1, 1, 0]})], [arrays({"a": [0] * 6})]
    lines = {"dense": run, "twin": run, "none": none}
    nothing: dict[str, Any] = {name: [{}] for name in lines}
    measures = resampled(lines, nothing, "dense", ["a"], {"a": 0.3}, 4000)
    # The lead is 0.533: below a quarter of it lie draws of at most 2 of 6 right.
    expected = sum(p for k, p in enumerate(binomial(6, 5 / 6)) if k <= 2)
    assert measures.small_leads[ABOVE] == pytest.approx(expected, abs=0.004)
    # A twin of the reference keeps all of it in every draw.
    for name in ("dense", "twin"):
        assert (measures.samples[ABOVE][name].replicates == 1).all()
    # A row without a right answer loses dense's share of right ones over its lead.
    losses = [k / 6 / max(k / 6 - 0.3, (5 / 6 - 0.3) / 4) for k in range(7)]
    lost = 1 - measures.samples[ABOVE]["none"].replicates.ravel()
    assert np.abs(lost[:, None] - losses).min(axis=1).max() < 1e-9


def binomial(n: int, p: float) -> list[float]:
    from scipy import stats

    return [float(stats.binom.pmf(k, n, p)) for k in range(n + 1)]


@pytest.mark.long
def test_intervals_cover_the_truth() -> None:
    """Items are drawn from known shares of right, lost, won and changed ones."""
    rng, trials = np.random.default_rng(5), 1000
    chance, right, lost, won, other = 0.25, 0.6, 0.15, 0.05, 0.1
    score = right - lost + won
    truth = {
        ABOVE: (score - chance) / (right - chance),
        FLIPS: lost + won,
        CHANGED: lost + won + other,
    }
    covered = dict.fromkeys(truth, 0)
    for _ in range(trials):
        # Two tasks of 300 items: what decides dense, and what the row makes of it.
        draws = rng.random((2, 2, 300))
        dense = (draws[0] < right).astype(float)
        is_lost = (dense == 1) & (draws[1] < lost / right)
        is_won = (dense == 0) & (draws[1] < won / (1 - right))
        is_other = (dense == 0) & ~is_won & (draws[1] > 1 - other / (1 - right))
        row = np.where(is_lost, 0.0, np.where(is_won, 1.0, dense))
        changed = (is_lost | is_won | is_other).astype(float)
        measures = resampled(
            {"dense": [tasks(dense)], "row": [tasks(row)]},
            {"dense": [tasks(0 * dense)], "row": [tasks(changed)]},
            "dense", ["a", "b"], {"a": chance, "b": chance}, 400,
        )  # fmt: skip
        for name, value in truth.items():
            low, high = interval(measures.samples[name]["row"].draws)
            covered[name] += low <= value <= high
    assert all(0.93 <= number / trials <= 0.97 for number in covered.values()), covered
