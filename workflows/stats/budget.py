"""Whether realised skip rates met their budgets, and whether gates tell tokens apart.

Two protocols say what a budget means to a row that decides per token. ``pooled``: the mean over
all scored tokens meets it; most of them are prompt tokens, where skipping risks little. ``split``:
prompt tokens and answer tokens meet it apart. Deciding is a position whose output is scored: it
predicts a token of a choice's answer, or one that is generated (workflows/evaluation/harness.py).
Every other row skips the same everywhere and is the same under both.
"""

from __future__ import annotations

from collections.abc import Sequence

from workflows.records.record import Record, Unit

TOLERANCE, PROMPT_TOLERANCE = 0.01, 0.03
# How far from the budget training may end before a note says that the threshold alone met it.
TRAINED_TOLERANCE = 0.05
ONE_WAY = 0.01


def answer_skip(record: Record, retain_tasks: Sequence[str]) -> float | None:
    """Skip on the tokens whose output is scored, a fraction: what the Retain was made with.

    The mean over tasks of each task's rate, so that skip is weighed as the Retain is.

    Args:
        record: Of a finished run.
        retain_tasks: Tasks of the Retain. Those without a answer token are left out; None if all
            are.
    """
    rates = {score.task: score.rates for score in record.scores if score.task in retain_tasks}
    skips = [rate["answer"].skip for rate in rates.values() if "answer" in rate]
    return sum(skips) / len(skips) if skips else None


def prompt_skip(record: Record) -> float | None:
    """Skip over all scored prompt tokens, a fraction; None if there are none."""
    rates = record.rates.get("prompt")
    return None if rates is None else rates.skip


def misses(record: Record, retain_tasks: Sequence[str]) -> dict[str, float]:
    """What of a finished run missed its budget, and by how much: fractions, above 0 if over it.

    Returns:
        Kind of token, ``"all"``, ``"answers"`` or ``"prompts"`` -> skip - budget.
    """
    skips: dict[str, tuple[float | None, float]] = {}
    if record.match == "split":
        skips["answers"] = answer_skip(record, retain_tasks), TOLERANCE
        skips["prompts"] = prompt_skip(record), PROMPT_TOLERANCE
    else:
        skips["all"] = record.rates["all"].skip, TOLERANCE
    budget = record.budget
    return {
        kind: skip - budget
        for kind, (skip, tolerance) in skips.items()
        if budget is not None and skip is not None and not met(budget, skip, tolerance)
    }


def met(budget: float | None, skip: float, tolerance: float = TOLERANCE) -> bool:
    """Whether a skip rate lies within the tolerance of the budget; without one, always."""
    return budget is None or abs(skip - budget) <= tolerance


def far_in_training(record: Record) -> dict[str, float]:
    """Kinds of token whose skip at the end of training lay far from the budget: a fraction each.

    Such a row was brought to its budget by the threshold alone, at which it was not trained.
    """
    skips = record.fit.trained_skip if record.fit is not None else None
    return {
        kind: skip
        for kind, skip in (skips or {}).items()
        if not met(record.budget, skip, TRAINED_TOLERANCE)
    }


def one_way(units: Sequence[Unit]) -> bool:
    """Whether each routed unit runs for nearly every token or for nearly none.

    Such a row is a static one: what it scores says nothing of routing.

    Args:
        units: Of a record; none where nothing is routed.
    """
    shares = [unit.executed for unit in units]
    return bool(shares) and all(share < ONE_WAY or share > 1 - ONE_WAY for share in shares)
