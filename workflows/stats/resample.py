"""Paired bootstrap of scores and Retain: one set of resampled items for every line of a table.

The items of a resample depend on the seed and the task only. Every line sees the same items, also a
line of another results folder, and a new row in a table changes no interval. Seeds come on top
(``sampling.py``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from workflows.stats.retain import Floats, retain
from workflows.stats.sampling import Sample, generator, sample_of, sampling_error

Run = Mapping[str, Floats]

RETAIN = "retain"
RESAMPLES, SEED = 10_000, 0
# Entries of an array of counts: resamples are drawn in blocks, to bound memory.
BLOCK = 4_000_000


def bootstrap(
    lines: Mapping[str, Sequence[Run]],
    reference: str,
    retain_tasks: Sequence[str],
    resamples: int = RESAMPLES,
    seed: int = SEED,
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
    error = sample.error - replace(sampling_error(runs, resampled), by_items=np.zeros(1))
    return replace(sample, error=error, draws=error.draws(0, "mean of tasks", name))


def _above_zero(values: Floats) -> Floats:
    """The values; the smallest above 0 in place of a 0, by which nothing can be divided."""
    return np.maximum(values, values[values > 0].min(initial=1.0))


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
    n, rng = len(base), generator(seed, "items", task)
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
