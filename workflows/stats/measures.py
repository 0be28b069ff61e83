"""Measures beside Retain, each paired with the reference item by item.

    Above chance = mean over tasks of (score - chance) / (reference score - chance)
                 = mean over tasks of 1 + (score - reference score) / (reference score - chance)
    flips   = mean over tasks of the share of items that one of both has right, the other wrong
            = lost (right in the reference alone) + won (right in the row alone)
    changed = mean over tasks of the share of items with another chosen answer

Retain has no zero: who guesses keeps much of it (half on the demo's tasks, more where the reference
itself is near chance). Above chance is 0 for a row that guesses and 1 for one that equals the
reference. Equal scores hide items lost and won; flips and changed answers show them (Dutta et al.,
Accuracy is Not All You Need, arXiv 2407.09141).

Intervals use the resampled items of Retain (resample.py). The reference's lead over chance is
resampled too. Where it falls below a quarter of the lead on all items, that quarter divides the
distance to the reference; ``small_leads`` says how often.

Above chance may be over other tasks than Retain: over those of ``measure_tasks`` with signal. Then
``above_chance_retain`` is the same over tasks of the Retain alone, so that a reader can tell a
change of measure from a change of tasks.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workflows.stats.resample import SEED, Run, by_line, resample_means
from workflows.stats.retain import Floats, Scores
from workflows.stats.sampling import Sample

MEASURES = ABOVE, ABOVE_RETAIN, FLIPS, LOST, WON, CHANGED = (
    "above_chance", "above_chance_retain", "flips", "lost", "won", "changed",
)  # fmt: skip
# A task has signal if the reference leads chance by more standard errors than this.
ERRORS = 2.0
# The smallest lead that a resample divides by, as a share of the lead.
LEAST = 0.25

# Task -> chosen answer of each item, (n,).
Choices = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class Measures:
    """The measures of one panel.

    Args:
        samples: Measure -> line -> sample. A measure without a task is missing.
        tasks: Measure -> tasks of its mean.
        small_leads: Form of Above chance -> share of the resamples in which a lead over chance was
            below a quarter.
    """

    samples: Mapping[str, Mapping[str, Sample]]
    tasks: Mapping[str, Sequence[str]]
    small_leads: Mapping[str, float]


def above_chance(
    scores: Scores,
    reference: Scores,
    chances: Mapping[str, float],
    least: Mapping[str, float] | None = None,
) -> Floats:
    """Above chance of one run, or of many at once: 1 + (score - reference) / lead over chance.

    Args:
        scores: Task -> score, or scores of any shape (..., B).
        reference: Task -> score of the reference, or scores (B,); same tasks or more.
        chances: Task -> score of a guess; same tasks or more.
        least: Task -> the smallest lead that divides; same tasks or more. None: 0.

    Raises:
        ValueError: There is no task, or the reference does not lead chance on one.
    """
    if not scores:
        raise ValueError("Above chance needs at least one task")
    shares = []
    for task, value in scores.items():
        lead = np.maximum(reference[task] - chances[task], least[task] if least else 0.0)
        if not np.all(lead > 0):
            raise ValueError(f"the reference is not above chance on '{task}'")
        shares.append(1 + (value - reference[task]) / lead)
    return np.asarray(sum(shares) / len(shares), dtype=np.float64)


def has_signal(values: Floats, chance: float) -> bool:
    """Whether a reference leads chance by more than two standard errors of its mean.

    Args:
        values: Of its items, (n,).
        chance: Score of a guess.
    """
    if len(values) < 2:
        return False
    error = float(values.std(ddof=1)) / math.sqrt(len(values))
    return float(values.mean()) - chance > ERRORS * error


def measure(
    lines: Mapping[str, Sequence[Run]],
    choices: Mapping[str, Sequence[Choices]],
    samples: Mapping[str, Mapping[str, Sample]],
    reference: str,
    tasks: Sequence[str],
    retain_tasks: Sequence[str],
    chances: Mapping[str, float],
) -> Measures:
    """Every measure of every line.

    Args:
        lines: Name of a line -> its runs, each task -> item values (n,).
        choices: Name of a line -> the same runs, each task -> chosen answers (n,).
        samples: Of :func:`workflows.stats.resample.bootstrap` with the same lines and its seed
            ``SEED``.
        reference: The line that all are compared with. Items are compared with its first run.
        tasks: Those that may enter a mean.
        retain_tasks: Those of the Retain.
        chances: Task -> score of a guess, where it is known.
    """
    runs = [run for line in lines.values() for run in line]
    answers = [run for line in choices.values() for run in line]
    base = {task: np.mean([run[task] for run in lines[reference]], axis=0) for task in tasks}
    right = [task for task in tasks if all(_is_binary(run[task]) for run in runs)]
    signal = [t for t in tasks if t in chances and has_signal(base[t], chances[t])]
    of_retain = [t for t in signal if t in retain_tasks]
    used = {
        ABOVE: signal,
        ABOVE_RETAIN: of_retain if of_retain != signal else [],
        FLIPS: right, LOST: right, WON: right,
        CHANGED: [t for t in tasks if all(t in run for run in answers)],
    }  # fmt: skip
    values: dict[str, tuple[Floats, Floats]] = {}
    small: dict[str, float] = {}
    for name in (n for n in (ABOVE, ABOVE_RETAIN) if used[n]):
        points, drawn, small[name] = _above(lines, samples, reference, used[name], chances)
        values[name] = points, drawn
    resamples = len(samples[tasks[0]][reference].draws)
    totals = {
        name: (np.zeros(len(runs)), np.zeros((len(runs), resamples)))
        for name in (LOST, WON, CHANGED)
        if used[name]
    }
    for task in dict.fromkeys([*right, *used[CHANGED]]):
        items: dict[str, Floats] = {}
        if task in right:
            own, other = np.stack([run[task] for run in runs]), lines[reference][0][task]
            items[LOST], items[WON] = (1 - own) * other, own * (1 - other)
        if task in used[CHANGED]:
            chosen = np.stack([run[task] for run in answers])
            items[CHANGED] = (chosen != choices[reference][0][task]).astype(np.float64)
        stacked = np.concatenate(list(items.values()))
        means, _ = resample_means(stacked, base[task], resamples, SEED, task)
        for name, replicates in zip(items, np.split(means, len(items)), strict=True):
            for total, part in zip(
                totals[name], (items[name].mean(axis=1), replicates), strict=True
            ):
                total += part / len(used[name])
    values |= totals
    if right:
        values[FLIPS] = totals[LOST][0] + totals[WON][0], totals[LOST][1] + totals[WON][1]
    samples_of = {n: by_line(lines, *values[n], SEED, n) for n in used if n in values}
    return Measures(samples_of, used, small)


def _above(
    lines: Mapping[str, Sequence[Run]],
    samples: Mapping[str, Mapping[str, Sample]],
    reference: str,
    tasks: Sequence[str],
    chances: Mapping[str, float],
) -> tuple[Floats, Floats, float]:
    """Above chance of all runs (R,) and on resampled items (R, B); share of small leads."""
    base = {task: samples[task][reference].value for task in tasks}
    drawn = {task: samples[task][reference].error.by_items for task in tasks}
    least = {task: LEAST * (base[task] - chances[task]) for task in tasks}
    small = np.any([drawn[task] - chances[task] < least[task] for task in tasks], axis=0).mean()
    points, replicates = [], []
    for line in lines:
        scores = {task: samples[task][line].points for task in tasks}
        redrawn = {task: samples[task][line].replicates for task in tasks}
        points.append(above_chance(scores, base, chances, least))
        replicates.append(above_chance(redrawn, drawn, chances, least))
    return np.concatenate(points), np.concatenate(replicates), float(small)


def _is_binary(values: Floats) -> bool:
    return bool(np.isin(values, [0.0, 1.0]).all())
