"""The scored answers of every task, recomputed from the prompt's words and the world's facts."""

from __future__ import annotations

import random
import re
from collections import Counter
from typing import Any

import pytest

from workflows.demo.corpus import items
from workflows.demo.presets import PRESETS
from workflows.demo.program import run
from workflows.demo.tasks import TASKS
from workflows.demo.world import RELATIONS, World, the_world


def fact(world: World, relation: str, person: str) -> str:
    return world.facts[relation][person]


def solve_facts(world: World, words: list[str]) -> str:
    relation = next(word for word in words if word in RELATIONS)
    person = next(word for word in words if word in world.people)
    return fact(world, relation, person)


def solve_two_hop(world: World, words: list[str]) -> str:
    # From the person outwards: "question c of b of a of person answer".
    *relations, person = words[1:-1:2]
    spelled = [person]
    for relation in reversed(relations):
        spelled.append(fact(world, relation, spelled[-1]))
    return " ".join(spelled[1:])


def solve_recall(world: World, words: list[str]) -> str:
    split = words.index("find")
    pairs = dict(zip(words[1:split:2], words[2:split:2], strict=True))
    relation, _, person = words[split + 1 :]
    return f"{fact(world, relation, person)} {pairs[fact(world, relation, person)]}"


def solve_tracking(world: World, words: list[str]) -> str:
    end = min(words.index(word) for word in ("swap", "now") if word in words)
    relation, people, rest = words[1], words[3:end], words[end:]
    holds = {person: f"{person} {fact(world, relation, person)}" for person in people}
    while rest[0] == "swap":
        _, left, _, right, *rest = rest
        holds[left], holds[right] = holds[right], holds[left]
    return holds[rest[1]]


def solve_ordering(world: World, words: list[str]) -> str:
    _, relation, extreme, _, *people, _ = words
    ranked = sorted(people, key=lambda person: int(fact(world, relation, person)))
    return ranked[-1] if extreme == "most" else ranked[0]


def holds_true(world: World, words: list[str]) -> bool:
    if words[0] == "not":
        return not holds_true(world, words[1:])
    relation, _, person, bound, limit = words
    value = int(fact(world, relation, person))
    return value >= int(limit) if bound == "least" else value <= int(limit)


def solve_boolean(world: World, words: list[str]) -> str:
    # From the last operator: what stands before it is evaluated first.
    body = words[1:-1]
    places = [i for i, word in enumerate(body) if word in ("and", "or")]
    if not places:
        return str(holds_true(world, body)).lower()
    last = places[-1]
    before = solve_boolean(world, ["check", *body[:last], "answer"]) == "true"
    after = holds_true(world, body[last + 1 :])
    return str((before and after) if body[last] == "and" else (before or after)).lower()


def solve_reversal(world: World, words: list[str]) -> str:
    return " ".join(fact(world, words[1], person) for person in words[-2:2:-1])


def read_amount(world: World, words: list[str]) -> tuple[int, list[str]]:
    """Read a number or `RELATION of PERSON` at the front."""
    if words[0] in RELATIONS:
        return int(fact(world, words[0], words[2])), words[3:]
    return int(words[0]), words[1:]


def claimed_amount(world: World, words: list[str]) -> int:
    """Read `NUMBER` or `RELATION of PERSON is NUMBER`, which has to be true."""
    amount, rest = read_amount(world, words)
    assert not rest or rest == ["is", str(amount)]
    return amount


def solve_arithmetic(world: World, words: list[str]) -> str:
    total, rest = read_amount(world, words[1:-1])
    while rest:
        sign, (amount, rest) = rest[0], read_amount(world, rest[1:])
        total = total + amount if sign == "plus" else total - amount
    return str(total)


def apply_wish(world: World, words: list[str], register: int) -> int:
    if words[0] == "times":
        return register * int(words[1])
    if words[0] == "repeat":
        for _ in range(int(words[1])):
            for part in " ".join(words[2:]).split(" and "):
                register = apply_wish(world, part.split(), register)
        return register
    amount, _ = read_amount(world, words[2:])
    return register + amount if words[0] == "raise" else register - amount


def follow_wishes(world: World, words: list[str], register: int) -> int:
    """Do what a program prompt asks for, without any program."""
    wishes = [part.split() for part in " ".join(words[1:-1]).split(" then ")]
    for wish in wishes:
        parts = [part.split() for part in " ".join(wish).split(" after ")]
        for part in reversed(parts):
            register = apply_wish(world, part, register)
    return register


SOLVERS = {
    "facts": solve_facts,
    "two_hop": solve_two_hop,
    "recall": solve_recall,
    "tracking": solve_tracking,
    "ordering": solve_ordering,
    "boolean": solve_boolean,
    "reversal": solve_reversal,
}


@pytest.fixture(params=PRESETS)
def world(request: pytest.FixtureRequest) -> World:
    return the_world(request.param)


def scored(world: World, kind: str) -> list[dict[str, Any]]:
    return items(f"{world.preset.name}_{kind}", "test")


@pytest.mark.parametrize("kind", SOLVERS)
def test_right_choices(kind: str, world: World) -> None:
    for item in scored(world, kind):
        assert SOLVERS[kind](world, item["prompt"].split()) == item["answer"], item["prompt"]


def test_arithmetic_answers_and_their_worked_steps(world: World) -> None:
    for item in scored(world, "arithmetic"):
        worked, final = item["answer"].split(" so ")
        assert final == solve_arithmetic(world, item["prompt"].split())
        first, *steps = re.split(r" (?=plus |minus )", worked)
        total = claimed_amount(world, first.split())
        for step in steps:
            sign, *said = step.split()
            split = said.index("then")
            amount = claimed_amount(world, said[:split])
            total += amount if sign == "plus" else -amount
            assert total == int(said[split + 1])
        assert total == int(final)


def test_reference_programs_do_what_the_prompt_says(world: World) -> None:
    for item in scored(world, "program"):
        for register in (0, 3, 7):
            wanted = follow_wishes(world, item["prompt"].split(), register)
            assert run(item["answer"], register) == wanted, item["prompt"]


@pytest.mark.parametrize("kind", TASKS)
def test_training_draws_need_no_choices_and_are_deterministic(kind: str, world: World) -> None:
    first = [TASKS[kind](world, random.Random(seed), False) for seed in range(50)]
    again = [TASKS[kind](world, random.Random(seed), False) for seed in range(50)]
    assert first == again
    assert not any(example.distractors for example in first)


def test_true_and_false_are_equally_frequent(world: World) -> None:
    share = sum(item["answer"] == "true" for item in scored(world, "boolean"))
    assert 0.4 < share / len(scored(world, "boolean")) < 0.6


# Steps of the scored items: words that each step of a task brings into its prompts.
STEPS = {
    "two_hop": ("of", {2: 200, 3: 200}),
    "tracking": ("swap", {2: 133, 3: 133, 4: 133}),
    "boolean": ("least most", {3: 400}),
    "arithmetic": ("plus minus", {3: 133, 4: 133, 5: 133}),
}


@pytest.mark.parametrize("kind", STEPS)
def test_items_of_the_small_world_take_as_many_steps_as_its_preset_says(kind: str) -> None:
    words, wanted = STEPS[kind]
    prompts = [item["prompt"].split() for item in scored(the_world("small"), kind)]
    found = Counter(sum(word in words.split() for word in prompt) for prompt in prompts)
    assert set(found) == set(wanted)
    assert all(abs(found[steps] - number) < 50 for steps, number in wanted.items())


def test_programs_of_the_small_world_have_loops_of_two_instructions() -> None:
    programs = [item["answer"] for item in scored(the_world("small"), "program")]
    bodies = [body.split() for text in programs for body in re.findall(r"do (.*?) end", text)]
    assert {len(body) for body in bodies} == {2, 4}
