"""The frames of the paper beside ours as people read them."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import replace
from typing import Any

import pandas as pd

from workflows.report.display import Builder, Table, number, span, spans
from workflows.report.paper.order import GROUP, PANEL
from workflows.report.paper.printed import RETAIN, SKIP, WITHOUT_ARC, Group
from workflows.report.paper.verdict import AGREES, CANNOT, DIFFERS

SIGNS = {AGREES: "=", DIFFERS: "≠", CANNOT: "?"}
HEADS = {SKIP: "Skip", RETAIN: "Retain", WITHOUT_ARC: "Retain without ARC", "avg_acc": "Mean score"}
FAMILIES = {
    "matched": "rows matched to the target by our measure",
    "published": "rows with the settings of the paper or of a method's authors",
}
PARTS = ["backbone", "match", *GROUP]
LEGEND = (
    "Paper / ours. =: the paper's value lies in our 95 % interval; ≠: it does not; ?: the two "
    "cannot be compared, the note says why. Retain without ARC: over the benchmarks that "
    "have one split, the paper's recomputed from its scores."
)
PLACES = (
    "Ranks among the rows of this table. Places: those that the 95 % intervals of the Retain "
    "allow, each by itself."
)


def order_tables(order: pd.DataFrame, agreement: pd.DataFrame) -> list[Table]:
    """One table per panel and group: the paper's ranks beside ours."""
    keys = [*PANEL, *GROUP]
    told = {tuple(line[name] for name in keys): line for line in agreement.to_dict("records")}
    several = order["backbone"].nunique() > 1
    return [
        _order(part.reset_index(drop=True), told[key], several)
        for key, part in order.groupby(keys, sort=False)
    ]


def _order(part: pd.DataFrame, told: Mapping[Hashable, Any], several: bool) -> Table:
    made = Builder()
    made.add("Row", part["method"].tolist())
    made.numbers(part, {"Paper": ("paper", "{:.2f}"), "Paper's rank": ("paper_rank", "{:d}")})
    made.numbers(part, {"Ours": ("ours", "{:.2f}")})
    made.add("95 % interval", spans(part, "low", "high"))
    made.numbers(part, {"Our rank": ("rank", "{:d}")})
    made.add("Places", spans(part, "rank_first", "rank_last", "{:.0f}"))
    group = _group(told)
    name = f"paper_order_{group.name}_{told['family']}"
    title = f"Order: {group.title}"
    if several:
        name, title = f"{name}_{told['backbone']}", f"{title}, beside {told['backbone']}"
    note = (
        f"Kendall's tau {told['tau']:.2f}, exact permutation p {_small(told['p'])} over "
        f"{told['rows']} rows; ours: {FAMILIES[told['family']]}. {PLACES}"
    )
    return replace(made.table(name, title, note), match=told["match"])


def value_tables(values: pd.DataFrame) -> list[Table]:
    """One table per group and family of which anything of ours is there."""
    return [
        _values(part, dict(zip(PARTS, key, strict=True)))
        for key, part in values.groupby(PARTS, sort=False)
        if _any_run(part)
    ]


def without_record(values: pd.DataFrame) -> list[str]:
    """Titles of the tables of which nothing of ours is there but a reference."""
    return [
        _title(dict(zip(PARTS, key, strict=True)))
        for key, part in values.groupby(PARTS, sort=False)
        if not _any_run(part)
    ]


def _any_run(part: pd.DataFrame) -> bool:
    return bool((part["ours"].notna() & ~part["method"].isin(["Dense", "LoRA"])).any())


def _title(told: Mapping[Any, Any]) -> str:
    return f"{_group(told).title}: {FAMILIES[told['family']]}"


def _values(part: pd.DataFrame, told: Mapping[Any, Any]) -> Table:
    rows = list(part.groupby(["method", "row"], sort=False))
    there = list(dict.fromkeys(part["measure"]))
    first = [measure for measure in (SKIP, RETAIN, WITHOUT_ARC) if measure in there]
    measures = [*first, *(measure for measure in there if measure not in first)]
    made = Builder()
    made.add("Row", [method for (method, _), _ in rows])
    made.add("Ours", [row for (_, row), _ in rows])
    made.add("Seeds", [number(lines["seeds"].iloc[0] or None, "{:d}") for _, lines in rows])
    found = [{line["measure"]: line for line in own.to_dict("records")} for _, own in rows]
    for measure in measures:
        made.add(HEADS.get(measure, measure), [_cell(lines.get(measure)) for lines in found])
        if measure == RETAIN:
            kept = [lines.get(measure, {}) for lines in found]
            ours = [span(line.get("low"), line.get("high")) for line in kept]
            made.add("95 % interval of ours", ours)
    made.add("Note", [_note(list(lines.values())) for lines in found])
    counts = part["verdict"].value_counts()
    words = {AGREES: "agree", DIFFERS: "differ", CANNOT: "cannot be compared"}
    summary = ", ".join(f"{counts.get(name, 0)} {word}" for name, word in words.items())
    note = f"{FAMILIES[told['family']].capitalize()}. Of {len(part)} numbers: {summary}. {LEGEND}"
    name = f"paper_values_{_group(told).name}_{told['family']}"
    table = made.table(name, _title(told), note)
    return replace(table, words={*table.words, "Ours"}, match=told["match"])


def _small(p: float) -> str:
    return f"= {p:.3f}" if p >= 0.001 else "< 0.001"


def _cell(line: Mapping[Any, Any] | None) -> str:
    if line is None:
        return "–"
    return f"{number(line['paper'])} / {number(line['ours'])} {SIGNS[line['verdict']]}"


def _note(lines: list[Mapping[Any, Any]]) -> str:
    """Every reason once, with what it is about unless that is all but the skip."""
    about: dict[str, list[str]] = {}
    for line in lines:
        if line["why"]:
            about.setdefault(line["why"], []).append(line["measure"])
    scored = {line["measure"] for line in lines} - {SKIP}
    return "; ".join(
        why
        if scored <= set(names)
        else f"{', '.join(HEADS.get(name, name) for name in names)}: {why}"
        for why, names in about.items()
    )


def _group(told: Mapping[Any, Any]) -> Group:
    return Group(told["table"], told["paper_backbone"], f"{told['target']:g}%")
