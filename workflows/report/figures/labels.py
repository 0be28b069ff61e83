"""Names of marks, in columns beside them, with leaders that never cross."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from scipy.optimize import isotonic_regression, linear_sum_assignment

from workflows.report.figures.style import GREY, SMALL, inches, text_width

STEP = 0.108  # inches from name to name
GAP = 0.07  # inches between a column of names and what is beside it
LEADER = 0.1  # inches that a leader has at least
NEAR_NAME, NEAR_MARK = 0.03, 0.035  # inches that a leader keeps from its name and its mark
SAME = 0.5  # a span of x that is too small for two sides


class Named(NamedTuple):
    """A mark and its name, in the units of the axes; a level's mark is the end of its line."""

    x: float
    y: float
    name: str
    level: bool = False


def sides(marks: Sequence[Named], low: float, high: float) -> tuple[list[Named], list[Named]]:
    """Marks with names on the left and on the right, by their half of [low, high]."""
    if high - low < SAME:
        return [], list(marks)
    left = [mark for mark in marks if mark.x < (low + high) / 2]
    return left, [mark for mark in marks if mark not in left]


def right_margin(marks: Sequence[Named]) -> float:
    """Inches that names need right of a panel."""
    return text_width([mark.name for mark in marks]) + GAP + 0.04


def height_for(*groups: Sequence[Named], least: float) -> float:
    """Inches of a panel that has room for the names of its fullest column."""
    return max(least, *(1.25 * STEP * len(marks) for marks in groups))


def limit_x(axes: Axes, left: Sequence[Named], low: float, high: float) -> None:
    """Limits of x that leave room for the names left of the marks, which lie in [low, high]."""
    width = inches(axes)[2]
    before = text_width([mark.name for mark in left]) + 2 * GAP + LEADER if left else LEADER
    scale = max(high - low, SAME) / (width - before - LEADER)
    middle = 0 if high - low >= SAME else (SAME - (high - low)) / 2
    axes.set_xlim(low - middle - before * scale, high + middle + LEADER * scale)


def name_marks(axes: Axes, left: Sequence[Named], right: Sequence[Named]) -> None:
    """Write the names in a column on each side, a leader from each to its mark.

    Call it when the limits of the axes stand.
    """
    x, _, width, _ = inches(axes)
    if left:
        _column(axes, left, x + GAP + text_width([mark.name for mark in left]), "right")
    if right:
        _column(axes, right, x + width + GAP, "left")


def _column(axes: Axes, marks: Sequence[Named], place: float, align: str) -> None:
    """One column, its edge ``place`` inches from the left of the figure."""
    figure = axes.figure
    assert isinstance(figure, Figure)
    _, bottom, _, height = inches(axes)
    axes.autoscale_view()
    points = axes.transData.transform([(mark.x, mark.y) for mark in marks]) / figure.dpi
    heights = slots(np.sort(points[:, 1])[::-1], bottom + STEP / 2, bottom + height)
    # The shortest pairing of points with places has no crossing.
    far = np.hypot(points[:, :1] - place, points[:, 1:] - heights)
    leaders = []
    for number, slot in zip(*linear_sum_assignment(far), strict=True):
        mark, end = marks[number], np.array([place, heights[slot]])
        axes.text(
            end[0], end[1], mark.name, transform=figure.dpi_scale_trans, va="center_baseline",
            ha=align, fontsize=SMALL,
        )  # fmt: skip
        distance = far[number, slot]
        if distance > 1.2 * GAP:
            step = (points[number] - end) / distance
            leaders.append(
                (end + NEAR_NAME * step, points[number] - (not mark.level) * NEAR_MARK * step)
            )
    figure.add_artist(
        LineCollection(leaders, linewidths=0.4, colors=GREY, transform=figure.dpi_scale_trans)
    )


def slots(heights: np.ndarray, low: float, high: float) -> np.ndarray:
    """Heights a step apart, as near to the given ones as possible; in [low, high] if they fit.

    Args:
        heights: In falling order, (N,).
        low: Of the room.
        high: Of the room.
    """
    steps = STEP * np.arange(len(heights))
    even = isotonic_regression(heights + steps, increasing=False).x
    return np.clip(even, low + steps[-1], max(high, low + steps[-1])) - steps
