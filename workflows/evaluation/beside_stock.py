"""Our harness beside lm-eval's own class for Hugging Face models, item by item."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager

from workflows.evaluation.harness import CountingLM, simple_evaluate
from workflows.evaluation.loading import load
from workflows.evaluation.score import PER_UNIT, SEEDS
from workflows.evaluation.tasklist import TaskEntry

# Metrics whose items are log-likelihoods, of which two classes seldom agree in the last bits.
LIKELIHOODS = (*PER_UNIT, "perplexity")


class Difference(NamedTuple):
    """How far two classes are apart on one task.

    Args:
        task: Name of the entry.
        items: Number of items that both scored.
        log_likelihood: Largest absolute difference of two log-likelihoods of one choice or text,
            in nats; 0 where the task has none.
        answers: Number of items whose value of the headline metric is not the same; 0 where that
            is the log-likelihood itself.
    """

    task: str
    items: int
    log_likelihood: float
    answers: int


def differences(
    ours: CountingLM, stock: HFLM, entries: Sequence[TaskEntry], manager: TaskManager
) -> Iterator[Difference]:
    """Score every task with both classes, one task after another.

    Args:
        ours: The model in this project's harness.
        stock: The same model in lm-eval's own class.
        entries: Tasks, no perplexities of a file: lm-eval has none.
        manager: lm-eval's index, with these tasks.

    Raises:
        ValueError: A task cannot be scored, or the two scored other items or other prompts.
    """
    for entry in entries:
        pairs = list(
            zip(_samples(ours, entry, manager), _samples(stock, entry, manager), strict=True)
        )
        for own, other in pairs:
            if own["prompt_hash"] != other["prompt_hash"]:
                raise ValueError(f"task '{entry.task}': the two read other prompts")
        yield Difference(
            entry.task,
            len(pairs),
            max(_apart(own, other) for own, other in pairs),
            sum(_value(entry, own) != _value(entry, other) for own, other in pairs),
        )


def _samples(lm: HFLM, entry: TaskEntry, manager: TaskManager) -> list[dict[str, Any]]:
    """lm-eval's log of the items of an entry, in its order, by the filter of the headline."""
    output = simple_evaluate(
        model=lm,
        tasks=[load(entry, manager)],
        task_manager=manager,
        limit=entry.limit,
        apply_chat_template=entry.chat_template,
        bootstrap_iters=0,
        log_samples=True,
        **SEEDS,
    )
    return [
        sample
        for _, log in sorted(output["samples"].items())
        for sample in log
        if sample["filter"] == log[0]["filter"]
    ]


def _apart(own: dict[str, Any], other: dict[str, Any]) -> float:
    """Largest difference of the log-likelihoods of one item."""
    pairs = zip(_log_likelihoods(own), _log_likelihoods(other), strict=True)
    return max((abs(mine - theirs) for mine, theirs in pairs), default=0.0)


def _log_likelihoods(sample: dict[str, Any]) -> list[float]:
    """Of the choices of an item, or of its text as a whole; none of what was written."""
    answers = sample["filtered_resps"]
    values = [answer[0] if isinstance(answer, list | tuple) else answer for answer in answers]
    return [float(value) for value in values if not isinstance(value, str)]


def _value(entry: TaskEntry, sample: dict[str, Any]) -> Any:
    """What an item scored by its headline metric; None where that is a log-likelihood."""
    metric = entry.metric or sample["metrics"][0]
    return None if metric in LIKELIHOODS else sample[metric]
