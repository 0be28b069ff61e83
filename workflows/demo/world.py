"""A random world: its people, their facts, and the words of its texts.

Everything is drawn from the preset's seed. Each person has 24 relations: 4 to another person, 16 to
one of 64 objects, 2 to a number below 50 and 2 to a digit from 1 to 9. The demo's 240 people have
5,760 facts, about 35,000 bits; the 1,200 people of `small` have 28,800 facts, about 186,000 bits.
That is far more than a few small adapters can store, so a model must store the facts in its FFNs.
Some people are strangers, who are rare in training: the model knows their facts less well, as a
real model knows rare facts.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType

from workflows.demo.presets import PRESETS, Preset

STRANGER_SHARE = 0.25  # how often a stranger is drawn in training, relative to the others
NUMBERS = tuple(str(number) for number in range(50))
DIGITS = NUMBERS[1:10]

PERSON_RELATIONS = ("friend", "boss", "teacher", "neighbour")
OBJECT_RELATIONS = (
    *("gift", "prize", "tool", "toy", "charm"),
    *("fear", "dream", "debt", "craft", "secret"),
    *("loan", "hobby", "wish", "luck", "badge", "medal"),
)
NUMBER_RELATIONS = ("age", "weight")
DIGIT_RELATIONS = ("dogs", "books")
RELATIONS = PERSON_RELATIONS + OBJECT_RELATIONS + NUMBER_RELATIONS + DIGIT_RELATIONS

OBJECTS = (
    *("anchor", "apple", "arrow", "axe", "basket", "bell", "boat", "bottle", "bowl", "brush"),
    *("bucket", "button", "candle", "canoe", "carpet", "chain", "chair", "clock", "cloak", "coin"),
    *("comb", "compass", "crown", "cup", "dagger", "drum", "egg", "fan", "feather", "flute"),
    *("fork", "glass", "glove", "hammer", "harp", "hat", "helmet", "horn", "jar", "kettle"),
    *("key", "kite", "ladder", "lamp", "lens", "map", "mask", "mirror", "needle", "net"),
    *("oar", "paddle", "pearl", "pen", "pillow", "plough", "ring", "rope", "saddle", "scarf"),
    *("shield", "spoon", "sword", "wheel"),
)

# All other words of documents; the tests check that no more words occur.
FUNCTION_WORDS = (
    *("the", "of", "is", "has", "note", "that", "in", "fact", "question", "which", "tell", "me"),
    *("answer", "recall", "find", "track", "swap", "with", "order", "most", "least"),
    *("check", "and", "or", "not", "true", "false", "reverse", "compute", "plus", "minus", "so"),
    *("copy", "backwards", "now"),
    *("program", "raise", "lower", "by", "times", "then", "after", "repeat"),
    *("add", "sub", "mul", "do", "end"),
)

_CONSONANTS = "bdfgjklmnprstvz"
_VOWELS = "aeiou"


@dataclass(frozen=True)
class World:
    """One drawn world.

    Attributes:
        preset: From which it was drawn.
        people: The names, each one word; the last ones are the strangers.
        facts: relation -> person -> value, each value one word.
    """

    preset: Preset
    people: tuple[str, ...]
    facts: Mapping[str, Mapping[str, str]]

    def value(self, relation: str, person: str) -> str:
        """Return the value of `relation` for `person`."""
        return self.facts[relation][person]

    def number(self, relation: str, person: str) -> int:
        """Return the value of a relation to a number or digit as an integer."""
        return int(self.facts[relation][person])


def _draw_people(rng: random.Random, count: int) -> tuple[str, ...]:
    """Draw distinct names of two or three syllables that are no other word of the world."""
    words = set(OBJECTS) | set(RELATIONS) | set(FUNCTION_WORDS)
    people: list[str] = []
    while len(people) < count:
        syllables = rng.choice((2, 2, 3))
        name = "".join(rng.choice(_CONSONANTS) + rng.choice(_VOWELS) for _ in range(syllables))
        if name not in words:
            words.add(name)
            people.append(name)
    return tuple(people)


def value_pool(relation: str, people: tuple[str, ...]) -> tuple[str, ...]:
    """Return all possible values of `relation`: its type."""
    if relation in PERSON_RELATIONS:
        return people
    if relation in OBJECT_RELATIONS:
        return OBJECTS
    return NUMBERS if relation in NUMBER_RELATIONS else DIGITS


@cache
def the_world(name: str) -> World:
    """Draw a world from the seed of its preset; the same object on every call.

    Raises:
        ValueError: There is no preset of this name.
    """
    if name not in PRESETS:
        raise ValueError(f"unknown world {name!r}; known: {', '.join(PRESETS)}")
    preset = PRESETS[name]
    rng = random.Random(f"{preset.seed}:world")
    people = _draw_people(rng, preset.people)
    facts: dict[str, Mapping[str, str]] = {}
    for relation in RELATIONS:
        pool = value_pool(relation, people)
        values: dict[str, str] = {}
        for person in people:
            value = rng.choice(pool)
            while value == person:  # nobody is their own friend
                value = rng.choice(pool)
            values[person] = value
        facts[relation] = MappingProxyType(values)
    return World(preset=preset, people=people, facts=MappingProxyType(facts))


def vocabulary(world: World) -> tuple[str, ...]:
    """Return every word of a world once, in a fixed order."""
    people = tuple(sorted(world.people))
    return FUNCTION_WORDS + RELATIONS + NUMBERS + OBJECTS + people
