"""Differences on the same items with their intervals, sorted."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from workflows.report.figures.data import FigureFrames
from workflows.report.figures.lines import panel_title, parts, with_part
from workflows.report.figures.style import (
    GREY,
    HOLLOW,
    SMALL,
    legend,
    list_sheet,
    mark,
    text_width,
)
from workflows.stats.paired import LEVEL
from workflows.stats.resample import RETAIN

MOST = {1: 45, 2: 60}  # rows that fit a page


def differences(data: FigureFrames, columns: int) -> dict[str, Figure]:
    """Retain minus that of the row in focus, or of the reference without one.

    A panel per target, sorted.
    """
    main = data.differences[data.differences["measure"] == RETAIN]
    if main.empty:
        return {}
    # The frame has the reference first.
    against = list(dict.fromkeys(main["against"]))[-1]
    kinds = data.retain[["backbone", "row", "kind"]].drop_duplicates()
    lines = main[main["against"] == against].merge(kinds, on=["backbone", "row"])
    titles = data.retain.set_index("row")["title"]
    label = f"Retain minus that of {titles[[against]].iloc[0]} (points)"
    sheets = parts(with_part(lines, data.methods), MOST[columns])
    return {suffix: _sheet(part, columns, label) for suffix, part in sheets.items()}


def _sheet(lines: pd.DataFrame, columns: int, label: str) -> Figure:
    """One panel per backbone, protocol and target."""
    panels = [
        part.sort_values("difference", ascending=False)
        for _, part in lines.groupby(["backbone", "match", "target"], sort=False, dropna=False)
    ]
    names = [list(part["title"]) for part in panels]
    right = text_width(lines.apply(_text, axis=1)) + 0.1
    figure, axes = list_sheet(columns, names, titled=len(panels) > 1, right=right, gap=0.12)
    for axis, part in zip(axes, panels, strict=True):
        _panel(axis, part)
        axis.set_title(panel_title(part, lines))
        axis.set_xlabel(label)
    hollow = {} if (lines["p_holm"] < LEVEL).all() else {"hollow: p ≥ 5 % after Holm": HOLLOW}
    legend(figure, set(lines["kind"]), hollow)
    return figure


def _panel(axis: Axes, part: pd.DataFrame) -> None:
    """The best on top. Hollow: p is 5 % or more after Holm's correction."""
    lines = part.assign(height=range(len(part)), hollow=~(part["p_holm"] < LEVEL))
    for (kind, hollow), same in lines.groupby(["kind", "hollow"], sort=False):
        span = (same["low"], same["high"])
        mark(axis, same["difference"], same["height"], kind, xspan=span, hollow=bool(hollow))
    for height, line in enumerate(part.to_dict("records")):
        axis.annotate(
            _text(line), (1, height), (4, 0), xycoords=axis.get_yaxis_transform(),
            textcoords="offset points", fontsize=SMALL, va="center_baseline",
        )  # fmt: skip
    axis.axvline(0, color=GREY, linewidth=0.6, linestyle=":")


def _text(line: pd.Series | dict) -> str:  # type: ignore[type-arg]
    """``−1.2 (−3.4 to +1.0)``."""
    text = f"{line['difference']:+.1f} ({line['low']:+.1f} to {line['high']:+.1f})"
    return text.replace("-", "−")
