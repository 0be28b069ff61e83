"""Whether realised skip rates met their budgets, and whether gates could and do tell tokens apart.

A dynamic row meets a budget by one of two protocols. ``pooled``: the mean over all scored tokens
meets it; most of them are prompt tokens, where skipping risks little. ``split``: prompt tokens and
answer tokens each meet it. Static rows skip the same for every token, so both protocols are the
same for them. GLOSSARY.md defines the two kinds of token.
"""

from __future__ import annotations

from collections.abc import Sequence

from workflows.records.parts import Unit
from workflows.records.record import Record

TOLERANCE, PROMPT_TOLERANCE = 0.01, 0.03
# 0.28 - 0.25 is more than 0.03 in floating point.
ROUNDING = 1e-9
# How far from the budget training may end without a note.
TRAINED_TOLERANCE = 0.05
# How far from the budget the skip on the texts of KL may lie without a note.
TEXT_TOLERANCE = 0.03
ONE_WAY = 0.01
# The share of its candidates that a row may have to skip without a note.
MOST_OF_CANDIDATES = 0.5


def task_mean(record: Record, retain_tasks: Sequence[str], kind: str) -> float | None:
    """Skip on tokens of a kind, a fraction, mean over tasks, as in the Retain.

    Args:
        record: Of a finished run.
        retain_tasks: Tasks of the Retain. Tasks without such a token are left out.
        kind: Of token, ``"answer"``, ``"prompt"`` or ``"all"``.

    Returns:
        None where no task has such a token.
    """
    rates = {score.task: score.rates for score in record.scores if score.task in retain_tasks}
    skips = [rate[kind].skip for rate in rates.values() if kind in rate]
    return sum(skips) / len(skips) if skips else None


def prompt_skip(record: Record) -> float | None:
    """Skip over all scored prompt tokens, a fraction; None if there are none."""
    rates = record.rates.get("prompt")
    return None if rates is None else rates.skip


def text_skip(records: Sequence[Record], kind: str = "all") -> float | None:
    """Skip on the texts on which runs were compared with dense, a fraction, mean over runs.

    Args:
        records: Runs of one line.
        kind: Of token, ``"all"`` or ``"answer"``.

    Returns:
        None where no run was compared, or no text has such a token.
    """
    compared = [record.fidelity.distances for record in records if record.fidelity is not None]
    skips = [distances[kind].skip for distances in compared if kind in distances]
    return sum(skips) / len(skips) if skips else None


def misses(record: Record, retain_tasks: Sequence[str]) -> dict[str, float]:
    """Where a finished run missed its budget.

    Returns:
        Kind of token, ``"all"``, ``"answers"`` or ``"prompts"`` -> skip - budget, a fraction.
        Kinds that met the budget are not in it.
    """
    skips: dict[str, tuple[float | None, float]] = {}
    if record.match == "split":
        skips["answers"] = task_mean(record, retain_tasks, "answer"), TOLERANCE
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
    return budget is None or abs(skip - budget) <= tolerance + ROUNDING


def far_in_training(record: Record) -> dict[str, float]:
    """Kind of token -> its skip at the end of training, where that is far from the budget.

    Training reads other texts than the probe, on which the threshold is calibrated: either the row
    skips otherwise there, or the threshold alone brought it to its budget.
    """
    skips = record.fit.trained_skip if record.fit is not None else None
    return {
        kind: skip
        for kind, skip in (skips or {}).items()
        if not met(record.budget, skip, TRAINED_TOLERANCE)
    }


def one_way(units: Sequence[Unit]) -> bool:
    """Whether each unit runs for nearly every token or for nearly none.

    Such a row is static in effect. Its scores say nothing about routing.

    Args:
        units: Of a record; empty where nothing is routed.
    """
    shares = [unit.executed for unit in units]
    return bool(shares) and all(share < ONE_WAY or share > 1 - ONE_WAY for share in shares)


def must_skip(record: Record) -> float | None:
    """The share of its candidates that a row must skip to meet its budget, where it is over half.

        share = budget / share of the dense parameters that the candidates hold

    The nearer to one, the less a router has to choose.

    Args:
        record: Of a finished run. Its units are the candidates.

    Returns:
        None where a half or less suffices, nothing is routed or there is no budget.
    """
    held = sum(unit.parameters for unit in record.units)
    if record.budget is None or not held:
        return None
    share = record.budget * record.backbone.parameters / held
    return share if share > MOST_OF_CANDIDATES else None
