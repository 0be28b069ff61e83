"""What a model chose for an item, and what a guess would score."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

# Nothing was chosen: the model wrote a text, or one continuation was scored alone.
NO_CHOICE = -1
# Metric -> what lm-eval divides the log-likelihood of a choice by before it takes the largest.
_LENGTHS: Mapping[str, Callable[[str], float]] = {
    "acc": lambda text: 1.0,
    "acc_norm": lambda text: float(len(text)),
    "acc_bytes": lambda text: float(len(text.encode("utf-8"))),
}


def chosen(task: Any, sample: Mapping[str, Any], metric: str) -> int:
    """Number of the choice that a metric takes as the model's answer, or ``NO_CHOICE``.

    Args:
        task: Of lm-eval.
        sample: lm-eval's log of the item.
        metric: Name of the metric.
    """
    if task.OUTPUT_TYPE != "multiple_choice":
        return NO_CHOICE
    choices = task.doc_to_choice(sample["doc"])
    scores = np.array([float(pair[0]) for pair in sample["filtered_resps"]])
    if metric == "acc_mutual_info":
        # As many again follow, without their context.
        return int(np.argmax(scores[: len(choices)] - scores[len(choices) :]))
    length = _LENGTHS.get(metric, _LENGTHS["acc"])
    lengths = np.array([length(choice) for choice in choices])
    return int(np.argmax(scores[: len(choices)] / lengths))


def guess(task: Any, sample: Mapping[str, Any], metric: str) -> float:
    """Probability that a random choice is right; 0 where the metric takes no choice."""
    if task.OUTPUT_TYPE != "multiple_choice" or metric not in {*_LENGTHS, "acc_mutual_info"}:
        return 0.0
    right = sample["target"] if isinstance(sample["target"], list) else [sample["target"]]
    return len(set(map(str, right))) / len(task.doc_to_choice(sample["doc"]))
