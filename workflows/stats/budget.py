"""Whether realised skip rates met their budgets, and whether gates tell tokens apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

Protocol = Literal["pooled", "each"]
PROTOCOLS: tuple[Protocol, ...] = ("pooled", "each")
TOLERANCE = 0.01
ONE_WAY = 0.01


def flag(budget: float | None, skip: float) -> str:
    """``""`` within one point of the budget, else ``"over"`` or ``"under"``."""
    if budget is None or abs(skip - budget) <= TOLERANCE:
        return ""
    return "over" if skip > budget else "under"


def one_way(units: Sequence[Mapping[str, Any]]) -> bool:
    """Whether each routed unit runs for nearly every token or for nearly none.

    Such a row is a static one: what it scores says nothing of routing.

    Args:
        units: Of a record; none where nothing is routed.
    """
    shares = [unit["executed"] for unit in units]
    return bool(shares) and all(share < ONE_WAY or share > 1 - ONE_WAY for share in shares)
