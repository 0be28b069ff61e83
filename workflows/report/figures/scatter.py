"""Retain, and time, over the realised skip."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from workflows.report.figures.data import FigureFrames
from workflows.report.figures.labels import (
    Named,
    height_for,
    limit_x,
    name_marks,
    right_margin,
    sides,
)
from workflows.report.figures.lines import panel_title, with_part
from workflows.report.figures.style import (
    GREY,
    KINDS,
    NO_TITLE,
    TITLE,
    Margins,
    grey,
    inches,
    legend,
    list_sheet,
    mark,
    sheet,
    text_width,
)
from workflows.stats.budget import TOLERANCE
from workflows.stats.lines import LINE_KEYS
from workflows.stats.retain import Floats

MOST = 16  # rows that one panel names legibly
LISTED = 60  # rows that fit a column of a page below each other
LEAST, AROUND, PAGE = 1.9, 0.56, 9.2  # inches of a panel, of what surrounds it, of all
BAND = grey(alpha=0.3, linewidth=3.5, linestyle="-")
TICK = grey(marker="|", linestyle=":", linewidth=0.5)
DASH = grey(marker="_", markersize=5, linestyle=":", linewidth=0.5)
SKIPPED = "parameters skipped per token (%)"
Bools = NDArray[np.bool_]
Panels = list[tuple[str, pd.DataFrame]]


class Extra(NamedTuple):
    """What a figure shows beside the marks, and the signs that say so in its legend."""

    draw: Callable[[Axes, pd.DataFrame], None]
    signs: Mapping[str, Artist]


def retain_over_skip(data: FigureFrames, columns: int) -> dict[str, Figure]:
    """Retain with its interval over the realised skip: a line per row through its budgets.

    The frontier is the rows that no other row beats in both. With one budget there is none.
    """
    lines = with_part(data.retain[data.retain["retain"].notna()], data.methods)
    marks = lines.rename(columns={"retain": "y", "retain_low": "low", "retain_high": "high"})
    groups = [part for _, part in marks.groupby(["backbone", "match"], sort=False)]
    panels = [(panel_title(part, marks), part) for part in groups]
    extra = Extra(_nothing, {}) if _one_budget(marks) else Extra(_frontier, {"frontier": BAND})
    return _figures(panels, columns, "Retain (%)", extra)


def _one_budget(lines: pd.DataFrame) -> bool:
    """Whether all rows that skip were asked for the same."""
    targets = lines[(lines["kind"] != "reference") | lines["target"].notna()]["target"]
    return bool(targets.notna().all()) and targets.nunique() == 1


def time_over_skip(data: FigureFrames, columns: int) -> dict[str, Figure]:
    """Measured time over that of the dense model, with the bound of each row.

    Drawn over the realised skip; with one budget as a list of rows.
    """
    speeds = data.speeds
    if not speeds.empty:
        # The time of training is not over that of dense.
        speeds = speeds[speeds["mode"] != "training"]
    if speeds.empty:
        return {}
    times = speeds.merge(
        data.retain[[*LINE_KEYS, "kind", "skip"]].dropna(subset="skip"), on=LINE_KEYS
    )
    marks = with_part(times, data.methods).assign(
        y=1 / times["speed"], low=1 / times["speed_high"], high=1 / times["speed_low"],
        bound=1 / times["bound"],
    )  # fmt: skip
    panels: Panels = []
    groups = marks.groupby(["backbone", "match", "mode", "case"], sort=False)
    for (_, _, mode, case), part in groups:
        words = [f"{mode}, {case.replace('x', ' x ')}", panel_title(part, marks)]
        panels.append((_join(words), part))
    if _one_budget(marks) and len(marks) <= LISTED * columns:
        return {"": _lists(panels, columns)}
    return _figures(panels, columns, "time over dense", Extra(_bounds, {"bound": DASH}))


def _lists(panels: Panels, columns: int) -> Figure:
    """A list of rows with their times and bounds, the fastest on top."""
    order = [part.sort_values("y") for _, part in panels]
    names = [list(part["title"]) for part in order]
    figure, axes = list_sheet(columns, names, titled=True, gap=0.12)
    for axis, (title, _), part in zip(axes, panels, order, strict=True):
        lines = part.assign(height=range(len(part)))
        for kind, same in lines.groupby("kind", sort=False):
            mark(axis, same["y"], same["height"], str(kind), xspan=(same["low"], same["high"]))
        axis.hlines(
            lines["height"], lines["bound"], lines["y"], color=GREY, linewidth=0.5,
            linestyle=":", zorder=0,
        )  # fmt: skip
        axis.plot(lines["bound"], lines["height"], "|", color=GREY, markersize=5)
        axis.axvline(1, color=GREY, linewidth=0.6, linestyle=":")
        axis.set_title(title)
        axis.set_xlabel("time over dense")
    legend(figure, set(pd.concat([part["kind"] for _, part in panels])), {"bound": TICK})
    return figure


def _figures(panels: Panels, columns: int, label: str, extra: Extra) -> dict[str, Figure]:
    """Sheets of panels, as wide as the names allow and no taller than a page.

    Rows that are too many for one panel are split: those of the papers, and the variants of each.
    """
    if max(part["row"].nunique() for _, part in panels) <= MOST:
        return _sheets("", panels, columns, label, extra)
    main = [(title, part[part["part"] == ""]) for title, part in panels]
    families: Panels = [
        (_join([_family(own), title]), own)
        for title, part in panels
        for _, own in part.groupby("family", sort=False)
        if (own["part"] != "").any()
    ]
    others = _sheets("_variants", families, columns, label, extra)
    return _sheets("", main, columns, label, extra) | others


def _join(words: Sequence[str]) -> str:
    return ", ".join(filter(None, words))


def _family(lines: pd.DataFrame) -> str:
    """What a family is called: the title of the row that its variants change."""
    base = lines[lines["row"] == lines["family"]]
    return f"variants of {(base if len(base) else lines)['title'].iloc[0]}"


class ScatterPanel:
    """What one panel shows: marks of rows that skip, levels of references, names on both sides."""

    def __init__(self, title: str, part: pd.DataFrame) -> None:
        """Take a frame with ``skip``, ``y``, ``low`` and ``high``, and ``bound`` where one is."""
        self.title = title
        level = (part["kind"] == "reference") & part["target"].isna()
        self.rows, self.levels = part[~level], part[level]
        self.span = (float(self.rows["skip"].min()), float(self.rows["skip"].max()))
        self.left, right = sides(self.marks, *self.span)
        self.right = right + [
            Named(self.span[1], y, title, level=True)
            for y, title in zip(self.levels["y"], self.levels["title"], strict=True)
        ]

    @property
    def marks(self) -> list[Named]:
        """The last mark of each row, which carries its name."""
        last = self.rows.sort_values("skip").drop_duplicates("row", keep="last")
        return [Named(*mark) for mark in zip(last["skip"], last["y"], last["title"], strict=True)]

    @property
    def height(self) -> float:
        """Inches that its names need."""
        return height_for(self.left, self.right, least=LEAST)

    def limits(self) -> tuple[float, float]:
        """Of y, with a margin."""
        whole = pd.concat([self.rows, self.levels])
        columns = [whole[name] for name in ("low", "high", "y", "bound") if name in whole]
        values = np.concatenate([np.asarray(values, dtype=float) for values in columns])
        low, high = float(np.nanmin(values)), float(np.nanmax(values))
        margin = 0.04 * (high - low)
        return low - margin, high + margin

    def draw(self, axis: Axes, extra: Extra) -> None:
        """Marks, levels and names on an empty panel."""
        limit_x(axis, self.left, *self.span)
        axis.set_ylim(*self.limits())
        _rows(axis, self.rows)
        extra.draw(axis, self.rows)
        start, end = axis.get_xlim()
        # No numbers below names.
        axis.set_xticks([tick for tick in axis.get_xticks() if self.span[0] - 1 <= tick <= end])
        # Names that stand left of the marks are left free.
        start = self.span[0] if self.left else start
        sign = KINDS["reference"]
        axis.hlines(
            self.levels["y"], start, end, color=sign.color, linestyle="dashed", linewidth=0.6
        )
        right = [mark._replace(x=end) if mark.level else mark for mark in self.right]
        name_marks(axis, self.left, right)


def _sheets(
    suffix: str, panels: Panels, columns: int, label: str, extra: Extra
) -> dict[str, Figure]:
    """As many sheets as the panels need. Panels without a row that skips are left out."""
    drawings = [ScatterPanel(title, part) for title, part in panels]
    filled = [panel for panel in drawings if len(panel.rows)]
    pages = _paged(filled, columns)
    return {suffix + ending: _sheet(page, columns, label, extra) for ending, page in pages.items()}


def _paged(panels: Sequence[ScatterPanel], columns: int) -> dict[str, list[ScatterPanel]]:
    """Ending of a sheet's name -> its panels, ``columns`` side by side, no taller than a page."""
    pages: list[list[ScatterPanel]] = []
    room = 0.0
    for start in range(0, len(panels), columns):
        row = panels[start : start + columns]
        height = max(panel.height for panel in row) + AROUND
        if height > room:
            pages.append([])
            room = PAGE
        pages[-1] += row
        room -= height
    return {f"_{number}" if number > 1 else "": page for number, page in enumerate(pages, start=1)}


def _sheet(panels: Sequence[ScatterPanel], columns: int, label: str, extra: Extra) -> Figure:
    """One sheet."""
    left, right = 0.46, max(right_margin(panel.right) for panel in panels)
    top = TITLE if any(panel.title for panel in panels) else NO_TITLE
    heights = [panel.height for panel in panels]
    figure, axes = sheet(columns, heights, columns, Margins(left, right, top, below=0.2))
    for axis, panel in zip(axes, panels, strict=True):
        panel.draw(axis, extra)
        title = axis.set_title(panel.title)
        # A long title gets smaller letters. They may be a tenth wider than computed, hence 0.88.
        size, room = float(title.get_fontsize()), 0.88 * (inches(axis)[2] + 2 * min(left, right))
        title.set_fontsize(size * min(1, room / (text_width([panel.title], size) or room)))
        axis.set_xlabel(SKIPPED)
        axis.set_ylabel(label)
    kinds = {kind for panel in panels for part in (panel.rows, panel.levels) for kind in part.kind}
    legend(figure, kinds, extra.signs)
    return figure


def _rows(axis: Axes, rows: pd.DataFrame) -> None:
    """Marks with intervals, and a line through the budgets of each row."""
    for kind, same in rows.groupby("kind", sort=False):
        mark(axis, same["skip"], same["y"], str(kind), yspan=(same["low"], same["high"]))
    for _, row in rows[rows["target"].notna()].groupby("row", sort=False):
        path = row.sort_values("target")
        color = KINDS[path["kind"].iloc[0]].color
        axis.plot(path["skip"], path["y"], color=color, linewidth=0.6, linestyle="-")


def _nothing(axis: Axes, rows: pd.DataFrame) -> None:
    """Marks and levels alone."""


def _frontier(axis: Axes, rows: pd.DataFrame) -> None:
    """A band through the frontier. Skips that meet the same budget count as equal."""
    met = (rows["skip"] - rows["target"]).abs() <= 100 * TOLERANCE
    skip = rows["skip"].where(~met, rows["target"])
    best = rows[on_frontier(skip.to_numpy(), rows["y"].to_numpy())].sort_values("skip")
    axis.step(
        best["skip"], best["y"], where="pre", color=GREY, alpha=0.3, linewidth=3.5, zorder=0,
        linestyle="-",
    )  # fmt: skip


def on_frontier(skip: Floats, value: Floats) -> Bools:
    """Points (N,) that no other point beats: at least equal in both, and better in one."""
    more = (skip >= skip[:, None]) & (value >= value[:, None])
    beats = more & ((skip > skip[:, None]) | (value > value[:, None]))
    return np.asarray(~beats.any(1))


def _bounds(axis: Axes, rows: pd.DataFrame) -> None:
    """A dash at each bound, joined to the mark of its row."""
    for line in rows.to_dict("records"):
        color = KINDS[line["kind"]].color
        bound = line["bound"]
        axis.plot([line["skip"]] * 2, [bound, line["y"]], color=color, linewidth=0.4, linestyle=":")
        axis.plot(line["skip"], bound, color=color, marker="_", markersize=5, linestyle="")
