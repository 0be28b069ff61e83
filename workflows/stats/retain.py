"""Retain: the mean over tasks of score over reference score, with a paired interval.

    Retain = mean over tasks of (score of the row / score of the reference row)

A mean of ratios, not a ratio of means. The interval resamples the items of each task, the same
items for the row and for the reference, so that what both get wrong cancels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Retain:
    """Retain of one row, fractions.

    Args:
        value: Mean over seeds of the mean over tasks of the ratio.
        std: Standard deviation over seeds; None with a single run.
        low: Lower end of the 95 % interval; None without items.
        high: Upper end.
    """

    value: float
    std: float | None
    low: float | None
    high: float | None


def retain(scores: Mapping[str, float], reference: Mapping[str, float]) -> float:
    """The Retain of one run.

    Args:
        scores: Task -> score.
        reference: Task -> score of the reference, same tasks or more.

    Raises:
        ValueError: A task is missing, or a reference score is not positive.
    """
    if not scores:
        raise ValueError("Retain needs at least one task")
    for task in scores:
        if not reference.get(task, 0) > 0:
            raise ValueError(f"Retain needs a positive reference score of task '{task}'")
    return float(np.mean([value / reference[task] for task, value in scores.items()]))


def retain_interval(
    runs: Sequence[Mapping[str, Floats]],
    reference: Mapping[str, Floats],
    resamples: int = 2000,
    seed: int = 0,
) -> tuple[float, float]:
    """95 % percentile interval of Retain by a paired bootstrap over items, seeds on top.

    Each resample draws seeds with replacement, then items with replacement within each task; row
    and reference keep the same items.

    Args:
        runs: Per seed: task -> item values (n,).
        reference: Task -> item values (n,), the same items in the same order.
        resamples: Number of bootstrap samples.
        seed: Of the generator.

    Returns:
        Lower and upper end.

    Raises:
        ValueError: Item counts of row and reference differ.
    """
    rng = np.random.default_rng(seed)
    ratios = np.zeros((len(runs), resamples))
    tasks = list(runs[0])
    for task in tasks:
        base = reference[task]
        stacked = np.stack([run[task] for run in runs])
        if stacked.shape[1] != len(base):
            raise ValueError(f"task '{task}': {stacked.shape[1]} items, the reference {len(base)}")
        weights = rng.multinomial(len(base), np.full(len(base), 1 / len(base)), size=resamples)
        # Where the reference solves nothing there is no ratio; the whole sample stands in.
        weights[weights @ base == 0] = 1
        ratios += stacked @ weights.T / (weights @ base)
    ratios /= len(tasks)
    drawn = rng.integers(len(runs), size=(resamples, len(runs)))
    means = ratios[drawn, np.arange(resamples)[:, None]].mean(axis=1)
    low, high = np.quantile(means, [0.025, 0.975])
    return float(low), float(high)


def summarise(
    runs: Sequence[Mapping[str, Floats]], reference: Mapping[str, Floats], stochastic: bool
) -> Retain:
    """Retain of a row over its seeds, with deviation and interval."""
    means = {task: float(values.mean()) for task, values in reference.items()}
    values = [retain({t: float(v.mean()) for t, v in run.items()}, means) for run in runs]
    std = float(np.std(values, ddof=1)) if stochastic and len(values) > 1 else None
    low, high = retain_interval(runs, reference)
    return Retain(float(np.mean(values)), std, low, high)
