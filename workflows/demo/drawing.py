"""Drawing for all tasks: examples, people, and wrong values that look right."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from workflows.demo.world import RELATIONS, STRANGER_SHARE, World, value_pool


@dataclass(frozen=True)
class Example:
    """One drawn example.

    Attributes:
        prompt: The question.
        completion: The right answer, with its intermediate steps.
        distractors: Wrong choices, if the example is a scored one of a multiple-choice task.
    """

    prompt: str
    completion: str
    distractors: tuple[str, ...] = ()


Draw = Callable[[World, random.Random, bool], Example]


def draw_words(rng: random.Random, pool: Sequence[str], avoid: set[str], count: int) -> list[str]:
    """Draw `count` distinct words from a pool, none of them in `avoid`."""
    words: list[str] = []
    while len(words) < count:
        word = rng.choice(pool)
        if word not in avoid and word not in words:
            words.append(word)
    return words


def near_values(
    world: World, rng: random.Random, relation: str, person: str, count: int
) -> list[str]:
    """Draw wrong values of a fact, first values that another relation has for the same person."""
    pool = value_pool(relation, world.people)
    right = world.value(relation, person)
    own = sorted({world.value(other, person) for other in RELATIONS} & set(pool) - {right})
    near = rng.sample(own, min(len(own), count - 1))
    return near + draw_words(rng, pool, {right, person, *near}, count - len(near))


def draw_person(world: World, rng: random.Random, scored: bool) -> str:
    """Draw a person: for scoring all have the same chance, in training strangers are rare."""
    people, strangers = world.people, world.preset.strangers
    index = int(rng.random() * len(people))
    if not scored and index >= len(people) - strangers and rng.random() > STRANGER_SHARE:
        return draw_person(world, rng, scored)
    return people[index]


def draw_persons(world: World, rng: random.Random, scored: bool, count: int) -> list[str]:
    """Draw distinct persons."""
    persons: list[str] = []
    while len(persons) < count:
        person = draw_person(world, rng, scored)
        if person not in persons:
            persons.append(person)
    return persons
