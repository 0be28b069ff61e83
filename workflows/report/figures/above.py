"""Above chance against Retain: where the two measures order rows otherwise."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from workflows.report.figures.data import Data
from workflows.report.figures.labels import (
    Named,
    height_for,
    limit_x,
    name_marks,
    right_margin,
)
from workflows.report.figures.lines import panel_title, with_part
from workflows.report.figures.scatter import MOST, paged
from workflows.report.figures.style import (
    GREY,
    NO_TITLE,
    TITLE,
    Margins,
    legend,
    mark,
    sheet,
)

LEAST = 1.7  # inches of a panel
ORDER = Line2D([], [], color=GREY, alpha=0.5, linewidth=0.8, linestyle="-")
GUESS = Line2D([], [], color=GREY, linewidth=0.6, linestyle=":")


def above_over_retain(data: Data, columns: int) -> dict[str, Figure]:
    """Above chance over Retain with both intervals: a panel per backbone, protocol and target.

    A line joins the rows in the order of Retain; where it falls, Above chance orders them
    otherwise. Of too many rows for one panel, those of the papers are shown.
    """
    if "above_chance" not in data.retain:
        return {}
    lines = data.retain[data.retain["above_chance"].notna() & data.retain["target"].notna()]
    rows = with_part(lines[lines["kind"] != "reference"], data.methods)
    if rows.empty:
        return {}
    panels = ["backbone", "match", "target"]
    if rows.groupby(panels)["row"].nunique().max() > MOST:
        rows = rows[rows["part"] == ""]
    groups = [own for _, own in rows.groupby(panels, sort=False)]
    heights = [height_for(_names(own), least=LEAST) for own in groups]
    pages = paged(groups, heights, columns)
    return {end: _sheet(page, rows, columns) for end, page in pages.items()}


def _names(rows: pd.DataFrame) -> list[Named]:
    """Names of the marks, all on the right: below marks that rise there is nothing in their way."""
    places = zip(rows["retain"], rows["above_chance"], rows["title"], strict=True)
    return [Named(*place) for place in places]


def _sheet(groups: list[pd.DataFrame], whole: pd.DataFrame, columns: int) -> Figure:
    """One sheet."""
    titles = [panel_title(group, whole) for group in groups]
    right = max(right_margin(_names(group)) for group in groups)
    heights = [height_for(_names(group), least=LEAST) for group in groups]
    top = TITLE if any(titles) else NO_TITLE
    figure, axes = sheet(columns, heights, columns, Margins(0.46, right, top, below=0.2))
    for axis, group, title in zip(axes, groups, titles, strict=True):
        _panel(axis, group)
        axis.set_title(title)
        axis.set_xlabel("Retain (%)")
        axis.set_ylabel("Above chance (%)")
    signs = {"in the order of Retain": ORDER}
    if any(_shows_guess(group) for group in groups):
        signs["a guess"] = GUESS
    legend(figure, {kind for group in groups for kind in group["kind"]}, signs)
    return figure


def _shows_guess(rows: pd.DataFrame) -> bool:
    """Whether an interval reaches below what a guess gets."""
    return bool(rows["above_low"].min() <= 0)


def _panel(axis: Axes, rows: pd.DataFrame) -> None:
    """Marks with intervals, the line through them, and names beside them."""
    limit_x(axis, [], float(rows["retain_low"].min()), float(rows["retain_high"].max()))
    low, high = rows["above_low"].min(), rows["above_high"].max()
    axis.set_ylim(low - 0.04 * (high - low), high + 0.04 * (high - low))
    for kind, same in rows.groupby("kind", sort=False):
        xspan, yspan = ((same[f"{name}_low"], same[f"{name}_high"]) for name in ("retain", "above"))
        mark(axis, same["retain"], same["above_chance"], str(kind), xspan=xspan, yspan=yspan)
    path = rows.sort_values("retain")
    axis.plot(
        path["retain"], path["above_chance"], color=GREY, alpha=0.5, linewidth=0.8,
        linestyle="-", zorder=0,
    )  # fmt: skip
    if _shows_guess(rows):
        axis.axhline(0, color=GREY, linewidth=0.6, linestyle=":", zorder=0)
    name_marks(axis, [], _names(rows))
