"""Retain: the mean over tasks of score over reference score.

    Retain = mean over tasks of (score of the row / score of the reference row)

A mean of ratios, not a ratio of means. Its interval is in workflows/stats/sampling.py.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Scores = Mapping[str, float | Floats]


def retain(scores: Scores, reference: Scores) -> Floats:
    """The Retain of one run, or of many at once.

    Args:
        scores: Task -> score, or scores of any shape (..., B).
        reference: Task -> score of the reference, or scores (B,); same tasks or more.

    Raises:
        ValueError: A task is missing, or a reference score is not positive.
    """
    if not scores:
        raise ValueError("Retain needs at least one task")
    for task in scores:
        if not np.all(np.asarray(reference.get(task, 0.0)) > 0):
            raise ValueError(f"Retain needs a positive reference score of task '{task}'")
    ratios = sum(value / reference[task] for task, value in scores.items())
    return np.asarray(ratios / len(scores), dtype=np.float64)
