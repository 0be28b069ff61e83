"""The two worlds: their size, the difficulty of their tasks, and their backbones.

`demo` is small enough to train and compare on two CPU cores; its backbone is shipped. `small` has
five times as many facts and asks for more steps at once; its backbone is trained on a GPU.
"""

from __future__ import annotations

import random
from dataclasses import dataclass


@dataclass(frozen=True)
class Levels:
    """Possible sizes of a task's examples; a size that is listed twice is drawn twice as often.

    Attributes:
        practised: In training.
        scored: In scored items.
    """

    practised: tuple[int, ...]
    scored: tuple[int, ...]

    def draw(self, rng: random.Random, scored: bool) -> int:
        """Draw a size; if there is only one, the generator does not advance."""
        sizes = self.scored if scored else self.practised
        return sizes[0] if len(sizes) == 1 else rng.choice(sizes)


@dataclass(frozen=True)
class Difficulty:
    """The difficulty of a world's tasks.

    Attributes:
        three_hops: In training, share of the hop items with three hops; the others have two.
        scored_three_hops: The same share of the scored items.
        pairs: Number of pairs in recall.
        tracked: Number of people in tracking.
        swaps: Number of swaps in tracking.
        ordered: Number of people or numbers to order.
        claims: Number of claims in a boolean; training has single claims as well.
        reversed: Number of values to list in reverse order.
        steps: Number of operations in arithmetic.
        instructions: Number of instructions of a program.
        loop: Number of instructions in the body of a program's loop, one or two.
    """

    three_hops: float
    scored_three_hops: float
    pairs: Levels
    tracked: int
    swaps: Levels
    ordered: Levels
    claims: Levels
    reversed: Levels
    steps: Levels
    instructions: Levels
    loop: Levels

    @property
    def levels(self) -> dict[str, Levels]:
        """The attributes from which sizes are drawn."""
        return {name: value for name, value in vars(self).items() if isinstance(value, Levels)}


@dataclass(frozen=True)
class Shape:
    """Shape of a backbone: a Llama with untied embeddings.

    Attributes:
        layers: Number of layers.
        width: Of the hidden states.
        ffn: Width inside an FFN.
        heads: Number of heads of the queries.
        kv_heads: Number of heads of keys and values.
        spread: Standard deviation of the initial weights.
    """

    layers: int
    width: int
    ffn: int
    heads: int
    kv_heads: int
    spread: float


@dataclass(frozen=True)
class Recipe:
    """How a backbone is trained; `training.json` says how the shipped one was trained."""

    seed: int = 1
    tokens: int = 29_000_000
    first_lessons: float = 0.17  # share of the steps that teach mostly facts
    rows: int = 32
    length: int = 64
    rate: float = 3e-3  # peak
    weight_decay: float = 0.01
    warmup: float = 0.015  # share of the steps
    prompt_weight: float = 0.1  # of a prompt token's loss; an answer token's is 1
    clip: float = 1.0

    @property
    def steps(self) -> int:
        """Number of updates; pads count as tokens."""
        return max(1, self.tokens // (self.rows * self.length))


@dataclass(frozen=True)
class Preset:
    """Everything in which two worlds differ.

    Attributes:
        name: Also the prefix of its tasks.
        seed: Of every draw.
        people: Number of people.
        strangers: Number of people, the last ones, who are rare in training.
        difficulty: Of its tasks.
        shape: Of its backbone; FFNs have the same share of the parameters as in Llama-3.1-8B.
        recipe: Of its backbone's training.
    """

    name: str
    seed: int
    people: int
    strangers: int
    difficulty: Difficulty
    shape: Shape
    recipe: Recipe


DEMO = Preset(
    name="demo",
    seed=20,
    people=240,
    strangers=24,
    difficulty=Difficulty(
        three_hops=0.0,
        scored_three_hops=0.1,
        pairs=Levels(practised=(1, 2, 3), scored=(6, 7)),  # longer lists than any in training
        tracked=3,
        swaps=Levels(practised=(0, 1, 1, 2), scored=(1, 1, 2)),
        ordered=Levels(practised=(2, 3, 4), scored=(4,)),
        claims=Levels(practised=(2,), scored=(2,)),
        reversed=Levels(practised=(1, 2, 2, 3, 3), scored=(3,)),
        steps=Levels(practised=(1, 2), scored=(2,) * 14 + (3,)),  # one chain in 15 is longer
        instructions=Levels(practised=(1, 2, 3), scored=(3,)),
        loop=Levels(practised=(1,), scored=(1,)),
    ),
    shape=Shape(layers=12, width=64, ffn=208, heads=4, kv_heads=2, spread=0.08),
    recipe=Recipe(),
)

SMALL = Preset(
    name="small",
    seed=21,
    people=1200,
    strangers=120,
    difficulty=Difficulty(
        three_hops=0.4,
        scored_three_hops=0.5,
        pairs=Levels(practised=tuple(range(1, 9)), scored=(8, 9, 10)),
        tracked=4,
        swaps=Levels(practised=(0, 1, 2, 2, 3, 3, 4), scored=(2, 3, 4)),
        ordered=Levels(practised=(2, 3, 4, 5, 6), scored=(6,)),
        claims=Levels(practised=(2, 3, 3), scored=(3,)),
        reversed=Levels(practised=(1, 2, 3, 3, 4, 4), scored=(4,)),
        steps=Levels(practised=(1, 2, 2, 3, 3, 4, 4, 5), scored=(3, 4, 5)),
        instructions=Levels(practised=(1, 2, 3, 3, 4, 4, 5), scored=(3, 4, 5)),
        loop=Levels(practised=(1, 2), scored=(1, 2)),
    ),
    shape=Shape(layers=16, width=256, ffn=640, heads=8, kv_heads=2, spread=0.04),
    recipe=Recipe(tokens=164_000_000, rows=64, length=128, rate=1e-3),
)

PRESETS = {preset.name: preset for preset in (DEMO, SMALL)}
