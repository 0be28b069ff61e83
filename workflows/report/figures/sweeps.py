"""One setting of a method at several values, all others equal: alpha, the width of the memory."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import cycle

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from workflows.report.figures.data import FigureFrames
from workflows.report.figures.style import KINDS, NO_TITLE, Margins, mark, sheet
from workflows.stats.lines import LINE_KEYS

LEAST = 2  # values that make a sweep
STYLES = ("-", "--", ":", "-.")


def alpha_sweep(data: FigureFrames, columns: int) -> dict[str, Figure]:
    """Skip and Retain of rows that pin alpha, over it."""
    return _figures(sweep(data, "alpha"), "alpha", ["retain", "skip"], columns)


def memory_width(data: FigureFrames, columns: int) -> dict[str, Figure]:
    """Retain and net skip over the width of the routers' memory."""
    return _figures(sweep(data, "memory_width"), "memory width", ["retain", "skip_net"], columns)


def sweep(data: FigureFrames, name: str) -> pd.DataFrame:
    """The lines of the retain frame whose rows differ in one param alone.

    Returns:
        With ``value``, the param's, and ``sweep``, a number of the group; at least ``LEAST`` values
        in each group.
    """
    if data.settings.empty:
        return data.retain.assign(value=None, sweep=None).head(0)
    params = [json.loads(text) for text in data.settings["params"]]
    settings = data.settings.assign(
        value=[own.get(name) for own in params],
        rest=[json.dumps(own | {name: None}, sort_keys=True) for own in params],
    )
    pinned = settings[settings["value"].notna()].astype({"value": float})
    lines = data.retain[data.retain["retain"].notna()].merge(pinned, on=["backbone", "row"])
    groups = lines.groupby(["backbone", "target", "match", "method", "rest"], dropna=False)
    sweeps = lines.assign(sweep=groups.ngroup(), several=groups["value"].transform("nunique"))
    return sweeps[sweeps["several"] >= LEAST].sort_values([*LINE_KEYS[:3], "sweep", "value"])


LABELS = {"retain": "Retain (%)", "skip": "skipped (%)", "skip_net": "skipped, net (%)"}


def _figures(
    lines: pd.DataFrame, label: str, measures: Sequence[str], columns: int
) -> dict[str, Figure]:
    """A panel per measure, a line per sweep; none where no row is swept."""
    if lines.empty:
        return {}
    groups = [group for _, group in lines.groupby("sweep", sort=False)]
    figure, axes = sheet(
        columns, [1.4] * len(measures), columns,
        Margins(0.5, 0.1, NO_TITLE, below=0.2 if len(groups) > 1 else 0),
    )  # fmt: skip
    for axis, measure in zip(axes, measures, strict=True):
        for style, group in zip(cycle(STYLES), groups, strict=False):
            _path(axis, group, measure, _name(group, lines), style)
        axis.set_xscale("log")
        values = sorted(set(lines["value"]))
        axis.set_xticks(values, [f"{value:g}" for value in values])
        axis.xaxis.set_minor_locator(NullLocator())
        axis.set_xlabel(label)
        axis.set_ylabel(LABELS[measure])
    if len(groups) > 1:
        handles, names = axes[0].get_legend_handles_labels()
        figure.legend(handles, names, loc="lower center", ncols=len(names), borderaxespad=0.1)
    return {"": figure}


def _path(axis: Axes, group: pd.DataFrame, measure: str, name: str, style: str) -> None:
    """One sweep, Retain with its intervals."""
    kind = str(group["kind"].iloc[0])
    axis.plot(group["value"], group[measure], label=name, color=KINDS[kind].color, linestyle=style)
    span = (group["retain_low"], group["retain_high"]) if measure == "retain" else None
    mark(axis, group["value"], group[measure], kind, yspan=span)


def _name(group: pd.DataFrame, lines: pd.DataFrame) -> str:
    """Method, target and protocol, as far as there are several."""
    words = [str(group["method"].iloc[0])]
    if group["target"].notna().any():
        words.append(f"{group['target'].iloc[0]:g} %")
    if lines["match"].nunique() > 1:
        words.append(str(group["match"].iloc[0]))
    return ", ".join(words)
