"""Tokens of the paper's tasks as the harness feeds them, estimated with Llama-3's tokenizer.

Items times choices times (shots + 1) times the tokens of a worked item: 38 M over the paper's seven
choice tasks at its shots; 10.8 M where an item's choices share one pass over their prompt.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from workflows.evaluation.tasklist import TaskEntry


@dataclass(frozen=True)
class Task:
    """A task as the harness feeds it.

    Args:
        documents: Scored items.
        shots: Demonstrations of the task's own file.
        choices: Sequences per item.
        item: Tokens of one worked item, question and answer.
        answer: Tokens in which the choices of an item differ.
        written: Scored tokens of a generated answer.
        longest: Tokens that a batch writes until its longest answer ends.
        contexts: Prompts per item that differ, of which choices share none.
    """

    documents: int
    shots: int
    choices: int
    item: float
    answer: float
    written: int = 0
    longest: int = 0
    contexts: int = 1

    def sequence(self, shots: int) -> float:
        """Tokens of one sequence, without what is written."""
        return (shots + 1) * self.item

    def fed(self, shots: int, shared: bool) -> float:
        """Tokens fed per item, its choices together.

        Args:
            shots: Demonstrations.
            shared: Whether the choices share one pass over their prompt.
        """
        if shared:
            rest = self.choices - self.contexts
            return self.contexts * self.sequence(shots) + rest * self.answer
        return self.choices * self.sequence(shots)


# BoolQ's two choices of one token are read off one pass by any harness.
TASKS = {
    "openbookqa": Task(500, 0, 4, 25, 5),
    "piqa": Task(1838, 0, 2, 46, 25),
    "boolq": Task(3270, 0, 1, 153, 0),
    "arc_easy": Task(2376, 0, 4, 38.5, 3.4),
    "arc_challenge": Task(1172, 0, 4, 40, 5),
    "arc_easy_validation": Task(570, 0, 4, 38.5, 3.4),
    "arc_challenge_validation": Task(299, 0, 4, 40, 5),
    "winogrande": Task(1267, 0, 2, 27.6, 22, contexts=2),
    "hellaswag": Task(10042, 0, 4, 91.3, 20),
    # Eight worked examples as turns of a chat. How long a damaged model writes is a guess.
    "gsm8k_llama": Task(1319, 8, 1, 160, 0, written=150, longest=400),
    # Its length in characters over 3.6; with instructions the problem stands there twice.
    "code_humaneval": Task(164, 0, 1, 125, 0, written=50, longest=400),
    "code_humaneval_instruct": Task(164, 0, 1, 285, 0, written=50, longest=400),
}


@dataclass(frozen=True)
class Load:
    """What scoring one model takes.

    Args:
        prefill: Tokens that are read.
        written: Tokens that are written and scored.
        steps: Decoding steps, one token in each row of a batch.
        batches: Forward passes over prompts.
        context: Mean tokens of a sequence, weighted by its tokens.
        longest: Tokens of the longest kind of sequence.
    """

    prefill: float
    written: float
    steps: float
    batches: float
    context: float
    longest: float


def load_of(entries: Sequence[TaskEntry], batch_size: int, limit: int | None, shared: bool) -> Load:
    """The load of a suite's tasks; tasks that are not in ``TASKS`` are left out.

    Args:
        entries: Of the suite.
        batch_size: Sequences per forward pass.
        limit: First items of every task; an entry may have fewer.
        shared: Whether choices share one pass over their prompt.
    """
    prefill = written = steps = batches = weighted = longest = 0.0
    for entry in entries:
        if entry.task not in TASKS:
            continue
        task = TASKS[entry.task]
        shots = task.shots if entry.num_fewshot is None else entry.num_fewshot
        documents = min(number for number in (task.documents, entry.limit, limit) if number)
        fed = documents * task.fed(shots, shared)
        passes = documents * (task.contexts if shared else task.choices) / batch_size
        prefill, batches = prefill + fed, batches + passes
        written += documents * task.written
        steps += documents / batch_size * task.longest
        weighted += fed * task.sequence(shots)
        longest = max(longest, task.sequence(shots) + task.longest)
    return Load(prefill, written, steps, batches, weighted / prefill if prefill else 0.0, longest)


def unknown_tasks(entries: Sequence[TaskEntry]) -> list[str]:
    """Tasks whose tokens are not known here."""
    return [entry.task for entry in entries if entry.task not in TASKS]
