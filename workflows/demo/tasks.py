"""The nine tasks of the demo world: how one example of each is drawn.

Seven are multiple choice, one is a chain of arithmetic with worked steps, one asks for a program.
Every task needs facts of the world: what is tracked, ordered, reversed, looked up or computed with
is not in the prompt but has to be known. A draw for scoring (`scored=True`) carries choices and may
go beyond what is practised; a draw for training also covers easier forms of the same task.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from workflows.demo.world import (
    DIGIT_RELATIONS,
    DIGITS,
    NUMBER_RELATIONS,
    NUMBERS,
    OBJECT_RELATIONS,
    OBJECTS,
    PERSON_RELATIONS,
    RELATIONS,
    STRANGER_SHARE,
    STRANGERS,
    the_world,
    value_pool,
)

NEAR_CHOICES = 9  # of facts and reversal: many wrong values of the right type
TRACKED = 3
ORDERED = 4
PAIRS = 3
SCORED_PAIRS = (6, 7)  # longer lists than any in training
THREE_HOPS = 0.1  # share of the scored items; training has two hops at most
REVERSED = 3
SCORED_STEPS = (2,) * 14 + (3,)  # of arithmetic: one chain in 15 is longer than in training


@dataclass(frozen=True)
class Example:
    """One drawn example.

    Attributes:
        prompt: What is given.
        completion: What has to follow, worked steps included.
        distractors: The wrong choices of a multiple-choice example that will be scored.
    """

    prompt: str
    completion: str
    distractors: tuple[str, ...] = ()


Draw = Callable[[random.Random, bool], Example]


def _others(rng: random.Random, pool: Sequence[str], avoid: set[str], count: int) -> list[str]:
    """Draw `count` distinct words from a pool, none of them in `avoid`."""
    drawn: list[str] = []
    while len(drawn) < count:
        word = rng.choice(pool)
        if word not in avoid and word not in drawn:
            drawn.append(word)
    return drawn


def _near_values(rng: random.Random, relation: str, person: str, count: int) -> list[str]:
    """Draw wrong values of a fact, first those that are true of the person in another relation."""
    world = the_world()
    pool = value_pool(relation, world.people)
    right = world.value(relation, person)
    own = sorted({world.value(other, person) for other in RELATIONS} & set(pool) - {right})
    near = rng.sample(own, min(len(own), count - 1))
    return near + _others(rng, pool, {right, person, *near}, count - len(near))


def _person(rng: random.Random, scored: bool) -> str:
    """Draw a person: all alike for scoring, strangers seldom in training."""
    people = the_world().people
    index = int(rng.random() * len(people))
    if not scored and index >= len(people) - STRANGERS and rng.random() > STRANGER_SHARE:
        return _person(rng, scored)
    return people[index]


def _persons(rng: random.Random, scored: bool, count: int) -> list[str]:
    """Draw distinct persons."""
    drawn: list[str] = []
    while len(drawn) < count:
        person = _person(rng, scored)
        if person not in drawn:
            drawn.append(person)
    return drawn


STATEMENTS = ("the {r} of {s} is", "{s} has {r}", "note that in fact {r} of {s} is")
QUESTIONS = (
    "question {r} of {s} answer",
    "question {s} has which {r} answer",
    "tell me {s} {r} answer",
)
# The scored wordings never occur in training: a fact has to be known apart from how it was taught.
SCORED_QUESTIONS = ("question {s} {r} answer", "in fact which {r} is of {s} answer")


def draw_statement(rng: random.Random, scored: bool = False) -> Example:
    """State a fact; never scored, this is how the world is taught."""
    world = the_world()
    relation, person = rng.choice(RELATIONS), _person(rng, scored)
    prompt = rng.choice(STATEMENTS).format(r=relation, s=person)
    return Example(prompt, world.value(relation, person))


def draw_fact(rng: random.Random, scored: bool) -> Example:
    """Ask for one fact; wrong choices are of the same type, some true of the same person."""
    world = the_world()
    relation, person = rng.choice(RELATIONS), _person(rng, scored)
    prompt = rng.choice(SCORED_QUESTIONS if scored else QUESTIONS).format(r=relation, s=person)
    wrong = _near_values(rng, relation, person, NEAR_CHOICES - 1) if scored else ()
    return Example(prompt, world.value(relation, person), tuple(wrong))


def draw_two_hop(rng: random.Random, scored: bool) -> Example:
    """Ask for a fact about the person that a first fact names; the answer spells both."""
    if scored and rng.random() < THREE_HOPS:
        return _three_hop(rng)
    world = the_world()
    first, second = rng.choice(PERSON_RELATIONS), rng.choice(RELATIONS)
    person = _person(rng, scored)
    bridge = world.value(first, person)
    answer = f"{bridge} {world.value(second, bridge)}"
    prompt = f"question {second} of {first} of {person} answer"
    if not scored:
        return Example(prompt, answer)
    near = [world.value(other, person) for other in PERSON_RELATIONS]
    wrong_bridge = rng.choice(sorted(set(near) - {bridge}) or world.people)
    wrong_value = _near_values(rng, second, bridge, 2)
    wrong = [f"{wrong_bridge} {world.value(second, wrong_bridge)}"]
    return Example(prompt, answer, (*wrong, *(f"{bridge} {value}" for value in wrong_value)))


def _three_hop(rng: random.Random) -> Example:
    """One hop more than any training document; wrong choices end in another value."""
    world, person = the_world(), _person(rng, True)
    first, second = rng.choice(PERSON_RELATIONS), rng.choice(PERSON_RELATIONS)
    third, near = rng.choice(RELATIONS), world.value(first, person)
    bridge = world.value(second, near)
    prompt = f"question {third} of {second} of {first} of {person} answer"
    answers = [world.value(third, bridge), *_near_values(rng, third, bridge, 3)]
    right, *wrong = (f"{near} {bridge} {value}" for value in answers)
    return Example(prompt, right, tuple(wrong))


def draw_recall(rng: random.Random, scored: bool) -> Example:
    """Find the number written beside an object; a fact tells which, and the answer spells both.

    In training there may be several questions about the same pairs that name the object.
    """
    world = the_world()
    count = rng.choice(SCORED_PAIRS) if scored else rng.randint(1, PAIRS)
    relation, person = rng.choice(OBJECT_RELATIONS), _person(rng, scored)
    wanted = world.value(relation, person)
    keys = [wanted, *_others(rng, OBJECTS, {wanted}, count - 1)]
    numbers = rng.sample(NUMBERS, count)
    pairs = list(zip(keys, numbers, strict=True))
    answer = f"{wanted} {numbers[0]}"
    rng.shuffle(pairs)
    text = "recall " + " ".join(f"{key} {number}" for key, number in pairs)
    if scored or rng.random() < 0.5:
        wrong: list[str] = []
        if scored:
            near = _near_values(rng, relation, person, 1)[0]
            listed = rng.choice(
                (keys[1], near)
            )  # every second item tempts with another listed pair
            wrong = [f"{wanted} {numbers[1]}", f"{near} {numbers[0]}", f"{listed} {numbers[1]}"]
        return Example(f"{text} find {relation} of {person}", answer, tuple(wrong))
    rng.shuffle(pairs)
    asked = " ".join(f"find {key} {number}" for key, number in pairs)
    words = asked.split()
    return Example(f"{text} {' '.join(words[:2])}", " ".join(words[2:]))


def draw_tracking(rng: random.Random, scored: bool) -> Example:
    """Follow things that change hands; the answer spells whose thing it was and what it is.

    What each person starts with is a fact. In training everybody is asked after, one by one.
    """
    world = the_world()
    relation = rng.choice(OBJECT_RELATIONS)
    people = _persons(rng, scored, TRACKED)
    origin = {person: person for person in people}
    prompt = ["track", relation, "of", *people]
    for _ in range(rng.choice((1, 1, 2) if scored else (0, 1, 1, 2))):
        left, right = rng.sample(people, 2)
        origin[left], origin[right] = origin[right], origin[left]
        prompt += ["swap", left, "with", right]
    asked = rng.sample(people, TRACKED)
    held = {person: f"{first} {world.value(relation, first)}" for person, first in origin.items()}
    text = " ".join([*prompt, "now", asked[0]])
    if not scored:
        rest = "".join(f" now {person} {held[person]}" for person in asked[1:])
        return Example(text, held[asked[0]] + rest)
    first = origin[asked[0]]
    near = _near_values(rng, relation, first, 1)[0]
    return Example(text, held[asked[0]], (*(held[p] for p in asked[1:]), f"{first} {near}"))


def draw_ordering(rng: random.Random, scored: bool) -> Example:
    """Tell who has the most or the least; how much each person has is a fact.

    In training some draws order plain numbers.
    """
    world = the_world()
    relation = rng.choice(NUMBER_RELATIONS)
    count = ORDERED if scored else rng.randint(2, ORDERED)
    if not scored and rng.random() < 0.3:
        numbers = rng.sample(NUMBERS, count)
        word, extreme = rng.choice((("most", max), ("least", min)))
        return Example(f"order {word} of {' '.join(numbers)} answer", extreme(numbers, key=int))
    people = _persons(rng, scored, count)
    amounts = [world.number(relation, person) for person in people]
    if len(set(amounts)) < count:
        return draw_ordering(rng, scored)
    word, extreme = rng.choice((("most", max), ("least", min)))
    answer = people[amounts.index(extreme(amounts))]
    wrong = tuple(person for person in people if person != answer) if scored else ()
    return Example(f"order {relation} {word} of {' '.join(people)} answer", answer, wrong)


def _claim(rng: random.Random, truth: bool, scored: bool) -> str:
    """Write a claim, true or false as asked, that a fact is at least or at most some number."""
    relation, person = rng.choice(NUMBER_RELATIONS), _person(rng, scored)
    value = the_world().number(relation, person)
    word = rng.choice(("least", "most"))
    above = range(value + 1, len(NUMBERS))
    below = range(value)
    right, wrong = ([value, *below], above) if word == "least" else ([value, *above], below)
    limits = right if truth else wrong
    if not limits:  # nothing lies beyond the last number
        return _claim(rng, truth, scored)
    return f"{relation} of {person} {word} {rng.choice(limits)}"


def draw_boolean(rng: random.Random, scored: bool) -> Example:
    """Evaluate two claims joined by `and` or `or`, each perhaps negated; half are true."""
    result = rng.random() < 0.5
    answer, other = ("true", "false") if result else ("false", "true")
    if not scored and rng.random() < 0.4:
        return Example(f"check {_claim(rng, result, scored)} answer", answer)
    operator = rng.choice(("and", "or"))
    left, right = rng.random() < 0.5, rng.random() < 0.5
    while ((left and right) if operator == "and" else (left or right)) != result:
        left, right = rng.random() < 0.5, rng.random() < 0.5
    parts = []
    for truth in (left, right):
        negated = rng.random() < 0.3
        parts.append(("not " if negated else "") + _claim(rng, truth != negated, scored))
    distractors = (other,) if scored else ()
    return Example(f"check {parts[0]} {operator} {parts[1]} answer", answer, distractors)


def draw_reversal(rng: random.Random, scored: bool) -> Example:
    """List a relation's values for some people in reverse order.

    Wrong choices have another order or one value that is true of the person in another relation.
    Numbers are never reversed in training: a few scored items ask for what was not practised.
    """
    world = the_world()
    relations = OBJECT_RELATIONS + PERSON_RELATIONS
    relation = rng.choice(relations + NUMBER_RELATIONS if scored else relations)
    people = _persons(rng, scored, REVERSED if scored else rng.choice((1, 2, 2, 3, 3)))[::-1]
    values = [world.value(relation, person) for person in people]
    prompt = f"reverse {relation} of {' '.join(reversed(people))} answer"
    if not scored:
        return Example(prompt, " ".join(values))
    if len(set(values)) < REVERSED:
        return draw_reversal(rng, scored)
    wrong = [values[::-1], values[1:] + values[:1]]
    for place, person in enumerate(people):
        for value in _near_values(rng, relation, person, 2):
            wrong.append([*values[:place], value, *values[place + 1 :]])
    return Example(prompt, " ".join(values), tuple(" ".join(words) for words in wrong))


def _amount(rng: random.Random, relations: Sequence[str], scored: bool) -> tuple[str, str]:
    """Draw an amount: how the prompt says it (a digit or a fact) and its value."""
    if rng.random() < 0.5:
        digit = rng.choice(DIGITS)
        return digit, digit
    relation, person = rng.choice(relations), _person(rng, scored)
    return f"{relation} of {person}", the_world().value(relation, person)


def draw_arithmetic(rng: random.Random, scored: bool) -> Example:
    """Compute a chain that starts at a fact; the completion spells the facts and every step."""
    world = the_world()
    relation, person = rng.choice(NUMBER_RELATIONS), _person(rng, scored)
    total = world.number(relation, person)
    prompt = f"compute {relation} of {person}"
    worked = f"{relation} of {person} is {total}"
    for _ in range(rng.choice(SCORED_STEPS) if scored else rng.randint(1, 2)):
        said, value = _amount(rng, DIGIT_RELATIONS, scored)
        options = [sign for sign in (1, -1) if 0 <= total + sign * int(value) < len(NUMBERS)]
        sign = rng.choice(options)
        word = "plus" if sign > 0 else "minus"
        total += sign * int(value)
        spelled = said if said == value else f"{said} is {value}"
        prompt += f" {word} {said}"
        worked += f" {word} {spelled} then {total}"
    return Example(f"{prompt} answer", f"{worked} so {total}")


def _instruction(rng: random.Random, scored: bool) -> tuple[str, str]:
    """Draw one step of a program: the wish in the prompt and the code that grants it."""
    kind = rng.choice(("raise", "lower", "times", "repeat"))
    if kind == "times":
        factor = rng.choice(("2", "3", "4"))
        return f"times {factor}", f"mul {factor}"
    if kind == "repeat":
        times = rng.choice(("2", "3", "4"))
        said, value = _amount(rng, DIGIT_RELATIONS, scored)
        return f"repeat {times} raise by {said}", f"repeat {times} do add {value} end"
    said, value = _amount(rng, NUMBER_RELATIONS, scored)
    return f"{kind} by {said}", f"{'add' if kind == 'raise' else 'sub'} {value}"


def draw_program(rng: random.Random, scored: bool) -> Example:
    """Write a program from a wish; `A after B` runs B first."""
    count = 3 if scored else rng.randint(1, 3)
    steps = [_instruction(rng, scored) for _ in range(count)]
    said = [wish for wish, _ in steps]
    code = [instruction for _, instruction in steps]
    if count > 1 and rng.random() < 0.5:
        said[:2] = [f"{said[1]} after {said[0]}"]
    return Example(f"program {' then '.join(said)} answer", " ".join(code))


def draw_copy(rng: random.Random, scored: bool = False) -> Example:
    """Copy words forwards or backwards; never scored, it teaches to look back."""
    pool = rng.choice((OBJECTS, NUMBERS, the_world().people))
    words = rng.sample(pool, rng.randint(2, 7))
    if rng.random() < 0.6:
        return Example(f"copy {' '.join(words)} answer", " ".join(words))
    return Example(f"backwards {' '.join(words)} answer", " ".join(reversed(words)))


TASKS: dict[str, Draw] = {
    "demo_facts": draw_fact,
    "demo_two_hop": draw_two_hop,
    "demo_recall": draw_recall,
    "demo_tracking": draw_tracking,
    "demo_ordering": draw_ordering,
    "demo_boolean": draw_boolean,
    "demo_reversal": draw_reversal,
    "demo_arithmetic": draw_arithmetic,
    "demo_program": draw_program,
}
