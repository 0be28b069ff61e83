"""Tokens of the paper's tasks."""

from __future__ import annotations

import pytest

from workflows.evaluation.tasklist import TaskEntry
from workflows.suite.load import TASKS, load_of, unknown_tasks

# Shots; millions of tokens, every choice with its prompt, and choices sharing it.
KNOWN = {
    "arc_easy": (25, 9.5, 2.4),
    "arc_challenge": (25, 4.9, 1.25),
    "hellaswag": (5, 22.0, 6.1),
    "winogrande": (5, 0.42, 0.42),
    "openbookqa": (0, 0.05, 0.02),
    "piqa": (0, 0.17, 0.13),
    "boolq": (0, 0.5, 0.5),
}
ENTRIES = [TaskEntry(name, num_fewshot=shots) for name, (shots, *_) in KNOWN.items()]


@pytest.mark.parametrize("name", KNOWN)
def test_tokens_per_task(name: str) -> None:
    shots, separate, together = KNOWN[name]
    for shared, millions in ((False, separate), (True, together)):
        load = load_of([TaskEntry(name, num_fewshot=shots)], 16, None, shared)
        assert load.prefill / 1e6 == pytest.approx(millions, rel=0.10)


def test_tokens_of_the_seven_tasks() -> None:
    assert load_of(ENTRIES, 16, None, False).prefill == pytest.approx(38e6, rel=0.05)
    assert load_of(ENTRIES, 16, None, True).prefill == pytest.approx(10.8e6, rel=0.05)


def test_the_lower_limit_of_entry_and_suite_holds() -> None:
    entries = [TaskEntry("piqa", limit=500), TaskEntry("boolq", limit=10)]
    piqa, boolq = TASKS["piqa"], TASKS["boolq"]
    load = load_of(entries, 4, 100, True)
    assert load.prefill == 100 * piqa.fed(0, True) + 10 * boolq.fed(0, True)
    assert load.batches == 110 / 4
    assert load.longest == boolq.sequence(0)
    # A prompt for each of its two choices.
    assert load_of([TaskEntry("winogrande", limit=10)], 4, None, True).batches == 20 / 4


def test_generation_takes_steps_for_the_longest_answer_of_a_batch() -> None:
    load = load_of([TaskEntry("gsm8k_llama", limit=32)], 16, None, True)
    task = TASKS["gsm8k_llama"]
    assert load.steps == 2 * task.longest
    assert load.written == 32 * task.written


def test_unknown_tasks_are_named() -> None:
    entries = [TaskEntry("piqa"), TaskEntry("demo_facts")]
    assert unknown_tasks(entries) == ["demo_facts"]
    assert load_of(entries[1:], 16, None, True).context == 0
