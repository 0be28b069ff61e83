"""Rows against tasks, and rows against layers: numbers on a coloured ground."""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from workflows.report.display import short_name
from workflows.report.figures.data import FigureFrames
from workflows.report.figures.lines import line_names, parts, with_part
from workflows.report.figures.style import SMALL, Margins, inches, sheet, text_width
from workflows.stats.frames import protocol_column

MOST = 40
PITCH = 0.135  # inches from row to row
BAR = 0.4  # inches that the scale needs


def scores_per_task(data: FigureFrames, columns: int) -> dict[str, Figure]:
    """Scores in percent, rows against tasks; the ground is the score over the column's best.

    Columns whose lower values are better, such as perplexities, are left out: they are no percent.
    """
    lines = with_part(data.retain[data.retain["retain"].notna()], data.methods)
    perplexities = set(data.directions.loc[~data.directions["higher_is_better"], "column"])
    tasks = [name for name in lines.columns if ":" in name and name not in perplexities]
    sheets = parts(_once(lines), MOST)
    if len(sheets) > 1:
        sheets = parts(lines, MOST)
    return {suffix: _scores(_once(part), tasks, columns) for suffix, part in sheets.items()}


def _once(lines: pd.DataFrame) -> pd.DataFrame:
    """The lines; those without a protocol once."""
    if lines["match"].nunique() < 2:
        return lines
    labels = lines.assign(match=protocol_column(lines))
    return labels.drop_duplicates(["backbone", "target", "match", "row"]).reset_index(drop=True)


def _scores(lines: pd.DataFrame, tasks: Sequence[str], columns: int) -> Figure:
    values = lines[list(tasks)].to_numpy(dtype=float)
    best = np.nanmax(values, axis=0, keepdims=True)
    heads = [short_name(task) for task in tasks]
    figure, axis = _rows(lines, columns, top=text_width(heads) + 0.1, bottom=0.2, right=0.05)
    size = 5.0 if columns == 1 else SMALL
    write(axis, values / np.where(best > 0, best, 1), values, "{:.1f}", size)
    axis.set_xticks(range(len(tasks)), heads, rotation=90)
    axis.xaxis.tick_top()
    axis.tick_params(length=0)
    axis.set_xlabel("score (%); colour: share of the best of the column", loc="right")
    return figure


def executed_per_layer(data: FigureFrames, columns: int) -> dict[str, Figure]:
    """Share of tokens that ran each layer, or its routed part, rows against layers."""
    lines = with_part(data.layers, data.methods)
    return {suffix: _layers(part, columns) for suffix, part in parts(lines, MOST).items()}


def _layers(lines: pd.DataFrame, columns: int) -> Figure:
    layers = [name for name in lines.columns if isinstance(name, int)]
    values = lines[layers].to_numpy(dtype=float)
    figure, axis = _rows(lines, columns, top=0.1, bottom=0.36, right=BAR)
    wide = inches(axis)[2] / len(layers)
    size = next((s for s in (SMALL, 5.0) if wide > text_width(["100"], s) + 0.03), None)
    write(axis, values, 100 * values, "{:.0f}", size)
    axis.set_xticks(range(0, len(layers), 1 if len(layers) <= 16 else 4))
    axis.tick_params(length=0)
    axis.set_xlabel("layer (0-based); colour: tokens that run it (%)", loc="right")
    scale(figure, axis)
    return figure


def _rows(
    lines: pd.DataFrame, columns: int, top: float, bottom: float, right: float
) -> tuple[Figure, Axes]:
    """One panel with the names of rows beside it."""
    names = line_names(lines)
    figure, (axis,) = sheet(
        columns, [PITCH * len(lines)], 1, Margins(text_width(names) + 0.12, right, top, bottom)
    )  # fmt: skip
    axis.set_yticks(range(len(lines)), names)
    return figure, axis


def write(
    axis: Axes, shares: np.ndarray, values: np.ndarray, form: str, size: float | None
) -> None:
    """Cells (rows, columns) with a ground by ``shares`` in [0, 1]; their text where ``size`` is."""
    paint(axis, shares)
    grounds = mpl.colormaps[mpl.rcParams["image.cmap"]](shares)[..., :3]
    for (y, x), value in np.ndenumerate(values) if size else ():
        text = "–" if np.isnan(value) else form.format(value)
        color = "black" if np.isnan(value) else ink(grounds[y, x])
        axis.text(x, y, text, ha="center", va="center_baseline", fontsize=size, color=color)


def paint(axis: Axes, shares: np.ndarray) -> None:
    """Cells (rows, columns) with a ground by ``shares`` in [0, 1]."""
    axis.imshow(shares, vmin=0, vmax=1, aspect="auto", interpolation="nearest")
    axis.spines[:].set_visible(False)


def ink(ground: Sequence[float]) -> str:
    """Black or white, whichever stands out more (WCAG 2.1: always by 4.5:1 at least)."""
    return "black" if luminance(ground) > 0.179 else "white"


def luminance(color: Sequence[float]) -> float:
    """Relative luminance of an sRGB color in [0, 1] (WCAG 2.1)."""
    parts = np.asarray(color, dtype=float)
    linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
    return float(linear @ [0.2126, 0.7152, 0.0722])


def scale(figure: Figure, axis: Axes) -> None:
    """The scale of the ground, right of a panel."""
    x, y, width, height = inches(axis)
    whole, tall = figure.get_size_inches()
    place = figure.add_axes(((x + width + 0.06) / whole, y / tall, 0.07 / whole, height / tall))
    bar = figure.colorbar(axis.images[0], cax=place, ticks=[0, 0.5, 1])
    bar.ax.set_yticklabels(["0", "50", "100"])
    bar.outline.set_visible(False)
