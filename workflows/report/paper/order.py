"""The paper's order of methods beside ours: what can be compared on any backbone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd

from workflows.report.paper.printed import (
    MAIN,
    RETAIN,
    Family,
    Group,
    families,
    groups,
    numbers_of,
)
from workflows.stats.agreement import kendall

FEWEST = 3  # rows of an order
PANEL = ["backbone", "match"]
GROUP = ["table", "paper_backbone", "target", "family"]
COLUMNS = [
    *PANEL, *GROUP, "method", "row", "title", "paper", "paper_rank", "ours", "low", "high", "rank",
    "rank_first", "rank_last",
]  # fmt: skip


def order_frame(retain: pd.DataFrame, names: Mapping[str, str]) -> pd.DataFrame:
    """Rank of every method by the paper's Retain, and of our row for it among the same methods.

    Methods that skip nothing (dense, LoRA) do not compete. The rows of a target are matched; rows
    with the paper's own settings are ordered within HeRo's variants alone, for in the main table
    they skip different shares.

    Args:
        retain: The report's frame of that name.
        names: Backbone of ours -> the paper's name of it. Such a backbone is compared with its own
            tables, any other with all.

    Returns:
        The columns of ``COLUMNS``: paper, ours, low and high in percent, low and high the 95 %
        interval; rank_first and rank_last are the places that the intervals allow, each by itself:
        rows whose intervals lie apart are in order, all others may change places.
    """
    lines = [
        line
        for panel, part in retain.groupby(PANEL, sort=False)
        for group in groups()
        if names.get(str(panel[0]), group.backbone) == group.backbone
        for family in families(group)
        if (group.table, family.name) != (MAIN, "published")
        for line in _ranks(part, group, family)
    ]
    return pd.DataFrame(lines, columns=COLUMNS)


def agreement_frame(order: pd.DataFrame) -> pd.DataFrame:
    """How far each pair of orders agrees.

    Returns:
        Columns of ``PANEL`` and ``GROUP``, rows (in both orders), tau and p: see ``kendall``.
    """
    lines = []
    for key, part in order.groupby([*PANEL, *GROUP], sort=False):
        tau, p = kendall(part["paper"].tolist(), part["ours"].tolist())
        labels = dict(zip([*PANEL, *GROUP], key, strict=True))
        lines.append(labels | {"rows": len(part), "tau": tau, "p": p})
    return pd.DataFrame(lines, columns=[*PANEL, *GROUP, "rows", "tau", "p"])


def _ranks(part: pd.DataFrame, group: Group, family: Family) -> Iterator[dict[str, Any]]:
    """The methods of a group that a panel has, in the paper's order; none if they are too few."""
    at = part["target"].isna() if family.name == "published" else part["target"] == group.percent
    rows_with_scores = part[at & part["retain"].notna() & (part["kind"] != "reference")]
    lines = {line["row"]: line for line in rows_with_scores.to_dict("records")}
    methods = {
        method: next(lines[row] for row in rows if row in lines)
        for method, rows in family.rows.items()
        if any(row in lines for row in rows)
    }
    if len(methods) < FEWEST or len({line["retain"] for line in methods.values()}) == 1:
        return
    retains = {method: numbers_of(group)[method][RETAIN] for method in methods}
    for method, line in methods.items():
        others = [other for name, other in methods.items() if name != method]
        yield {name: line[name] for name in (*PANEL, "row", "title")} | {
            "table": group.table,
            "paper_backbone": group.backbone,
            "target": group.percent,
            "family": family.name,
            "method": method,
            "paper": retains[method],
            "paper_rank": 1 + sum(other > retains[method] for other in retains.values()),
            "ours": line["retain"],
            "low": line["retain_low"],
            "high": line["retain_high"],
            "rank": 1 + sum(other["retain"] > line["retain"] for other in others),
            "rank_first": 1 + sum(other["retain_low"] > line["retain_high"] for other in others),
            "rank_last": 1 + sum(other["retain_high"] >= line["retain_low"] for other in others),
        }
