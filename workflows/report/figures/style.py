"""The one look of all figures: the style file, widths, signs of kinds, sheets of panels."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Literal, NamedTuple

import matplotlib
import matplotlib.style
import numpy as np

matplotlib.use("Agg")
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.text import Text
from numpy.typing import ArrayLike, NDArray

STYLE = Path(__file__).with_name("print.mplstyle")
# Inches of a paper's one and two columns.
WIDTHS = {1: 3.35, 2: 7.0}
SMALL = 6.0  # points of names beside marks
GREY = "#767676"
PITCH = 0.125  # inches from row to row of marks with names beside
OFFSET = 0.16  # rows by which two marks of one row stand above and below its middle
# Inches above a panel with a title, and without one.
TITLE, NO_TITLE = 0.2, 0.08
Span = tuple[ArrayLike, ArrayLike]


def grey(**look: Any) -> Line2D:
    """A sign of a legend, drawn by matplotlib's own settings where ``look`` says nothing."""
    # It is made at import, outside of use(), where a user's matplotlibrc holds.
    with matplotlib.style.context("default"):
        return Line2D([], [], color=GREY, **look)


FULL = grey(marker="o", linestyle="")
HOLLOW = grey(marker="o", markerfacecolor="white", linestyle="")


class Sign(NamedTuple):
    """How a kind of row is drawn. Marker and line differ too, for readers who see no colours."""

    color: str
    marker: str
    line: Literal["-", "--"]
    label: str


KINDS = {
    "reference": Sign("#333333", "s", "--", "reference"),
    "static": Sign("#d55e00", "o", "-", "static"),
    "dynamic": Sign("#00508c", "^", "-", "dynamic"),
}


def use() -> AbstractContextManager[None]:
    """A context in which figures are drawn in the style, whatever a user's matplotlibrc says."""
    return matplotlib.style.context(STYLE, after_reset=True)


class Margins(NamedTuple):
    """Free space of a sheet, in inches.

    Args:
        left, right, top, bottom: Around each panel.
        below: Below all panels.
    """

    left: float
    right: float
    top: float = TITLE
    bottom: float = 0.36
    below: float = 0.0


def sheet(
    columns: int, heights: Sequence[float], across: int, margins: Margins
) -> tuple[Figure, list[Axes]]:
    """A figure with panels.

    Args:
        columns: Of the paper that the figure is as wide as.
        heights: Of the panels, in inches.
        across: Panels beside each other.
        margins: Around the panels.
    """
    left, right, top, bottom, below = margins
    width, across = WIDTHS[columns], min(across, len(heights))
    rows = [max(heights[n : n + across]) for n in range(0, len(heights), across)]
    total = sum(rows) + len(rows) * (top + bottom) + below
    figure = Figure(figsize=(width, total))
    FigureCanvasAgg(figure)
    axes, level = [], total
    for number, height in enumerate(heights):
        row, place = divmod(number, across)
        level = level - rows[row] - top - bottom if place == 0 else level
        cell = width / across
        x, y = place * cell + left, level + bottom + rows[row] - height
        box = (x / width, y / total, (cell - left - right) / width, height / total)
        axes.append(figure.add_axes(box))
    return figure, axes


def list_sheet(
    columns: int,
    lists: Sequence[Sequence[str]],
    titled: bool,
    right: float = 0.1,
    gap: float = 0.2,
    pitch: float = PITCH,
) -> tuple[Figure, list[Axes]]:
    """A figure whose panels list rows below each other, the first on top, at heights 0, 1, ...

    Args:
        columns: Of the paper that the figure is as wide as; as many panels are side by side.
        lists: Of each panel, the names of its rows.
        titled: Whether panels have titles.
        right, gap: Inches right of each panel, and beside the names on its left.
        pitch: Inches of a row.
    """
    left = max(map(text_width, lists)) + gap
    top = TITLE if titled else NO_TITLE
    figure, axes = sheet(
        columns, [pitch * (len(names) + 0.6) for names in lists], columns,
        Margins(left, right, top, below=0.2),
    )  # fmt: skip
    for axis, names in zip(axes, lists, strict=True):
        axis.set_yticks(range(len(names)), names)
        axis.set_ylim(len(names) - 0.5, -0.6)
    return figure, axes


def text_width(texts: Collection[str], size: float = SMALL) -> float:
    """Inches of the widest of some texts; 0 without any."""
    figure = Figure((1, 1), dpi=300)
    renderer = FigureCanvasAgg(figure).get_renderer()
    labels = [Text(0, 0, text, figure=figure, fontsize=size) for text in texts]
    return max((text.get_window_extent(renderer).width / 300 for text in labels), default=0.0)


def inches(axes: Axes) -> tuple[float, float, float, float]:
    """Left, bottom, width and height of a panel on its figure."""
    figure = axes.figure
    assert isinstance(figure, Figure)
    width, height = figure.get_size_inches()
    box = axes.get_position()
    return box.x0 * width, box.y0 * height, box.width * width, box.height * height


def legend(figure: Figure, kinds: Collection[str], more: Mapping[str, Artist] = {}) -> None:
    """The signs of the kinds in a figure, and other signs by their meaning, below all panels."""
    own = [sign for kind, sign in KINDS.items() if kind in kinds]
    signs: dict[str, Artist] = {
        sign.label: Line2D([], [], color=sign.color, marker=sign.marker, linestyle=sign.line)
        for sign in own
    }
    both = signs | dict(more)
    figure.legend(
        list(both.values()), list(both), loc="lower center", ncols=len(both), borderaxespad=0.1,
        columnspacing=1.0, handletextpad=0.4, handlelength=1.8,
    )  # fmt: skip


def mark(
    axes: Axes,
    x: ArrayLike,
    y: ArrayLike,
    kind: str,
    xspan: Span | None = None,
    yspan: Span | None = None,
    hollow: bool = False,
) -> None:
    """Draw marks (N,) of one kind, with their intervals (low, high) if there are any.

    One call for all marks, because a call per mark is slow with hundreds of them.
    """
    sign = KINDS[kind]
    axes.errorbar(
        x, y, xerr=None if xspan is None else _reach(x, xspan),
        yerr=None if yspan is None else _reach(y, yspan), color=sign.color, marker=sign.marker,
        linestyle="", elinewidth=0.7, capsize=1.5, capthick=0.7, markeredgewidth=0.7,
        markerfacecolor="white" if hollow else sign.color,
    )  # fmt: skip


def _reach(values: ArrayLike, span: Span) -> NDArray[np.float64]:
    """How far intervals reach below and above values, (2, N)."""
    at, low, high = (np.asarray(part, dtype=float) for part in (values, *span))
    return np.maximum(np.stack([at - low, high - at]), 0)
