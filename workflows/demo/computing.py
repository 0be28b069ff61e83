"""The tasks that compute: booleans, a chain of arithmetic with worked steps, a program."""

from __future__ import annotations

import random
from collections.abc import Sequence

from workflows.demo.drawing import Example, draw_person
from workflows.demo.world import DIGIT_RELATIONS, DIGITS, NUMBER_RELATIONS, NUMBERS, World


def _claim(world: World, rng: random.Random, truth: bool, scored: bool) -> str:
    """Draw a claim that a fact is at least or at most some number; it is true if `truth` is."""
    relation, person = rng.choice(NUMBER_RELATIONS), draw_person(world, rng, scored)
    value = world.number(relation, person)
    word = rng.choice(("least", "most"))
    above = range(value + 1, len(NUMBERS))
    below = range(value)
    right, wrong = ([value, *below], above) if word == "least" else ([value, *above], below)
    limits = right if truth else wrong
    if not limits:  # no number is above the last one
        return _claim(world, rng, truth, scored)
    return f"{relation} of {person} {word} {rng.choice(limits)}"


def _evaluate(truths: Sequence[bool], operators: Sequence[str]) -> bool:
    """Evaluate claims joined by `and` and `or`, from left to right."""
    result = truths[0]
    for operator, truth in zip(operators, truths[1:], strict=True):
        result = (result and truth) if operator == "and" else (result or truth)
    return result


def draw_boolean(world: World, rng: random.Random, scored: bool) -> Example:
    """Evaluate claims joined by `and` or `or` from the left, each perhaps negated; half are true.

    In training some draws are single claims.
    """
    result = rng.random() < 0.5
    answer, other = ("true", "false") if result else ("false", "true")
    if not scored and rng.random() < 0.4:
        return Example(f"check {_claim(world, rng, result, scored)} answer", answer)
    count = world.preset.difficulty.claims.draw(rng, scored)
    operators = [rng.choice(("and", "or")) for _ in range(count - 1)]
    truths = [rng.random() < 0.5 for _ in range(count)]
    while _evaluate(truths, operators) != result:
        truths = [rng.random() < 0.5 for _ in range(count)]
    words = ["check"]
    for place, truth in enumerate(truths):
        negate = rng.random() < 0.3
        words += operators[place - 1 : place] + ["not"] * negate
        words.append(_claim(world, rng, truth != negate, scored))
    distractors = (other,) if scored else ()
    return Example(" ".join([*words, "answer"]), answer, distractors)


def _amount(
    world: World, rng: random.Random, relations: Sequence[str], scored: bool
) -> tuple[str, str]:
    """Draw an amount: its words in the prompt (a digit or a fact) and its value."""
    if rng.random() < 0.5:
        digit = rng.choice(DIGITS)
        return digit, digit
    relation, person = rng.choice(relations), draw_person(world, rng, scored)
    return f"{relation} of {person}", world.value(relation, person)


def draw_arithmetic(world: World, rng: random.Random, scored: bool) -> Example:
    """Compute a chain that starts at a fact; the completion spells the facts and every step."""
    relation, person = rng.choice(NUMBER_RELATIONS), draw_person(world, rng, scored)
    total = world.number(relation, person)
    prompt = f"compute {relation} of {person}"
    solution = f"{relation} of {person} is {total}"
    for _ in range(world.preset.difficulty.steps.draw(rng, scored)):
        words, value = _amount(world, rng, DIGIT_RELATIONS, scored)
        options = [sign for sign in (1, -1) if 0 <= total + sign * int(value) < len(NUMBERS)]
        sign = rng.choice(options)
        word = "plus" if sign > 0 else "minus"
        total += sign * int(value)
        fact = words if words == value else f"{words} is {value}"
        prompt += f" {word} {words}"
        solution += f" {word} {fact} then {total}"
    return Example(f"{prompt} answer", f"{solution} so {total}")


def _instruction(world: World, rng: random.Random, scored: bool) -> tuple[str, str]:
    """Draw one step of a program: the wish in the prompt, and the code that does it."""
    kind = rng.choice(("raise", "lower", "times", "repeat"))
    if kind == "repeat":
        times = rng.choice(("2", "3", "4"))
        words, value = _amount(world, rng, DIGIT_RELATIONS, scored)
        wish, body = f"raise by {words}", f"add {value}"
        if world.preset.difficulty.loop.draw(rng, scored) > 1:
            more = _plain_instruction(world, rng, rng.choice(("lower", "times")), scored)
            wish, body = f"{wish} and {more[0]}", f"{body} {more[1]}"
        return f"repeat {times} {wish}", f"repeat {times} do {body} end"
    return _plain_instruction(world, rng, kind, scored)


def _plain_instruction(
    world: World, rng: random.Random, kind: str, scored: bool
) -> tuple[str, str]:
    """Draw a step that is no loop."""
    if kind == "times":
        factor = rng.choice(("2", "3", "4"))
        return f"times {factor}", f"mul {factor}"
    words, value = _amount(world, rng, NUMBER_RELATIONS, scored)
    return f"{kind} by {words}", f"{'add' if kind == 'raise' else 'sub'} {value}"


def draw_program(world: World, rng: random.Random, scored: bool) -> Example:
    """Write a program from a wish; `A after B` runs B first, `A and B` is the body of a loop."""
    count = world.preset.difficulty.instructions.draw(rng, scored)
    steps = [_instruction(world, rng, scored) for _ in range(count)]
    wishes = [wish for wish, _ in steps]
    code = [instruction for _, instruction in steps]
    if count > 1 and rng.random() < 0.5:
        wishes[:2] = [f"{wishes[1]} after {wishes[0]}"]
    return Example(f"program {' then '.join(wishes)} answer", " ".join(code))
