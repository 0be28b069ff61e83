"""Retain by both protocols: skip matched over all tokens, and on prompts and answers each."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from workflows.report.figures.data import FigureFrames
from workflows.report.figures.lines import panel_title
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


def protocols(data: FigureFrames, columns: int) -> dict[str, Figure]:
    """Retain by both protocols: a panel per target, sorted by the split one."""
    both = data.retain[data.retain["target"].notna()].pivot_table(
        index=["backbone", "target", "row", "title", "kind"],
        columns="match", values=["retain", "retain_low", "retain_high"], sort=False,
    )  # fmt: skip
    if not {"pooled", "split"} <= set(both.columns.get_level_values("match")):
        return {}
    both.columns = both.columns.map("_".join)
    lines = both.dropna().reset_index()
    if lines.empty:
        return {}
    panels = [
        part.sort_values("retain_split", ascending=False, kind="stable")
        for _, part in lines.groupby(["backbone", "target"], sort=False)
    ]
    names = [list(part["title"]) for part in panels]
    figure, axes = list_sheet(columns, names, titled=len(panels) > 1, pitch=1.2 * PITCH)
    for axis, part in zip(axes, panels, strict=True):
        _panel(axis, part)
        axis.set_title(panel_title(part.assign(match=""), lines.assign(match="")))
        axis.set_xlabel("Retain (%)")
    legend(
        figure, set(lines["kind"]), {"over all tokens": HOLLOW, "prompts and answers each": FULL}
    )
    return {"": figure}


def _panel(axis: Axes, part: pd.DataFrame) -> None:
    """The best on top. From the hollow to the full sign: what the split protocol costs.

    A row that decides nothing per token has the same runs under both, and one sign.
    """
    lines = part.assign(height=range(len(part)))
    away = OFFSET * (lines["retain_pooled"] != lines["retain_split"])
    lines = lines.assign(above=lines["height"] - away, below=lines["height"] + away)
    axis.plot(
        lines[["retain_pooled", "retain_split"]].T, lines[["above", "below"]].T, color=GREY,
        linestyle="-", linewidth=0.6, zorder=1,
    )  # fmt: skip
    for kind, same in lines.groupby("kind", sort=False):
        apart = same[same["retain_pooled"] != same["retain_split"]]
        pooled, split = (
            (some[f"retain_low_{match}"], some[f"retain_high_{match}"])
            for some, match in ((apart, "pooled"), (same, "split"))
        )
        mark(axis, apart["retain_pooled"], apart["above"], str(kind), xspan=pooled, hollow=True)
        mark(axis, same["retain_split"], same["below"], str(kind), xspan=split)
