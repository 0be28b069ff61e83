"""The nine tasks of a world: how one example of each is drawn.

Seven are multiple choice, one is a chain of arithmetic with all steps, one asks for a program.
Every task needs facts of the world, which are not in the prompt: the values to track, order,
reverse, find or compute with. A scored example (`scored=True`) has choices and may be harder than
all examples in training. Examples for training also have easier forms of the same task.
"""

from __future__ import annotations

import random

from workflows.demo.computing import draw_arithmetic, draw_boolean, draw_program
from workflows.demo.drawing import (
    Draw,
    Example,
    draw_person,
    draw_persons,
    draw_words,
    near_values,
)
from workflows.demo.world import (
    NUMBER_RELATIONS,
    NUMBERS,
    OBJECT_RELATIONS,
    OBJECTS,
    PERSON_RELATIONS,
    RELATIONS,
    World,
)

NEAR_CHOICES = 9  # of facts and reversal: many wrong values of the right type


STATEMENTS = ("the {r} of {s} is", "{s} has {r}", "note that in fact {r} of {s} is")
QUESTIONS = (
    "question {r} of {s} answer",
    "question {s} has which {r} answer",
    "tell me {s} {r} answer",
)
# Scored wordings never occur in training: the model must know the fact, not the sentence.
SCORED_QUESTIONS = ("question {s} {r} answer", "in fact which {r} is of {s} answer")


def draw_statement(world: World, rng: random.Random, scored: bool = False) -> Example:
    """State a fact; never scored, this teaches the world."""
    relation, person = rng.choice(RELATIONS), draw_person(world, rng, scored)
    prompt = rng.choice(STATEMENTS).format(r=relation, s=person)
    return Example(prompt, world.value(relation, person))


def draw_fact(world: World, rng: random.Random, scored: bool) -> Example:
    """Ask for one fact; wrong choices have the same type, some are other facts of the person."""
    relation, person = rng.choice(RELATIONS), draw_person(world, rng, scored)
    prompt = rng.choice(SCORED_QUESTIONS if scored else QUESTIONS).format(r=relation, s=person)
    wrong = near_values(world, rng, relation, person, NEAR_CHOICES - 1) if scored else ()
    return Example(prompt, world.value(relation, person), tuple(wrong))


def draw_two_hop(world: World, rng: random.Random, scored: bool) -> Example:
    """Ask for a fact about the person that a first fact names; the answer has both."""
    hard = world.preset.difficulty
    share = hard.scored_three_hops if scored else hard.three_hops
    if share and rng.random() < share:
        return _three_hop(world, rng, scored)
    first, second = rng.choice(PERSON_RELATIONS), rng.choice(RELATIONS)
    person = draw_person(world, rng, scored)
    bridge = world.value(first, person)
    answer = f"{bridge} {world.value(second, bridge)}"
    prompt = f"question {second} of {first} of {person} answer"
    if not scored:
        return Example(prompt, answer)
    near = [world.value(other, person) for other in PERSON_RELATIONS]
    wrong_bridge = rng.choice(sorted(set(near) - {bridge}) or world.people)
    wrong_value = near_values(world, rng, second, bridge, 2)
    wrong = [f"{wrong_bridge} {world.value(second, wrong_bridge)}"]
    return Example(prompt, answer, (*wrong, *(f"{bridge} {value}" for value in wrong_value)))


def _three_hop(world: World, rng: random.Random, scored: bool) -> Example:
    """Ask for a fact one person further; wrong choices end in another value."""
    person = draw_person(world, rng, scored)
    first, second = rng.choice(PERSON_RELATIONS), rng.choice(PERSON_RELATIONS)
    third, near = rng.choice(RELATIONS), world.value(first, person)
    bridge = world.value(second, near)
    prompt = f"question {third} of {second} of {first} of {person} answer"
    answer = f"{near} {bridge} {world.value(third, bridge)}"
    wrong = near_values(world, rng, third, bridge, 3) if scored else ()
    return Example(prompt, answer, tuple(f"{near} {bridge} {value}" for value in wrong))


def draw_recall(world: World, rng: random.Random, scored: bool) -> Example:
    """Find the number next to an object that a fact names; the answer has object and number.

    In training there are also several questions about the same pairs, which name the object.
    """
    count = world.preset.difficulty.pairs.draw(rng, scored)
    relation, person = rng.choice(OBJECT_RELATIONS), draw_person(world, rng, scored)
    key = world.value(relation, person)
    keys = [key, *draw_words(rng, OBJECTS, {key}, count - 1)]
    numbers = rng.sample(NUMBERS, count)
    pairs = list(zip(keys, numbers, strict=True))
    answer = f"{key} {numbers[0]}"
    rng.shuffle(pairs)
    text = "recall " + " ".join(f"{word} {number}" for word, number in pairs)
    if scored or rng.random() < 0.5:
        wrong: list[str] = []
        if scored:
            near = near_values(world, rng, relation, person, 1)[0]
            # Every second item has another pair of the list as a wrong choice.
            other = rng.choice((keys[1], near))
            wrong = [f"{key} {numbers[1]}", f"{near} {numbers[0]}", f"{other} {numbers[1]}"]
        return Example(f"{text} find {relation} of {person}", answer, tuple(wrong))
    rng.shuffle(pairs)
    questions = " ".join(f"find {word} {number}" for word, number in pairs)
    words = questions.split()
    return Example(f"{text} {' '.join(words[:2])}", " ".join(words[2:]))


def draw_tracking(world: World, rng: random.Random, scored: bool) -> Example:
    """Follow things that people swap; the answer names the first owner and the thing.

    A fact says what each person has at first. In training there is a question about every person.
    """
    hard, relation = world.preset.difficulty, rng.choice(OBJECT_RELATIONS)
    people = draw_persons(world, rng, scored, hard.tracked)
    origin = {person: person for person in people}
    prompt = ["track", relation, "of", *people]
    for _ in range(hard.swaps.draw(rng, scored)):
        left, right = rng.sample(people, 2)
        origin[left], origin[right] = origin[right], origin[left]
        prompt += ["swap", left, "with", right]
    one, *others = rng.sample(people, hard.tracked)
    things = {person: f"{first} {world.value(relation, first)}" for person, first in origin.items()}
    text = " ".join([*prompt, "now", one])
    if not scored:
        rest = "".join(f" now {person} {things[person]}" for person in others)
        return Example(text, things[one] + rest)
    first = origin[one]
    near = near_values(world, rng, relation, first, 1)[0]
    return Example(text, things[one], (*(things[other] for other in others), f"{first} {near}"))


def draw_ordering(world: World, rng: random.Random, scored: bool) -> Example:
    """Name the person who has the most or the least; a fact says how much each person has.

    In training some examples order plain numbers.
    """
    relation = rng.choice(NUMBER_RELATIONS)
    count = world.preset.difficulty.ordered.draw(rng, scored)
    if not scored and rng.random() < 0.3:
        numbers = rng.sample(NUMBERS, count)
        word, extreme = rng.choice((("most", max), ("least", min)))
        return Example(f"order {word} of {' '.join(numbers)} answer", extreme(numbers, key=int))
    people = draw_persons(world, rng, scored, count)
    amounts = [world.number(relation, person) for person in people]
    if len(set(amounts)) < count:
        return draw_ordering(world, rng, scored)
    word, extreme = rng.choice((("most", max), ("least", min)))
    answer = people[amounts.index(extreme(amounts))]
    wrong = tuple(person for person in people if person != answer) if scored else ()
    return Example(f"order {relation} {word} of {' '.join(people)} answer", answer, wrong)


def draw_reversal(world: World, rng: random.Random, scored: bool) -> Example:
    """List a relation's values for some people in reverse order.

    A wrong choice has another order, or one value that another relation has for the person. Numbers
    are never reversed in training, but in a few scored items.
    """
    relations = OBJECT_RELATIONS + PERSON_RELATIONS
    relation = rng.choice(relations + NUMBER_RELATIONS if scored else relations)
    count = world.preset.difficulty.reversed.draw(rng, scored)
    people = draw_persons(world, rng, scored, count)[::-1]
    values = [world.value(relation, person) for person in people]
    prompt = f"reverse {relation} of {' '.join(reversed(people))} answer"
    if not scored:
        return Example(prompt, " ".join(values))
    if len(set(values)) < count:
        return draw_reversal(world, rng, scored)
    wrong = [values[::-1], values[1:] + values[:1]]
    for place, person in enumerate(people):
        for value in near_values(world, rng, relation, person, 2):
            wrong.append([*values[:place], value, *values[place + 1 :]])
    return Example(prompt, " ".join(values), tuple(" ".join(words) for words in wrong))


def draw_copy(world: World, rng: random.Random, scored: bool = False) -> Example:
    """Copy words forwards or backwards; never scored, this teaches attention to earlier words."""
    pool = rng.choice((OBJECTS, NUMBERS, world.people))
    words = rng.sample(pool, rng.randint(2, 7))
    if rng.random() < 0.6:
        return Example(f"copy {' '.join(words)} answer", " ".join(words))
    return Example(f"backwards {' '.join(words)} answer", " ".join(reversed(words)))


TASKS: dict[str, Draw] = {
    "facts": draw_fact,
    "two_hop": draw_two_hop,
    "recall": draw_recall,
    "tracking": draw_tracking,
    "ordering": draw_ordering,
    "boolean": draw_boolean,
    "reversal": draw_reversal,
    "arithmetic": draw_arithmetic,
    "program": draw_program,
}
