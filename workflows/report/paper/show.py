"""The tables of the paper beside ours."""

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
    "Paper / ours. =: the paper's value lies in our 95 % interval, widened by its rounding and its "
    "seeds (a steered skip: within a point); ≠: it does not; ?: the two cannot be compared, the "
    "note says why. Retain without ARC: over the benchmarks that "
    "have one split; the paper's value is recomputed from its scores."
)
PLACES = (
    "Ranks are among the rows of this table. Places: the ranks that the 95 % intervals of the "
    "Retain allow."
)


def order_tables(order: pd.DataFrame, agreement: pd.DataFrame) -> list[Table]:
    """One table per panel and group: the paper's ranks beside ours."""
    keys = [*PANEL, *GROUP]
    agreement_of = {
        tuple(line[name] for name in keys): line for line in agreement.to_dict("records")
    }
    several = order["backbone"].nunique() > 1
    return [
        _order(part.reset_index(drop=True), agreement_of[key], several)
        for key, part in order.groupby(keys, sort=False)
    ]


def _order(part: pd.DataFrame, labels: Mapping[Hashable, Any], several: bool) -> Table:
    builder = Builder()
    builder.add("Row", part["method"].tolist())
    builder.numbers(part, {"Paper": ("paper", "{:.2f}"), "Paper's rank": ("paper_rank", "{:d}")})
    builder.numbers(part, {"Ours": ("ours", "{:.2f}")})
    builder.add("95 % interval", spans(part, "low", "high"))
    builder.numbers(part, {"Our rank": ("rank", "{:d}")})
    builder.add("Places", spans(part, "rank_first", "rank_last", "{:.0f}"))
    group = _group(labels)
    name = f"paper_order_{group.name}_{labels['family']}"
    title = f"Order: {group.title}"
    if several:
        name, title = f"{name}_{labels['backbone']}", f"{title}, beside {labels['backbone']}"
    note = (
        f"Kendall's tau {labels['tau']:.2f}, exact permutation p {_small(labels['p'])} over "
        f"{labels['rows']} rows; ours: {FAMILIES[labels['family']]}. {PLACES}"
    )
    return replace(builder.table(name, title, note), match=labels["match"])


def value_tables(values: pd.DataFrame) -> list[Table]:
    """One table per group and family that has a run of ours."""
    return [
        _values(part, dict(zip(PARTS, key, strict=True)))
        for key, part in values.groupby(PARTS, sort=False)
        if _any_run(part)
    ]


def without_record(values: pd.DataFrame) -> list[str]:
    """Titles of the tables without a run of ours, or with a reference only."""
    return [
        _title(dict(zip(PARTS, key, strict=True)))
        for key, part in values.groupby(PARTS, sort=False)
        if not _any_run(part)
    ]


def _any_run(part: pd.DataFrame) -> bool:
    return bool((part["ours"].notna() & ~part["method"].isin(["Dense", "LoRA"])).any())


def _title(labels: Mapping[Any, Any]) -> str:
    return f"{_group(labels).title}: {FAMILIES[labels['family']]}"


def _values(part: pd.DataFrame, labels: Mapping[Any, Any]) -> Table:
    rows = list(part.groupby(["method", "row"], sort=False))
    there = list(dict.fromkeys(part["measure"]))
    first = [measure for measure in (SKIP, RETAIN, WITHOUT_ARC) if measure in there]
    measures = [*first, *(measure for measure in there if measure not in first)]
    builder = Builder()
    builder.add("Row", [method for (method, _), _ in rows])
    builder.add("Ours", [row for (_, row), _ in rows])
    builder.add("Seeds", [number(lines["seeds"].iloc[0] or None, "{:d}") for _, lines in rows])
    cells = [{line["measure"]: line for line in own.to_dict("records")} for _, own in rows]
    for measure in measures:
        builder.add(HEADS.get(measure, measure), [_cell(lines.get(measure)) for lines in cells])
        if measure == RETAIN:
            retains = [lines.get(measure, {}) for lines in cells]
            ours = [span(line.get("low"), line.get("high")) for line in retains]
            builder.add("95 % interval of ours", ours)
    builder.add("Note", [_note(list(lines.values())) for lines in cells])
    counts = part["verdict"].value_counts()
    words = {AGREES: "agree", DIFFERS: "differ", CANNOT: "cannot be compared"}
    summary = ", ".join(f"{counts.get(name, 0)} {word}" for name, word in words.items())
    note = f"{FAMILIES[labels['family']].capitalize()}. Of {len(part)} numbers: {summary}. {LEGEND}"
    name = f"paper_values_{_group(labels).name}_{labels['family']}"
    table = builder.table(name, _title(labels), note)
    return replace(table, words={*table.words, "Ours"}, match=labels["match"])


def _small(p: float) -> str:
    return f"= {p:.3f}" if p >= 0.001 else "< 0.001"


def _cell(line: Mapping[Any, Any] | None) -> str:
    if line is None:
        return "–"
    return f"{number(line['paper'])} / {number(line['ours'])} {SIGNS[line['verdict']]}"


def _note(lines: list[Mapping[Any, Any]]) -> str:
    """Every reason once, with the measures it is about, unless it is about all scores."""
    about: dict[str, list[str]] = {}
    for line in lines:
        if line["why"]:
            about.setdefault(line["why"], []).append(line["measure"])
    measures = {line["measure"] for line in lines} - {SKIP}
    return "; ".join(
        why
        if measures <= set(names)
        else f"{', '.join(HEADS.get(name, name) for name in names)}: {why}"
        for why, names in about.items()
    )


def _group(labels: Mapping[Any, Any]) -> Group:
    return Group(labels["table"], labels["paper_backbone"], f"{labels['target']:g}%")
