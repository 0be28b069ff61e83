"""The training text of a world: documents, splits and scored items.

The hash of a prompt decides its split, so with any seeds no scored prompt is a training prompt.
Plain statements of facts have no split: they teach the world, and occur in training only.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import accumulate
from typing import Any

from workflows.demo.drawing import Draw
from workflows.demo.presets import PRESETS
from workflows.demo.tasks import TASKS, draw_copy, draw_statement
from workflows.demo.world import World, the_world

SPLITS = ("train", "validation", "test")
ITEMS = 400
STATEMENT, COPY = "statement", "copy"

# How often each kind of document is drawn, in proportion. Statements are short.
WEIGHTS: dict[str, float] = {
    STATEMENT: 2.0,
    COPY: 0.5,
    "facts": 2.0,
    "two_hop": 2.0,
    "recall": 5.0,
    "tracking": 5.0,
    "ordering": 2.0,
    "boolean": 3.0,
    "reversal": 2.5,
    "arithmetic": 3.0,
    "program": 1.0,
}
# For the first lessons, when the model knows nothing: mostly facts, and copying of earlier words.
FIRST_WEIGHTS: dict[str, float] = {**WEIGHTS, STATEMENT: 50.0, COPY: 6.0, "facts": 30.0}


def split_of(prompt: str) -> str:
    """Return the split of a prompt: 80 % train, 10 % validation, 10 % test."""
    bucket = int.from_bytes(hashlib.sha256(prompt.encode()).digest()[:4], "big") % 10
    return "train" if bucket < 8 else SPLITS[bucket - 7]


def task_names(world: World) -> list[str]:
    """Return the names of a world's scored tasks; only `tasks.py` omits the prefix."""
    return [f"{world.preset.name}_{kind}" for kind in TASKS]


def documents(
    world: World, split: str, seed: int, weights: Mapping[str, float] = WEIGHTS
) -> Iterator[dict[str, str]]:
    """Stream documents of a split without end.

    Args:
        world: What the documents are about.
        split: "train" or "validation"; scored test prompts are never streamed.
        seed: Of the stream; each pair (split, seed) gives one fixed sequence.
        weights: How often each kind of document is drawn, in proportion.

    Yields:
        `prompt`, `completion` and `task`; the text is the first two joined by one space.

    Raises:
        ValueError: If the split is neither "train" nor "validation".
    """
    if split not in ("train", "validation"):
        raise ValueError(f"split must be 'train' or 'validation', not {split!r}")
    rng = random.Random(f"{world.preset.seed}:documents:{split}:{seed}")
    draws: dict[str, Draw] = dict(TASKS)
    names = dict(zip(TASKS, task_names(world), strict=True))
    if split == "train":
        draws |= {STATEMENT: draw_statement, COPY: draw_copy}
    kinds = [kind for kind in draws if kind in weights]
    bounds = list(accumulate(weights[kind] for kind in kinds))
    while True:
        kind = rng.choices(kinds, cum_weights=bounds)[0]
        example = draws[kind](world, rng, False)
        if kind == STATEMENT or split_of(example.prompt) == split:
            yield {
                "prompt": example.prompt,
                "completion": example.completion,
                "task": names.get(kind, kind),
            }


@cache
def _draw_items(task: str, split: str) -> tuple[str, ...]:
    """Draw the scored items of a task: `ITEMS` JSON lines with distinct prompts."""
    name, _, kind = task.partition("_")
    world = the_world(name)
    rng = random.Random(f"{world.preset.seed}:items:{task}:{split}")
    lines: dict[str, str] = {}
    while len(lines) < ITEMS:
        example = TASKS[kind](world, rng, True)
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
        task: A task name of any world, such as `demo_facts`.
        split: "validation" or "test".

    Returns:
        `ITEMS` dictionaries with `prompt` and `answer`. Multiple-choice tasks also have `choices`
        and `gold`, the index of the right choice.

    Raises:
        ValueError: If task or split is unknown.
    """
    name = task.partition("_")[0]
    names = task_names(the_world(name)) if name in PRESETS else [f"{w}_..." for w in PRESETS]
    if task not in names:
        raise ValueError(f"unknown task {task!r}; known: {', '.join(names)}")
    if split not in ("validation", "test"):
        raise ValueError(f"split must be 'validation' or 'test', not {split!r}")
    return [json.loads(line) for line in _draw_items(task, split)]


def items_hash(world: World) -> str:
    """Return the sha256 over every scored item of every task, validation and test."""
    digest = hashlib.sha256()
    for task in task_names(world):
        for split in ("validation", "test"):
            digest.update("\n".join(_draw_items(task, split)).encode())
    return digest.hexdigest()


def corpus_hash(world: World, seed: int, count: int = 10_000) -> str:
    """Return the sha256 over the first `count` training documents of a stream."""
    digest = hashlib.sha256()
    for _, document in zip(range(count), documents(world, "train", seed), strict=False):
        digest.update(json.dumps(document, sort_keys=True).encode())
    return digest.hexdigest()
