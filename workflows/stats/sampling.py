"""What other items and other seeds would make of a measure, and of the difference of two.

Its values on resampled items (``resample.py``) tell what other items would make of it.
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
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import cache, lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from workflows.stats.retain import Floats


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


def sample_of(points: Floats, replicates: Floats, seed: int, *purpose: str) -> Sample:
    """A line's measure from its runs."""
    error = sampling_error(points, replicates)
    return Sample(points, replicates, error, error.draws(seed, *purpose))


def sampling_error(points: Floats, replicates: Floats) -> SamplingError:
    """Sampling error of the mean over runs."""
    by_items, runs = replicates.mean(axis=0), len(points)
    if runs == 1:
        return SamplingError(by_items)
    within = (replicates - by_items).var(axis=1).sum() / (runs - 1) / runs
    return SamplingError(by_items, float(points.var(ddof=1)) / runs, float(within), runs - 1)


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


def difference(first: Sample, second: Sample) -> Floats:
    """Draws of ``second`` - ``first`` (B,), for two lines with different runs."""
    return (second.error - first.error).draws(0, "difference")


def paired_difference(first: Sample, second: Sample) -> Floats:
    """Draws of ``second`` - ``first`` (B,), for two lines with the same seeds in the same order.

    Run n of one line is compared with run n of the other, so what a seed does to both cancels.
    """
    points, replicates = second.points - first.points, second.replicates - first.replicates
    return sampling_error(points, replicates).draws(0, "difference")


def interval(draws: Floats) -> tuple[float, float]:
    """95 % percentile interval; sums of equal terms differ by their order, so ends are rounded."""
    low, high = np.quantile(draws, [0.025, 0.975]).round(12)
    return float(low), float(high)


@cache
def _student(freedom: float, number: int) -> Floats:
    """Evenly spaced quantiles of the t distribution: random draws would be noisy in its tails."""
    shares = (np.arange(number) + 0.5) / number
    return np.asarray(stats.t.ppf(shares, freedom), dtype=np.float64)


# Cached, because all differences of a table share one order.
@lru_cache(maxsize=8)
def _order(number: int, seed: int, *purpose: str) -> NDArray[np.int64]:
    """A permutation of ``number``; every purpose has another."""
    return generator(seed, *purpose).permutation(number)


def generator(seed: int, *purpose: str) -> np.random.Generator:
    """A random generator; every purpose has another."""
    digest = hashlib.sha256("/".join(purpose).encode()).digest()
    return np.random.default_rng([seed, int.from_bytes(digest[:8], "big")])
