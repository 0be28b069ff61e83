"""What training logged: loss, skip and the weight of the penalty over updates."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator

from workflows.report.figures.data import FigureFrames
from workflows.report.figures.lines import line_names, of_run, parts, with_part
from workflows.report.figures.style import NO_TITLE, SMALL, WIDTHS, Margins, sheet, text_width
from workflows.stats.lines import LINE_KEYS

MOST = 8  # lines that one panel tells apart
HANDLE = 0.45  # inches of a line in the legend with its gaps
SMOOTH = 15  # points of the log in each mean
LABELS = {
    "loss": "training loss",
    "skip": "skipped (%)",
    "alpha": "weight of the penalty",
}


def training(data: FigureFrames, columns: int) -> dict[str, Figure]:
    """Running means of the log, a line per trained row."""
    if data.curves.empty:
        return {}
    runs = with_part(data.curves, data.methods).drop_duplicates(LINE_KEYS)
    sheets = parts(runs, MOST)
    return {suffix: _sheet(part, data.curves, columns) for suffix, part in sheets.items()}


def _sheet(runs: pd.DataFrame, curves: pd.DataFrame, columns: int) -> Figure:
    names = line_names(runs)
    paths = [_path(of_run(curves, run)) for run in runs.to_dict("records")]
    measures = [name for name in LABELS if any(path[name].notna().any() for path in paths)]
    beside = int((WIDTHS[columns] - 0.2) / (text_width(names, SMALL + 0.5) + HANDLE))
    rows = -(-len(names) // beside)
    figure, axes = sheet(
        columns, [1.4] * len(measures), 1 if columns == 1 else len(LABELS),
        Margins(0.55, 0.13, NO_TITLE, below=0.16 * rows),
    )  # fmt: skip
    for axis, measure in zip(axes, measures, strict=True):
        for name, path in zip(names, paths, strict=True):
            axis.plot(path["update"], path[measure], label=name)
        axis.margins(x=0.01)
        axis.set_xlabel("update")
        axis.set_ylabel(LABELS[measure], labelpad=2)
    axes[0].set_yscale("log")
    axes[0].yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes[0].yaxis.set_major_formatter("{x:g}")
    axes[0].yaxis.set_minor_locator(NullLocator())
    if "alpha" in measures:
        # A controller may hold it at zero for a while.
        weight = axes[measures.index("alpha")]
        weight.set_yscale("symlog", linthresh=1e-4)
        weight.yaxis.set_major_formatter("{x:g}")
    figure.legend(
        *axes[0].get_legend_handles_labels(), loc="lower center", ncols=-(-len(names) // rows),
        borderaxespad=0.1, columnspacing=1.2, handlelength=2.6,
    )  # fmt: skip
    return figure


def _path(log: pd.DataFrame) -> pd.DataFrame:
    """The smoothed log of one run."""
    values = log[["update", *LABELS]].astype(float).reset_index(drop=True)
    # A weight that is always 0 means that there is no penalty.
    if not values["alpha"].any():
        values["alpha"] = np.nan
    smooth = values[list(LABELS)].rolling(SMOOTH, min_periods=1).mean()
    return smooth.assign(update=values["update"])
