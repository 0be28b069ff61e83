"""Retain and Above chance side by side: where the two measures order rows otherwise."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from workflows.report.figures.data import FigureFrames
from workflows.report.figures.lines import panel_title, parts, with_part
from workflows.report.figures.style import (
    FULL,
    GREY,
    HOLLOW,
    OFFSET,
    PITCH,
    legend,
    list_sheet,
    mark,
)

MOST = {1: 30, 2: 40}  # rows that fit a page
PLACE = ["backbone", "match", "target"]


def both_measures(data: FigureFrames, columns: int) -> dict[str, Figure]:
    """Retain and Above chance, each with its interval: a panel per backbone, protocol and target.

    Rows are in the order of Retain. 0 is a guess by Above chance, 100 the reference by both.
    """
    if "above_chance" not in data.retain:
        return {}
    lines = data.retain[data.retain["above_chance"].notna() & data.retain["target"].notna()]
    rows = with_part(lines[lines["kind"] != "reference"], data.methods)
    if rows.empty:
        return {}
    return {end: _sheet(part, rows, columns) for end, part in parts(rows, MOST[columns]).items()}


def _sheet(lines: pd.DataFrame, whole: pd.DataFrame, columns: int) -> Figure:
    """One sheet of the whole."""
    panels = [
        part.sort_values("retain", ascending=False, kind="stable")
        for _, part in lines.groupby(PLACE, sort=False)
    ]
    names = [list(part["title"]) for part in panels]
    titles = [panel_title(part, whole) for part in panels]
    figure, axes = list_sheet(columns, names, titled=any(titles), pitch=1.2 * PITCH)
    for axis, part, title in zip(axes, panels, titles, strict=True):
        _panel(axis, part)
        axis.set_title(title)
        axis.set_xlabel("percent of the dense model")
    legend(figure, set(lines["kind"]), {"Retain": HOLLOW, "Above chance": FULL})
    return figure


def _panel(axis: Axes, part: pd.DataFrame) -> None:
    """The best by Retain on top; lines at the reference, and at a guess where one comes near."""
    lines = part.assign(height=range(len(part)))
    for kind, same in lines.groupby("kind", sort=False):
        retain, above = (
            (same[f"{name}_low"], same[f"{name}_high"]) for name in ("retain", "above")
        )
        height, name = same["height"], str(kind)
        mark(axis, same["retain"], height - OFFSET, name, xspan=retain, hollow=True)
        mark(axis, same["above_chance"], height + OFFSET, name, xspan=above)
    for level in (0, 100) if part["above_low"].min() <= 0 else (100,):
        axis.axvline(level, color=GREY, linewidth=0.6, linestyle=":", zorder=0)
