"""Paired bootstrap of scores and Retain: one set of resampled items for every line of a table.

The items of a resample depend on the seed and the task only. Every line sees the same items, also a
line of another results folder, and a new row in a table changes no interval.

Seeds come on top. The S runs of a line differ by their seeds, and by items that are solved under
one seed and not under another. The variance between runs, s^2, holds both. S runs say little about
the error of their mean, so it is drawn from a t distribution; the items' part is what all runs
share:

    draw = items + sqrt(s^2 / S) t,   t ~ Student(S - 1)
    items = average + sqrt(max(0, 1 - w / V)) (mean over runs in this resample - average)

"average" is the mean of that mean over all resamples, and V its variance. Single runs solve single
items by luck: that is in s^2 / S and again in V. w is this common part: the variance between runs
on resampled items, over S. It would count twice, so the deviations of the items are shrunk until
their variance is V - w. For the difference of two lines with different runs, s^2 / S and w are sums
over both, and t has Welch's degrees of freedom,

    (a + b)^2 / (a^2 / (S_a - 1) + b^2 / (S_b - 1)),   a, b = s^2 / S of each, rounded down.

Resampling the runs themselves would give intervals that are too narrow: a bootstrap of three values
never goes beyond their extremes. A single run has no such term; its interval covers items only.
Where its seed matters and it is compared with a line of several runs, the difference takes that
line's s^2 for it too, with that line's degrees of freedom: an interval must not be narrower because
one side ran less.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from workflows.stats.retain import Floats, retain

Run = Mapping[str, Floats]

RETAIN = "retain"
RESAMPLES = 10_000
# Entries of an array of counts: resamples are drawn in blocks, to bound memory.
BLOCK = 4_000_000


@dataclass(frozen=True)
class SamplingError:
    """Sampling error of a mean over runs, or of the difference of two means.

    Args:
        by_items: Its value on resampled items, (B,).
        between: s^2 / S, zero of a single run.
        within: The part of ``between`` that the items alone make; ``by_items`` holds it too.
        freedom: Degrees of freedom of ``between``.
        unknown: Whether ``between`` is not known: a single run, whose seed matters.
    """

    by_items: Floats
    between: float = 0.0
    within: float = 0.0
    freedom: float = math.inf
    unknown: bool = False

    def __sub__(self, other: SamplingError) -> SamplingError:
        """The error of a difference of two lines with different runs on the same items."""
        one, two = self._with_seeds_of(other), other._with_seeds_of(self)
        between, within = one.between + two.between, one.within + two.within
        doubt = sum(part.between**2 / part.freedom for part in (one, two))
        freedom = math.floor(round(between**2 / doubt, 6)) if doubt else math.inf
        if one is not self or two is not other:
            freedom = min(one.freedom, two.freedom)
        return SamplingError(one.by_items - two.by_items, between, within, freedom)

    def _with_seeds_of(self, other: SamplingError) -> SamplingError:
        """The error of one more run of the other, as far as seeds go, if its own is not known."""
        if not self.unknown or not other.between:
            return self
        runs = other.freedom + 1
        between, within = runs * other.between, runs * other.within
        return replace(self, between=between, within=within, freedom=other.freedom)

    def draws(self, seed: int, *purpose: str) -> Floats:
        """Values with the errors of items and seeds, (B,); see the formula at the top."""
        if not self.between:
            return self.by_items
        mean = self.by_items.mean()
        apart = self.by_items - mean
        shared = max(0.0, 1 - self.within / (apart.var() or math.inf))
        errors = _student(self.freedom, len(apart))[_order(len(apart), seed, *purpose)]
        return np.asarray(mean + np.sqrt(shared) * apart + np.sqrt(self.between) * errors)


@dataclass(frozen=True)
class Sample:
    """One measure of one line.

    Args:
        points: Value of each run, (S,).
        replicates: Value of each run on resampled items, (S, B).
        error: Sampling error of the mean over the runs.
        draws: The line's value with the errors of items and seeds, (B,).
    """

    points: Floats
    replicates: Floats
    error: SamplingError
    draws: Floats

    @property
    def value(self) -> float:
        """Mean over the runs."""
        return float(self.points.mean())

    @property
    def std(self) -> float | None:
        """Standard deviation over the runs; None of a single one."""
        return float(self.points.std(ddof=1)) if len(self.points) > 1 else None


def without_seeds(
    samples: Mapping[str, Mapping[str, Sample]], lines: Collection[str]
) -> dict[str, dict[str, Sample]]:
    """The samples of all measures, with the seeds of some lines as not known."""

    def mark(name: str, sample: Sample) -> Sample:
        error = replace(sample.error, unknown=name in lines)
        return replace(sample, error=error)

    return {
        measure: {name: mark(name, sample) for name, sample in by_line.items()}
        for measure, by_line in samples.items()
    }


def items_only(first: Sample, second: Sample) -> bool:
    """Whether the interval of a difference covers no seeds of a line whose seed matters."""
    pairs = (first.error, second.error), (second.error, first.error)
    return any(one.unknown and not other.between for one, other in pairs)


def bootstrap(
    lines: Mapping[str, Sequence[Run]],
    reference: str,
    retain_tasks: Sequence[str],
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> dict[str, dict[str, Sample]]:
    """Resample every task once for all lines.

    Args:
        lines: Name of a line -> its runs, each task -> item values (n,).
        reference: The line whose scores, averaged over its runs, are 1. Their error enters what is
            the difference to this line, not the Retain of others.
        retain_tasks: Tasks whose scores over the reference's enter Retain.
        resamples: B.
        seed: Of all draws.

    Returns:
        ``"retain"`` and each task -> line -> sample.

    Raises:
        ValueError: Runs differ in tasks or items, or the reference solves nothing of a task that
            enters Retain.
    """
    first = next(iter(lines.values()))[0]
    points, replicates, base, base_replicates = {}, {}, {}, {}
    for task in dict.fromkeys([*retain_tasks, *first]):
        values = _stack(lines, task)
        mean = np.stack([run[task] for run in lines[reference]]).mean(axis=0)
        points[task], base[task] = values.mean(axis=1), float(mean.mean())
        replicates[task], base_means = resample_means(values, mean, resamples, seed, task)
        # Several runs make items of the reference fractions, so its mean in a resample may be tiny
        # and a ratio to it huge: half an item counts at least.
        base_replicates[task] = np.maximum(base_means, 0.5 / len(mean))
    points[RETAIN] = retain({task: points[task] for task in retain_tasks}, base)
    replicates[RETAIN] = retain({task: replicates[task] for task in retain_tasks}, base_replicates)
    return {
        measure: by_line(lines, values, replicates[measure], seed, measure)
        for measure, values in points.items()
    }


def by_line(
    lines: Mapping[str, Sequence[Any]], points: Floats, replicates: Floats, seed: int, measure: str
) -> dict[str, Sample]:
    """Line -> sample of a measure, from its values for all runs one after the other.

    Args:
        lines: Name of a line -> its runs.
        points: Values of the runs (R,).
        replicates: Values on resampled items (R, B).
        seed: Of all draws.
        measure: Name of the measure.
    """
    samples, start = {}, 0
    for line, runs in lines.items():
        part = slice(start, start + len(runs))
        samples[line] = sample_of(points[part], replicates[part], seed, measure, line)
        start = part.stop
    return samples


def mean_of_tasks(
    samples: Mapping[str, Mapping[str, Sample]],
    name: str,
    tasks: Sequence[str],
    reference: str | None = None,
) -> Sample:
    """A line's mean over tasks of its score, or of score over score of another line.

    Args:
        samples: Of :func:`bootstrap`; the resampled items are those.
        name: The line.
        tasks: Tasks of the mean.
        reference: The line whose scores, averaged over its runs, are 1; its seeds enter the error
            too. None: scores as they are.

    Raises:
        ValueError: The reference solves nothing of a task.
    """
    points, replicates, others = {}, {}, {}
    base, base_replicates = dict.fromkeys(tasks, 1.0), {task: np.ones(1) for task in tasks}
    for task in tasks:
        points[task] = samples[task][name].points
        replicates[task] = samples[task][name].replicates
        if reference is not None:
            other = others[task] = samples[task][reference]
            base[task], by_items = other.value, other.error.by_items
            # Only the reference of ``bootstrap`` is always above 0.
            base_replicates[task] = _above_zero(by_items)
    means, by_item = retain(points, base), retain(replicates, base_replicates)
    sample = sample_of(means, by_item, 0, "mean of tasks", name)
    if reference in (None, name) or len(next(iter(others.values())).points) == 1:
        return sample
    # What another seed of the reference would make of the mean.
    runs = retain(
        {task: points[task].mean() for task in tasks},
        {task: _above_zero(other.points) for task, other in others.items()},
    )
    resampled = retain(
        {task: replicates[task].mean(axis=0) for task in tasks},
        {task: _above_zero(other.replicates) for task, other in others.items()},
    )
    error = sample.error - replace(_sampling_error(runs, resampled), by_items=np.zeros(1))
    return replace(sample, error=error, draws=error.draws(0, "mean of tasks", name))


def _above_zero(values: Floats) -> Floats:
    """The values; the smallest above 0 in place of a 0, by which nothing can be divided."""
    return np.maximum(values, values[values > 0].min(initial=1.0))


def difference(first: Sample, second: Sample) -> Floats:
    """Draws of ``second`` - ``first`` (B,), for two lines with different runs."""
    return (second.error - first.error).draws(0, "difference")


def paired_difference(first: Sample, second: Sample) -> Floats:
    """Draws of ``second`` - ``first`` (B,), for two lines with the same seeds in the same order.

    Run n of one line is compared with run n of the other, so what a seed does to both cancels.
    """
    points, replicates = second.points - first.points, second.replicates - first.replicates
    return _sampling_error(points, replicates).draws(0, "difference")


def interval(draws: Floats) -> tuple[float, float]:
    """95 % percentile interval; sums of equal terms differ by their order, so ends are rounded."""
    low, high = np.quantile(draws, [0.025, 0.975]).round(12)
    return float(low), float(high)


def _stack(lines: Mapping[str, Sequence[Run]], task: str) -> Floats:
    """Item values of one task, (runs, n)."""
    rows: list[Floats] = []
    for name, runs in lines.items():
        for run in runs:
            if task not in run:
                raise ValueError(f"'{name}' was not scored on task '{task}'")
            if rows and len(run[task]) != len(rows[0]):
                raise ValueError(
                    f"task '{task}': '{name}' has {len(run[task])} items, others {len(rows[0])}"
                )
            rows.append(run[task])
    return np.stack(rows)


def resample_means(
    values: Floats, base: Floats, resamples: int, seed: int, task: str
) -> tuple[Floats, Floats]:
    """Means over resampled items of each run (R, B) and of the reference (B,).

    Args:
        values: One per run and item, (R, n).
        base: The reference's, (n,).
        resamples: B.
        seed: Of all draws. With the task it decides which items each resample draws.
        task: Name of the task.
    """
    n, rng = len(base), _generator(seed, "items", task)
    means, bases = np.empty((len(values), resamples)), np.empty(resamples)
    start = 0
    for counts in _counts(n, resamples, rng):
        if base.any():
            # A resample in which the reference solves nothing has no ratio: take all items once.
            counts[counts @ base == 0] = 1
        part = slice(start, start + len(counts))
        means[:, part], bases[part] = values @ counts.T / n, counts @ base / n
        start = part.stop
    return means, bases


def _counts(n: int, resamples: int, rng: np.random.Generator) -> Iterator[Floats]:
    """How often each item is drawn, (block, n): multinomial, in blocks of resamples."""
    block = max(1, BLOCK // n)
    for start in range(0, resamples, block):
        size = min(block, resamples - start)
        picks = rng.integers(n, size=(size, n)) + n * np.arange(size)[:, None]
        yield np.bincount(picks.ravel(), minlength=size * n).reshape(size, n).astype(np.float64)


def sample_of(points: Floats, replicates: Floats, seed: int, *purpose: str) -> Sample:
    """A line's measure from its runs."""
    error = _sampling_error(points, replicates)
    return Sample(points, replicates, error, error.draws(seed, *purpose))


def _sampling_error(points: Floats, replicates: Floats) -> SamplingError:
    """Sampling error of the mean over runs."""
    by_items, runs = replicates.mean(axis=0), len(points)
    if runs == 1:
        return SamplingError(by_items)
    within = (replicates - by_items).var(axis=1).sum() / (runs - 1) / runs
    return SamplingError(by_items, float(points.var(ddof=1)) / runs, float(within), runs - 1)


@cache
def _student(freedom: float, number: int) -> Floats:
    """Evenly spaced quantiles of the t distribution: random draws would be noisy in its tails."""
    shares = (np.arange(number) + 0.5) / number
    return np.asarray(stats.t.ppf(shares, freedom), dtype=np.float64)


# Cached, because all differences of a table share one order.
@lru_cache(maxsize=8)
def _order(number: int, seed: int, *purpose: str) -> NDArray[np.int64]:
    """A permutation of ``number``; every purpose has another."""
    return _generator(seed, *purpose).permutation(number)


def _generator(seed: int, *purpose: str) -> np.random.Generator:
    """A random generator; every purpose has another."""
    digest = hashlib.sha256("/".join(purpose).encode()).digest()
    return np.random.default_rng([seed, int.from_bytes(digest[:8], "big")])
