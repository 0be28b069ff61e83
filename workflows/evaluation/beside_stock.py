"""Our harness beside lm-eval's own class for Hugging Face models, item by item."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager

from workflows.evaluation.harness import CountingLM, simple_evaluate
from workflows.evaluation.loading import load
from workflows.evaluation.score import SEEDS
from workflows.evaluation.tasklist import TaskEntry


class Difference(NamedTuple):
    """How far two classes are apart on one task.

    Args:
        task: Name of the entry.
        items: Number of items that both scored.
        log_likelihood: Largest absolute difference of two log-likelihoods of one choice, in nats;
            0 where the task compares none.
        answers: Number of items whose value of the headline metric is not the same.
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
    """lm-eval's log of the items of an entry, in its order."""
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
    return [sample for name in sorted(output["samples"]) for sample in output["samples"][name]]


def _apart(own: dict[str, Any], other: dict[str, Any]) -> float:
    """Largest difference of the log-likelihoods of one item."""
    answers = zip(own["filtered_resps"], other["filtered_resps"], strict=True)
    return max(
        (abs(float(a[0]) - float(b[0])) for a, b in answers if isinstance(a, list | tuple)),
        default=0.0,
    )


def _value(entry: TaskEntry, sample: dict[str, Any]) -> Any:
    """What an item scored: its headline metric."""
    return sample[entry.metric or sample["metrics"][0]]
