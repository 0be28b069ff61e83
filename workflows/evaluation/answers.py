"""What a model chose for an item, and what a guess would score."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
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

# Metrics of lm-eval's tasks by which an item is right or wrong, 1 or 0.
RIGHT_OR_WRONG = (*_LENGTHS, "acc_mutual_info", "exact_match", "em", "pass@1", "pass_at_1")


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
    """Probability that a random choice is right; 0 where the metric takes no choice.

    NaN where a function of the task's own makes the metric of choices.
    """
    if task.OUTPUT_TYPE != "multiple_choice" or metric not in {*_LENGTHS, "acc_mutual_info"}:
        return 0.0
    if callable(task.config.process_results):
        return math.nan
    return len(set(map(str, _targets(sample)))) / len(task.doc_to_choice(sample["doc"]))


def check_targets(
    tasks: Mapping[str, Any], samples: Mapping[str, Sequence[Mapping[str, Any]]]
) -> None:
    """Refuse a task of which no item's answer is among its choices: every model would score 0.

    Args:
        tasks: Name -> task of lm-eval.
        samples: Name -> lm-eval's log of its items.

    Raises:
        ValueError: There is such a task.
    """
    for name, items in samples.items():
        task = tasks[name]
        # Where contexts differ, the answer is their number; a function of the task's own may read
        # answers in another way.
        plain = task.OUTPUT_TYPE == "multiple_choice" and not getattr(task, "multiple_input", True)
        if not plain or callable(task.config.process_results):
            continue
        pairs = [(_targets(item), task.doc_to_choice(item["doc"])) for item in items]
        if pairs and not any(_is_choice(one, names) for own, names in pairs for one in own):
            own, names = pairs[0]
            raise ValueError(
                f"task '{name}': no item's answer is among its choices; of the first it is {own}, "
                f"the choices are {', '.join(map(str, names))}"
            )


def _targets(sample: Mapping[str, Any]) -> list[Any]:
    target = sample["target"]
    return list(target) if isinstance(target, list) else [target]


def _is_choice(target: Any, choices: Sequence[str]) -> bool:
    """Whether an answer is one of the choices, by its text or its number."""
    if target in choices:
        return True
    number = str(target).strip()
    return number.isdecimal() and int(number) < len(choices)
