"""When a number of ours agrees with the paper's: the one place that says so.

``agrees``: the paper's value lies in our 95 % interval; ``differs``: it does not; ``cannot be
compared``: the two do not measure the same thing, or too little is known to say.

Items. Both sides were scored on the same items: a copy of the paper's model would give the paper's
score. We have no copy: prompts, kernels and weights differ. No paired test is possible, because the
paper does not publish which items its models solve. Our interval over items stands for these
differences; the paper's own sampling error is not added. So ``agrees`` is no proof of equality, and
``differs`` means: the distance is larger than other items or other seeds would explain.

Seeds. Where a row trains or draws, our interval covers seeds if we ran several. The paper's value
depends on its seeds as well. Its standard error is s / sqrt(3) where it prints a deviation s over
three seeds. Where it prints none it is one run, and our s is its error. Both add in quadrature,

    paper in [ours - sqrt((ours - low)^2 + e^2), ours + sqrt((high - ours)^2 + e^2)],   e = t s.e.,

t being Student's 97.5 % quantile at the degrees of freedom of s; half a unit of the paper's last
digit is added. One run of ours does not cover seeds: outside its interval there is no verdict.
"""

from __future__ import annotations

from math import hypot, sqrt
from typing import NamedTuple

from scipy import stats

from workflows.report.paper.printed import SEEDS

AGREES, DIFFERS, CANNOT = "agrees", "differs", "cannot be compared"


class Paper(NamedTuple):
    """A printed number.

    Args:
        value: In percent.
        half: Half a unit of its last digit.
        std: Deviation over its three seeds; None where none is printed.
    """

    value: float
    half: float
    std: float | None = None


class Ours(NamedTuple):
    """A number of ours.

    Args:
        value: In percent, a mean over runs.
        low: Of its 95 % interval.
        high: Of its 95 % interval.
        runs: Seeds.
        std: Deviation over them; None of a single one.
        stochastic: Whether the row trains or draws.
    """

    value: float
    low: float
    high: float
    runs: int = 1
    std: float | None = None
    stochastic: bool = False


def verdict(paper: Paper, ours: Ours) -> tuple[str, str]:
    """``agrees``, ``differs`` or ``cannot be compared``, and why where that needs a word."""
    error = _seed_error(paper, ours)
    low = ours.value - hypot(ours.value - ours.low, error) - paper.half
    high = ours.value + hypot(ours.high - ours.value, error) + paper.half
    if low - 1e-9 <= paper.value <= high + 1e-9:
        return AGREES, ""
    if ours.stochastic and ours.runs == 1:
        return CANNOT, "one seed of ours; another seed may differ"
    return DIFFERS, ""


def _seed_error(paper: Paper, ours: Ours) -> float:
    """Half of the 95 % interval that the paper's seeds give its value; 0 without a seed."""
    if not ours.stochastic:
        return 0.0
    if paper.std is not None:
        return float(stats.t.ppf(0.975, SEEDS - 1)) * paper.std / sqrt(SEEDS)
    if ours.std is not None:
        return float(stats.t.ppf(0.975, ours.runs - 1)) * ours.std
    return 0.0
