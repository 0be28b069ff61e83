"""The bootstrap: against slow loops and scipy, and how often its intervals hold the truth."""

from __future__ import annotations

import time
from functools import cache

import numpy as np
import pytest
from scipy import stats

from workflows.stats.resample import RETAIN, bootstrap, mean_of_tasks
from workflows.stats.sampling import Sample, difference, interval, paired_difference

Run = dict[str, np.ndarray]


def items(n: int, right: int) -> np.ndarray:
    """n items, the first ``right`` of them solved."""
    return (np.arange(n) < right).astype(float)


def sample(runs: list[Run], base: Run, resamples: int = 2000, seed: int = 0) -> Sample:
    """Retain of a line against ``base``."""
    lines = {"dense": [base], "row": runs}
    return bootstrap(lines, "dense", list(base), resamples, seed)[RETAIN]["row"]


def test_the_reference_against_itself_is_exactly_one() -> None:
    base = {"a": items(50, 30), "b": items(40, 39)}
    own = sample([base], base)
    assert own.value == 1
    assert np.all(own.draws == 1)
    assert own.std is None


def test_points_over_seeds_by_hand() -> None:
    base = {"a": items(10, 8), "b": items(10, 5)}
    own = sample(
        [{"a": items(10, 6), "b": items(10, 5)}, {"a": items(10, 4), "b": items(10, 4)}], base
    )
    first, second = (6 / 8 + 5 / 5) / 2, (4 / 8 + 4 / 5) / 2
    assert own.points.tolist() == pytest.approx([first, second])
    assert own.value == pytest.approx((first + second) / 2)
    assert own.std == pytest.approx(abs(first - second) / 2**0.5)


def test_every_line_and_the_reference_see_the_same_items() -> None:
    """Wrong items of the row are wrong in the reference as well: their ratio never moves."""
    base = {"a": items(100, 80)}
    lines = {"dense": [base], "half": [{"a": base["a"] / 2}], "same": [base]}
    samples = bootstrap(lines, "dense", ["a"], 500)
    assert np.allclose(samples[RETAIN]["half"].draws, 0.5)
    assert np.array_equal(samples["a"]["dense"].draws, samples["a"]["same"].draws)
    assert samples["a"]["dense"].draws.std() == pytest.approx(np.sqrt(0.8 * 0.2 / 100), rel=0.1)


def test_against_a_slow_loop() -> None:
    """The same picks of items, one resample at a time."""
    from workflows.stats.sampling import generator

    rng = np.random.default_rng(3)
    base = {task: (rng.random(n) < 0.7).astype(float) for task, n in (("a", 30), ("b", 50))}
    run = {task: (rng.random(len(values)) < 0.5).astype(float) for task, values in base.items()}
    picks = {
        task: generator(0, "items", task).integers(len(v), size=(40, len(v)))
        for task, v in base.items()
    }
    slow = [
        np.mean([run[t][picks[t][b]].mean() / base[t][picks[t][b]].mean() for t in base])
        for b in range(40)
    ]
    assert sample([run], base, 40).draws == pytest.approx(slow)


def test_one_task_agrees_with_the_bootstrap_of_scipy() -> None:
    rng = np.random.default_rng(1)
    base = (rng.random(300) < 0.8).astype(float)
    run = np.where(rng.random(300) < 0.8, base, 1 - base)
    theirs = stats.bootstrap(
        (run, base), lambda a, b, axis: a.mean(axis) / b.mean(axis), paired=True, vectorized=True,
        n_resamples=20_000, method="percentile", rng=np.random.default_rng(2),
    ).confidence_interval  # fmt: skip
    ours = interval(sample([{"a": run}], {"a": base}, 20_000).draws)
    assert ours == pytest.approx((theirs.low, theirs.high), abs=0.004)


def test_pairing_narrows_the_interval() -> None:
    base = {"a": items(400, 200)}
    same_items, other_items = {"a": items(400, 180)}, {"a": np.roll(items(400, 180), 210)}
    near, far = (np.diff(interval(sample([run], base).draws)) for run in (same_items, other_items))
    assert near < 0.5 * far


def test_a_row_more_moves_no_interval() -> None:
    rng = np.random.default_rng(0)

    def run() -> Run:
        return {task: (rng.random(60) < 0.6).astype(float) for task in "ab"}

    few = {"dense": [run()], "x": [run(), run()]}
    many = {"new": [run()], **few}
    before = bootstrap(few, "dense", ["a", "b"], 200)
    after = bootstrap(many, "dense", ["a", "b"], 200)
    for measure in (RETAIN, "a", "b"):
        assert np.array_equal(before[measure]["x"].draws, after[measure]["x"].draws)


def test_seed_and_resamples_decide_every_bit() -> None:
    base, run = {"a": items(50, 40)}, {"a": np.roll(items(50, 30), 7)}
    lines = {"dense": [base], "row": [run, base]}
    first, again, other = (bootstrap(lines, "dense", ["a"], 100, seed) for seed in (0, 0, 1))
    assert np.array_equal(first[RETAIN]["row"].draws, again[RETAIN]["row"].draws)
    assert not np.array_equal(first[RETAIN]["row"].draws, other[RETAIN]["row"].draws)


def test_resamples_in_which_the_reference_solves_nothing_take_all_items() -> None:
    run = {"a": items(4, 1)}
    assert (sample([run], run).draws == 1).all()


def test_the_mean_of_several_reference_runs_counts_half_an_item_at_least() -> None:
    solved = [1, 1, 1, 0, 0, 0, 0, 0], [0, 0, 0, 1, 0, 0, 0, 0], [1, 1, 0, 0, 0, 0, 0, 0]
    runs = [{"a": np.array(run, dtype=float)} for run in solved]
    lines = {"dense": runs, "row": [{"a": np.ones(8)}]}
    assert bootstrap(lines, "dense", ["a"], 2000)[RETAIN]["row"].draws.max() == 16


def test_tasks_outside_the_retain_are_resampled_and_do_not_enter() -> None:
    base = {"a": items(50, 40), "b": np.zeros(20)}
    lines = {"dense": [base], "row": [{"a": items(50, 20), "b": items(20, 5)}]}
    samples = bootstrap(lines, "dense", ["a"], 100)
    assert samples[RETAIN]["row"].value == pytest.approx(0.5)
    assert samples["b"]["row"].value == 0.25
    assert (samples["b"]["dense"].draws == 0).all()


def test_seeds_of_the_reference_enter_a_mean_over_it_by_welch() -> None:
    """Where items are not at chance, what is left is the classical formula for a ratio."""
    lines = {
        "dense": [{"a": np.ones(50)}],
        "hero": [{"a": np.full(50, score)} for score in (0.5, 0.6, 0.7)],
        "row": [{"a": np.full(50, score)} for score in (0.40, 0.44)],
    }
    samples = bootstrap(lines, "dense", ["a"], 10_000)
    found = mean_of_tasks(samples, "row", ["a"], "hero")
    own = np.var([0.40 / 0.6, 0.44 / 0.6], ddof=1) / 2
    theirs = np.var([0.42 / 0.5, 0.42 / 0.6, 0.42 / 0.7], ddof=1) / 3
    freedom = int((own + theirs) ** 2 / (own**2 / 1 + theirs**2 / 2))
    width = stats.t.ppf(0.975, freedom) * (own + theirs) ** 0.5
    assert found.value == pytest.approx(0.42 / 0.6)
    assert interval(found.draws) == pytest.approx((0.7 - width, 0.7 + width), rel=1e-3)
    assert mean_of_tasks(samples, "row", ["a"], "dense").error.between < own + theirs
    assert mean_of_tasks(samples, "hero", ["a"], "hero").error.freedom == 2


def test_what_cannot_be_resampled_is_refused() -> None:
    base = {"a": items(10, 3)}
    with pytest.raises(ValueError, match="task 'a': 'row' has 9 items, others 10"):
        sample([{"a": items(9, 3)}], base)
    with pytest.raises(ValueError, match="'row' was not scored on task 'a'"):
        sample([{"b": items(9, 3)}], base)
    with pytest.raises(ValueError, match="positive reference score of task 'a'"):
        sample([base], {"a": np.zeros(10)})
    with pytest.raises(ValueError, match="at least one task"):
        bootstrap({"dense": [base]}, "dense", [])


# Task -> items; row -> what it is good at: y has seeds of its own, z those of x.
ITEMS = {"a": 120, "b": 150, "c": 90}
SKILLS = {
    "dense": (1.2, 0.8, 1.5), "x": (0.6, 0.3, 0.9), "y": (0.5, 0.4, 0.7), "z": (0.5, 0.4, 0.7),
}  # fmt: skip
TRIALS = 1000


def world(
    rng: np.random.Generator, seeds: int, between: float, together: float
) -> dict[str, list[Run]]:
    """Runs of every row on drawn items under drawn seeds.

    A run solves an item where the row's skill, what its seed does to it on this task, the item's
    size and the item's size under this seed add up to more than zero.

    Args:
        rng: Of every draw.
        seeds: Runs of each row but ``dense``, which has no seed.
        between: Standard deviation of what seeds do.
        together: Of an item's sizes under one seed; of its own: 1.
    """
    hard = {task: rng.normal(0, 1, n) for task, n in ITEMS.items()}
    shape = seeds, len(ITEMS)
    shifts = {"dense": np.zeros((1, len(ITEMS))), "x": rng.normal(0, between, shape)}
    shifts |= {"y": rng.normal(0, between, shape)}
    # z follows x where seeds matter, as the same code before and after an edit would.
    shifts |= {"z": 0.8 * shifts["x"] + 0.6 * rng.normal(0, between, shape)}
    own = dict.fromkeys(shifts, together) | {"dense": 0.0}
    return {
        row: [
            {
                task: (skill + by + hard[task] + rng.normal(0, own[row], n) > 0).astype(float)
                for (task, n), skill, by in zip(ITEMS.items(), SKILLS[row], run, strict=True)
            }
            for run in runs
        ]
        for row, runs in shifts.items()
    }


def truth(row: str, spread: float) -> float:
    """Retain of a row over all items and seeds."""
    shares = stats.norm.cdf(np.array(SKILLS[row]) / np.sqrt(1 + spread))
    return float(np.mean(shares / stats.norm.cdf(SKILLS["dense"])))


@cache
def covered(seeds: int, between: float, together: float) -> dict[str, float]:
    """How often intervals hold what they estimate: Retain of x, x - y, and x - z run by run."""
    rng = np.random.default_rng(11)
    x, y = (truth(row, between**2 + together**2) for row in "xy")
    hits = dict.fromkeys(("retain", "difference", "paired"), 0)
    for trial in range(TRIALS):
        lines = world(rng, seeds, between, together)
        samples = bootstrap(lines, "dense", list(ITEMS), 400, trial)[RETAIN]
        for name, draws, value in (
            ("retain", samples["x"].draws, x),
            ("difference", difference(samples["y"], samples["x"]), x - y),
            ("paired", paired_difference(samples["z"], samples["x"]), x - y),
        ):
            low, high = interval(draws)
            hits[name] += low <= value <= high
    return {name: count / TRIALS for name, count in hits.items()}


SPREADS = {
    "nothing but items": (0.0, 0.0),
    "seeds move single items": (0.0, 0.4),
    "seeds move a little": (0.1, 0.3),
    "seeds move much": (0.6, 0.3),
}


@pytest.mark.long
@pytest.mark.parametrize("what", ["retain", "difference", "paired"])
@pytest.mark.parametrize("spread", SPREADS.values(), ids=SPREADS)
def test_with_five_seeds_intervals_cover_as_often_as_they_say(
    spread: tuple[float, float], what: str
) -> None:
    assert 0.93 <= covered(5, *spread)[what] <= 0.97


@pytest.mark.long
@pytest.mark.parametrize("what", ["retain", "difference", "paired"])
def test_with_two_seeds_intervals_cover_no_less_than_they_say(what: str) -> None:
    """Two runs hardly tell how far seeds move: wide is right, narrow is wrong."""
    assert covered(2, 0.25, 0.3)[what] >= 0.94


@pytest.mark.long
def test_intervals_of_retain_over_three_tasks_cover_as_often_as_they_say() -> None:
    rng = np.random.default_rng(5)
    keep = {"a": 0.75, "b": 0.6, "c": 0.9}
    hits = 0
    for trial in range(1000):
        base = {task: (rng.random(150) < 0.8).astype(float) for task in keep}
        run = {task: values * (rng.random(150) < keep[task]) for task, values in base.items()}
        low, high = interval(sample([run], base, 600, trial).draws)
        hits += low <= np.mean(list(keep.values())) <= high
    assert 0.93 <= hits / 1000 <= 0.97


def test_ten_thousand_resamples_of_a_full_suite_take_seconds() -> None:
    """60 lines, 9 tasks of 300 items, three seeds each."""
    rng = np.random.default_rng(0)
    lines = {
        f"row {n}": [
            {f"task {t}": (rng.random(300) < 0.8).astype(float) for t in range(9)} for _ in range(3)
        ]
        for n in range(60)
    }
    start = time.process_time()
    bootstrap(lines, "row 0", [f"task {t}" for t in range(7)])
    assert time.process_time() - start < 20
