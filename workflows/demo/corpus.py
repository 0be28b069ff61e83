"""The training text of the demo world: documents, splits and scored items.

A prompt belongs to the split that its own hash names, so no scored prompt can be a training prompt,
whatever the seeds. Plain statements of facts carry no split: they are how the world is taught and
occur in training only.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import accumulate
from typing import Any

from workflows.demo.tasks import TASKS, Draw, draw_copy, draw_statement
from workflows.demo.world import WORLD_SEED

SPLITS = ("train", "validation", "test")
ITEMS = 400
STATEMENT, COPY = "statement", "copy"

# How often each kind of document is drawn. Statements are short, and many facts have to stay known.
WEIGHTS: dict[str, float] = {
    STATEMENT: 2.0,
    COPY: 0.5,
    "demo_facts": 2.0,
    "demo_two_hop": 2.0,
    "demo_recall": 5.0,
    "demo_tracking": 5.0,
    "demo_ordering": 2.0,
    "demo_boolean": 3.0,
    "demo_reversal": 2.5,
    "demo_arithmetic": 3.0,
    "demo_program": 1.0,
}
# The first lessons of a model that knows nothing: mostly what is true and how to look back.
FIRST_WEIGHTS: dict[str, float] = {**WEIGHTS, STATEMENT: 50.0, COPY: 6.0, "demo_facts": 30.0}


def split_of(prompt: str) -> str:
    """Return the split that owns a prompt: eight tenths train, one each validation and test."""
    bucket = int.from_bytes(hashlib.sha256(prompt.encode()).digest()[:4], "big") % 10
    return "train" if bucket < 8 else SPLITS[bucket - 7]


def documents(
    split: str, seed: int, weights: Mapping[str, float] = WEIGHTS
) -> Iterator[dict[str, str]]:
    """Stream documents of a split without end.

    Args:
        split: "train" or "validation"; scored test prompts are never streamed.
        seed: Which stream; each (split, seed) gives one fixed sequence.
        weights: How often each kind of document is drawn, in proportion.

    Yields:
        `prompt`, `completion` and `task`; the text is the first two joined by one space.

    Raises:
        ValueError: If the split is neither "train" nor "validation".
    """
    if split not in ("train", "validation"):
        raise ValueError(f"split must be 'train' or 'validation', not {split!r}")
    rng = random.Random(f"{WORLD_SEED}:documents:{split}:{seed}")
    kinds: dict[str, Draw] = dict(TASKS)
    if split == "train":
        kinds |= {STATEMENT: draw_statement, COPY: draw_copy}
    names = [name for name in kinds if name in weights]
    bounds = list(accumulate(weights[name] for name in names))
    while True:
        name = rng.choices(names, cum_weights=bounds)[0]
        example = kinds[name](rng, False)
        if name == STATEMENT or split_of(example.prompt) == split:
            yield {"prompt": example.prompt, "completion": example.completion, "task": name}


@cache
def _drawn_items(task: str, split: str) -> tuple[str, ...]:
    """Draw the scored items of a task as JSON lines, `ITEMS` of them with distinct prompts."""
    rng = random.Random(f"{WORLD_SEED}:items:{task}:{split}")
    lines: dict[str, str] = {}
    while len(lines) < ITEMS:
        example = TASKS[task](rng, True)
        if split_of(example.prompt) != split or example.prompt in lines:
            continue
        item: dict[str, Any] = {"prompt": example.prompt, "answer": example.completion}
        if example.distractors:
            item["choices"] = [example.completion, *example.distractors]
            rng.shuffle(item["choices"])
            item["gold"] = item["choices"].index(example.completion)
        lines[example.prompt] = json.dumps(item, sort_keys=True)
    return tuple(lines.values())


def items(task: str, split: str) -> list[dict[str, Any]]:
    """Return the scored items of a task.

    Args:
        task: A name in `TASKS`.
        split: "validation" or "test".

    Returns:
        `ITEMS` dictionaries with `prompt` and `answer`; those of multiple-choice tasks also have
        `choices` and `gold`, the right choice's index.

    Raises:
        ValueError: If task or split is unknown.
    """
    if task not in TASKS:
        raise ValueError(f"unknown task {task!r}; known: {', '.join(TASKS)}")
    if split not in ("validation", "test"):
        raise ValueError(f"split must be 'validation' or 'test', not {split!r}")
    return [json.loads(line) for line in _drawn_items(task, split)]


def items_hash() -> str:
    """Return the sha256 over every scored item of every task, validation and test."""
    digest = hashlib.sha256()
    for task in TASKS:
        for split in ("validation", "test"):
            digest.update("\n".join(_drawn_items(task, split)).encode())
    return digest.hexdigest()


def corpus_hash(seed: int, count: int = 10_000) -> str:
    """Return the sha256 over the first `count` training documents of a stream."""
    digest = hashlib.sha256()
    for _, document in zip(range(count), documents("train", seed), strict=False):
        digest.update(json.dumps(document, sort_keys=True).encode())
    return digest.hexdigest()
