"""The paper's printed tables above chance: what guessing makes of each Retain."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd

from workflows.report.paper.printed import (
    BENCHMARKS,
    HALF,
    KEYS,
    REFERENCES,
    RETAIN,
    SKIP,
    Group,
    benchmarks_of,
    chance_of,
    groups,
    numbers_of,
    split_of,
)
from workflows.stats.measures import above_chance, has_signal
from workflows.stats.retain import retain

COLUMNS = [
    *KEYS, "method", "skip", "retain", "above_chance", "bound", "guess", "left_out", "rank",
    "above_rank", "overtakes",
]  # fmt: skip


def above_frame() -> pd.DataFrame:
    """One line per method of each table that prints scores.

    Returns:
        The columns of ``KEYS``, method, skip and retain (as printed), above_chance (of the printed
        scores), bound (the most that their rounding makes of it), guess (Retain of a row that
        guesses every item), all in percent; left_out (benchmarks in which the reference shows no
        signal, split by ``; ``); of methods that skip, rank by Retain and above_rank by Above
        chance, and overtakes (methods of the table that lead this one by Retain and that it leads
        by Above chance, beyond rounding).
    """
    frames = [pd.DataFrame(lines) for group in groups() if (lines := list(_lines(group)))]
    ranked = [_with_ranks(frame) for frame in frames]
    return pd.concat(ranked, ignore_index=True)[COLUMNS].round(4)


def with_signal(group: Group) -> list[str]:
    """The benchmarks in which the reference of a table leads chance, by the rule of our tables.

    A printed score counts as that of one run on the items of its split.
    """
    reference = REFERENCES[group.table]
    scores = numbers_of(group)[reference]
    return [
        name
        for name in benchmarks_of(group)
        if has_signal(_items(group, reference, name, scores[name]), chance_of(name))
    ]


def _items(group: Group, method: str, name: str, percent: float) -> np.ndarray:
    """Items of a printed score, (n,): as many right ones as it needs."""
    split = split_of(group, method, name) or next(iter(BENCHMARKS[name]))
    items = BENCHMARKS[name][split].items
    right = round(percent * items / 100)
    return np.repeat([1.0, 0.0], [right, items - right])


def _lines(group: Group) -> Iterator[dict[str, Any]]:
    """The methods of a table in the paper's order; none where it prints no scores."""
    numbers, names = numbers_of(group), benchmarks_of(group)
    base = numbers[REFERENCES[group.table]]
    if names[0] not in base:
        return
    signal = with_signal(group)
    chances = {name: 100 * chance_of(name) for name in names}
    leads = {name: base[name] - chances[name] for name in signal}
    guess = float(retain(chances, base))
    for method, printed in numbers.items():
        scores = {name: printed[name] for name in signal}
        shares = [(scores[name] - chances[name]) / leads[name] for name in signal]
        errors = [HALF * (1 + abs(s)) / leads[n] for s, n in zip(shares, signal, strict=True)]
        yield group.labels | {
            "method": method,
            "skip": printed[SKIP],
            "retain": printed[RETAIN],
            "above_chance": 100 * float(above_chance(scores, base, chances)),
            "bound": 100 * float(np.mean(errors)),
            "guess": 100 * guess,
            "left_out": "; ".join(name for name in names if name not in signal),
        }


def _with_ranks(frame: pd.DataFrame) -> pd.DataFrame:
    """The lines of one table with ranks of the methods that skip, and what these overtake."""
    competes = frame["skip"] > 0
    ranks = {
        name: frame[column].where(competes).rank(ascending=False, method="min").astype("Int64")
        for name, column in (("rank", "retain"), ("above_rank", "above_chance"))
    }
    lines = frame[competes].to_dict("records")
    overtakes = {
        line["method"]: "; ".join(o["method"] for o in lines if _overtakes(line, o))
        for line in lines
    }
    return frame.assign(**ranks, overtakes=frame["method"].map(overtakes).fillna(""))


def _overtakes(line: dict[Any, Any], other: dict[Any, Any]) -> bool:
    """Whether a method is behind another by Retain and ahead by Above chance, beyond rounding."""
    behind = other["retain"] - line["retain"] > 2 * HALF
    ahead = line["above_chance"] - other["above_chance"] > line["bound"] + other["bound"]
    return bool(behind and ahead)
