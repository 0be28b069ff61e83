"""The scored answers of every task, recomputed from the prompt's words and the world's facts."""

from __future__ import annotations

import random
import re

import pytest

from workflows.demo.corpus import items
from workflows.demo.program import run
from workflows.demo.tasks import TASKS
from workflows.demo.world import RELATIONS, the_world


def fact(relation: str, person: str) -> str:
    return the_world().facts[relation][person]


def solve_facts(words: list[str]) -> str:
    relation = next(word for word in words if word in RELATIONS)
    person = next(word for word in words if word in the_world().people)
    return fact(relation, person)


def solve_two_hop(words: list[str]) -> str:
    # From the person outwards: "question c of b of a of person answer".
    *relations, person = words[1:-1:2]
    spelled = [person]
    for relation in reversed(relations):
        spelled.append(fact(relation, spelled[-1]))
    return " ".join(spelled[1:])


def solve_recall(words: list[str]) -> str:
    split = words.index("find")
    pairs = dict(zip(words[1:split:2], words[2:split:2], strict=True))
    relation, _, person = words[split + 1 :]
    return f"{fact(relation, person)} {pairs[fact(relation, person)]}"


def solve_tracking(words: list[str]) -> str:
    relation, people = words[1], words[3:6]
    holds = {person: f"{person} {fact(relation, person)}" for person in people}
    rest = words[6:]
    while rest[0] == "swap":
        _, left, _, right, *rest = rest
        holds[left], holds[right] = holds[right], holds[left]
    return holds[rest[1]]


def solve_ordering(words: list[str]) -> str:
    _, relation, extreme, _, *people, _ = words
    ranked = sorted(people, key=lambda person: int(fact(relation, person)))
    return ranked[-1] if extreme == "most" else ranked[0]


def holds_true(words: list[str]) -> bool:
    if words[0] == "not":
        return not holds_true(words[1:])
    relation, _, person, bound, limit = words
    value = int(fact(relation, person))
    return value >= int(limit) if bound == "least" else value <= int(limit)


def solve_boolean(words: list[str]) -> str:
    body = words[1:-1]
    middle = next(i for i, word in enumerate(body) if word in ("and", "or"))
    left, right = holds_true(body[:middle]), holds_true(body[middle + 1 :])
    return str((left and right) if body[middle] == "and" else (left or right)).lower()


def solve_reversal(words: list[str]) -> str:
    return " ".join(fact(words[1], person) for person in words[-2:2:-1])


def read_amount(words: list[str]) -> tuple[int, list[str]]:
    """Read a number or `RELATION of PERSON` at the front."""
    if words[0] in RELATIONS:
        return int(fact(words[0], words[2])), words[3:]
    return int(words[0]), words[1:]


def claimed_amount(words: list[str]) -> int:
    """Read `NUMBER` or `RELATION of PERSON is NUMBER`, which has to be true."""
    amount, rest = read_amount(words)
    assert not rest or rest == ["is", str(amount)]
    return amount


def solve_arithmetic(words: list[str]) -> str:
    total, rest = read_amount(words[1:-1])
    while rest:
        sign, (amount, rest) = rest[0], read_amount(rest[1:])
        total = total + amount if sign == "plus" else total - amount
    return str(total)


def apply_wish(words: list[str], register: int) -> int:
    if words[0] == "times":
        return register * int(words[1])
    if words[0] == "repeat":
        return register + int(words[1]) * read_amount(words[4:])[0]
    amount, _ = read_amount(words[2:])
    return register + amount if words[0] == "raise" else register - amount


def follow_wishes(words: list[str], register: int) -> int:
    """Do what a program prompt asks for, without any program."""
    wishes = [part.split() for part in " ".join(words[1:-1]).split(" then ")]
    for wish in wishes:
        parts = [part.split() for part in " ".join(wish).split(" after ")]
        for part in reversed(parts):
            register = apply_wish(part, register)
    return register


SOLVERS = {
    "demo_facts": solve_facts,
    "demo_two_hop": solve_two_hop,
    "demo_recall": solve_recall,
    "demo_tracking": solve_tracking,
    "demo_ordering": solve_ordering,
    "demo_boolean": solve_boolean,
    "demo_reversal": solve_reversal,
}


@pytest.mark.parametrize("task", SOLVERS)
def test_right_choices(task: str) -> None:
    for item in items(task, "test"):
        assert SOLVERS[task](item["prompt"].split()) == item["answer"], item["prompt"]


def test_arithmetic_answers_and_their_worked_steps() -> None:
    for item in items("demo_arithmetic", "test"):
        worked, final = item["answer"].split(" so ")
        assert final == solve_arithmetic(item["prompt"].split())
        first, *steps = re.split(r" (?=plus |minus )", worked)
        total = claimed_amount(first.split())
        for step in steps:
            sign, *said = step.split()
            split = said.index("then")
            amount = claimed_amount(said[:split])
            total += amount if sign == "plus" else -amount
            assert total == int(said[split + 1])
        assert total == int(final)


def test_reference_programs_do_what_the_prompt_says() -> None:
    for item in items("demo_program", "test"):
        for register in (0, 3, 7):
            wanted = follow_wishes(item["prompt"].split(), register)
            assert run(item["answer"], register) == wanted, item["prompt"]


@pytest.mark.parametrize("task", TASKS)
def test_training_draws_need_no_choices_and_are_deterministic(task: str) -> None:
    first = [TASKS[task](random.Random(seed), False) for seed in range(50)]
    again = [TASKS[task](random.Random(seed), False) for seed in range(50)]
    assert first == again
    assert not any(example.distractors for example in first)


def test_true_and_false_are_equally_frequent() -> None:
    share = sum(item["answer"] == "true" for item in items("demo_boolean", "test"))
    assert 0.4 < share / len(items("demo_boolean", "test")) < 0.6
