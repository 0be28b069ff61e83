"""Functions of the demo task files: items, which are drawn here, and the score of a program."""

from __future__ import annotations

from typing import Any

from datasets import Dataset

from workflows.demo.corpus import items
from workflows.demo.program import passes


class Splits(dict[str, Dataset]):
    """The splits of a task; each is drawn at its first use."""

    def __init__(self, task: str) -> None:
        super().__init__()
        self.task = task

    def __missing__(self, split: str) -> Dataset:
        """Draw the split.

        Raises:
            ValueError: The world has no such split.
        """
        self[split] = Dataset.from_list(items(self.task, split))
        return self[split]


def dataset(task: str, **_metadata: object) -> Splits:
    """A task's scored items, without a file or a network.

    Args:
        task: The task's name, from `dataset_kwargs` of its file.
        _metadata: The `metadata` of the file, which lm-eval passes too.
    """
    return Splits(task)


def score_program(doc: dict[str, Any], results: list[str]) -> dict[str, float]:
    """Run the generated program; it passes if it agrees with the reference on every probe input."""
    return {"pass@1": float(passes(results[0], doc["answer"]))}
