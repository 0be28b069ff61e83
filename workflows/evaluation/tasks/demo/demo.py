"""What the demo task files refer to: items drawn in the process, and the program's score."""

from __future__ import annotations

from typing import Any

from datasets import Dataset, DatasetDict

from workflows.demo.corpus import items
from workflows.demo.program import passes


def dataset(task: str, **_metadata: object) -> DatasetDict:
    """Draw a task's scored items; no file and no network is needed.

    Args:
        task: The task's name, from `dataset_kwargs` of its file.
        _metadata: The `metadata` of the file, which lm-eval hands over as well.
    """
    splits = ("validation", "test")
    return DatasetDict({split: Dataset.from_list(items(task, split)) for split in splits})


def score_program(doc: dict[str, Any], results: list[str]) -> dict[str, float]:
    """Run the one generated program; it passes if it agrees with the reference on every probe."""
    return {"pass@1": float(passes(results[0], doc["answer"]))}
