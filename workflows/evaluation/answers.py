"""What a model chose for an item, and what a guess would score."""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from numbers import Integral
from typing import Any

import numpy as np

# Right answers of an item, and its choices.
Item = tuple[Sequence[Any], Sequence[str]]

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
    """Refuse answers that are not among their choices: they count as wrong for every model.

    If a task of lm-eval itself has some, that is a warning.

    Args:
        tasks: Name -> task of lm-eval.
        samples: Name -> lm-eval's log of its items.

    Raises:
        ValueError: There are such answers.
    """
    for name, items in samples.items():
        task = tasks[name]
        # Where contexts differ, the answer is their number; a function of the task's own may read
        # answers in another way.
        plain = task.OUTPUT_TYPE == "multiple_choice" and not getattr(task, "multiple_input", True)
        if not plain or callable(task.config.process_results):
            continue
        # Every filter has a log of the same items.
        logs = {item["doc_id"]: item for item in items}.values()
        pairs = [(_targets(item), task.doc_to_choice(item["doc"])) for item in logs]
        wrong = [pair for pair in pairs if not _is_right(*pair)]
        said = digits_read_as_places(task, pairs)
        if wrong and not said:
            answers, choices = wrong[0]
            said = (
                f"{len(wrong)} of {len(pairs)} items' answers are not among the choices; first: "
                f"{', '.join(map(str, answers)) or 'none'}; its choices, counted from 0, are "
                f"{', '.join(map(str, choices))}"
            )
        if said and (len(wrong) == len(pairs) or not _is_stock(task)):
            raise ValueError(f"task '{name}': {said}")
        if said:
            warnings.warn(f"task '{name}': {said} (they count as wrong)", stacklevel=2)


def digits_read_as_places(task: Any, items: Sequence[Item]) -> str:
    """What to write if a task's answers are texts that lm-eval takes for places; else empty.

    A template makes a text of all that it is given, so its digits may be meant as either. It makes
    a place with index, or with int; a column of numbers has places too.
    """
    source, options = str(task.config.doc_to_target), task.config.doc_to_choice
    texts = _texts_elsewhere(items)
    if "{{" not in source or re.search(r"index|\bint\b", source) or _is_stock(task) or not texts:
        return ""
    field, choices = (
        value.strip("{} ") if isinstance(value, str) else texts for value in (source, options)
    )
    return (
        "its answers are numbers, which lm-eval takes for places among the choices, from 0, but "
        "they are texts of choices too; write doc_to_target as "
        f"{{{{{choices}.index({field} | string)}}}}, or as {{{{{field} | int}}}} if they are places"
    )


def _texts_elsewhere(items: Sequence[Item]) -> list[str]:
    """The first choices that have an answer's digits elsewhere than at the place of that number.

    Empty if an answer is no number, or not the text of a choice: then numbers are places.
    """
    found: list[str] = []
    for answers, choices in items:
        texts = [str(choice).strip() for choice in choices]
        for answer in answers:
            if not isinstance(answer, int) or str(answer) not in texts:
                return []
            if not found and texts.index(str(answer)) != answer:
                found = texts
    return found


def _is_stock(task: Any) -> bool:
    """Whether a task's file is lm-eval's."""
    return "/lm_eval/tasks/" in str((task.config.metadata or {}).get("config_source"))


def _targets(sample: Mapping[str, Any]) -> list[Any]:
    target = sample["target"]
    return list(target) if isinstance(target, list) else [target]


def _is_right(answers: Sequence[Any], choices: Sequence[str]) -> bool:
    """Whether one of the answers is a choice, as lm-eval reads it: a text, or a place."""
    places = range(len(choices))
    return any(one in (places if isinstance(one, Integral) else choices) for one in answers)
