"""Whether realised skip rates met their budgets."""

from __future__ import annotations

TOLERANCE = 0.01


def flag(budget: float | None, skip: float) -> str:
    """``""`` within one point of the budget, else ``"over"`` or ``"under"``."""
    if budget is None or abs(skip - budget) <= TOLERANCE:
        return ""
    return "over" if skip > budget else "under"
