"""The figures of a report: drawn from the frames of workflows/stats/tables.py alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from workflows.stats.display import short_name
from workflows.stats.paired import LEVEL
from workflows.stats.resample import RETAIN
from workflows.stats.tables import protocol_column
from workflows.stats.versus import FOCUS

NAME_HEIGHT = 0.17  # inches of a figure that a name beside a point needs
NEAR = 6.0  # points of skip that a column of names is wide
KIND_STYLE = {
    "reference": ("#333333", "s", "reference"),
    "static": ("#c1651a", "o", "static: fixed before use"),
    "dynamic": ("#1f6fb2", "^", "dynamic: decided per token"),
}
# No dates and no random ids in the files: the same records give the same bytes.
plt.rcParams.update(
    {
        "svg.hashsalt": "skipbench",
        "font.size": 9,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "figure.dpi": 150,
        "savefig.bbox": "tight",
    }
)


def draw_all(
    retain: pd.DataFrame, differences: pd.DataFrame, layers: pd.DataFrame, folder: Path
) -> None:
    """Write every figure as PNG and SVG into ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    figures: dict[str, Callable[[], Figure]] = {
        "retain_over_skip": lambda: retain_over_skip(retain),
        "differences": lambda: forest(retain, differences),
        "scores_per_task": lambda: scores_per_task(retain),
        "executed_per_layer": lambda: executed_per_layer(layers),
    }
    for name, draw in figures.items():
        figure = draw()
        figure.savefig(folder / f"{name}.png", metadata={"Software": None})
        figure.savefig(folder / f"{name}.svg", metadata={"Date": None})
        plt.close(figure)


def retain_over_skip(frame: pd.DataFrame) -> Figure:
    """Retain with its interval against the realised skip, one point per line of the table."""
    shown = frame[frame["retain"].notna()]
    panels = [part for _, part in shown.groupby(["backbone", "match"], sort=False)]
    columns = [_columns(part) for part in panels]
    most = max((len(lines) for found in columns for lines in found), default=0)
    size = (6.4 if most <= 20 else 9.0) * len(panels), max(4.0, NAME_HEIGHT * most)
    figure, axes = plt.subplots(1, len(panels), figsize=size, squeeze=False, sharey=True)
    figure.subplots_adjust(bottom=0.44 / size[1], top=1 - 0.48 / size[1])
    for axis, part, found in zip(axes[0], panels, columns, strict=True):
        for _, line in part.iterrows():
            color, marker, _ = KIND_STYLE[line["kind"]]
            spread = [
                [line["retain"] - line["retain_low"]],
                [line["retain_high"] - line["retain"]],
            ]
            axis.errorbar(
                line["skip"], line["retain"], yerr=np.clip(spread, 0, None), fmt=marker,
                color=color, capsize=2, markersize=5, linewidth=1,
            )  # fmt: skip
        _label_points(axis, part, found)
        axis.axhline(100, color="#999999", linewidth=0.8, linestyle=":")
        axis.set_xlabel("parameters skipped per token, realised (%)")
        named = f"{part['backbone'].iloc[0]}, match {part['match'].iloc[0]}"
        axis.set_title(named if len(panels) > 1 else "", fontsize=9)
    axes[0][0].set_ylabel("Retain (%), with 95 % interval")
    present = [kind for kind in KIND_STYLE if kind in set(shown["kind"])]
    handles = [
        Line2D([], [], color=KIND_STYLE[k][0], marker=KIND_STYLE[k][1], linestyle="")
        for k in present
    ]
    figure.legend(
        handles, [KIND_STYLE[k][2] for k in present], loc="lower center", ncols=len(present),
        frameon=False, bbox_to_anchor=(0.5, -0.4 / size[1]),
    )  # fmt: skip
    return figure


def _columns(part: pd.DataFrame) -> list[pd.DataFrame]:
    """Lines that share a column of names: those of a target, and targets that lie close."""
    found: list[pd.DataFrame] = []
    groups = [group for _, group in part.groupby("target", dropna=False)]
    for group in sorted(groups, key=lambda lines: float(lines["skip"].max())):
        if found and group["skip"].max() - found[-1]["skip"].max() < NEAR:
            found[-1] = pd.concat([found[-1], group])
        else:
            found.append(group)
    return [lines.sort_values("retain", ascending=False) for lines in found]


def _apart(wanted: Sequence[float], step: float, lowest: float) -> list[float]:
    """Falling heights near the wanted ones, ``step`` apart, above ``lowest`` if there is room."""
    heights: list[float] = []
    for height in wanted:
        heights.append(min(height, heights[-1] - step) if heights else height)
    for place in reversed(range(len(heights))):
        heights[place] = max(heights[place], lowest)
        lowest = heights[place] + step
    return heights


def _label_points(axis: Axes, part: pd.DataFrame, columns: Sequence[pd.DataFrame]) -> None:
    """Names in a column right of the points of each target, apart from each other, with leaders."""
    low, high = part["retain_low"].min(), part["retain_high"].max()
    figure = axis.figure
    assert isinstance(figure, Figure)
    step = max(high - low, 1.0) * NAME_HEIGHT / figure.get_size_inches()[1]
    for lines in columns:
        column = lines["skip"].max() + 1.2
        heights = _apart(lines["retain"].tolist(), step, low)
        for height, (_, line) in zip(heights, lines.iterrows(), strict=True):
            axis.annotate(
                line["title"], (line["skip"], line["retain"]), xytext=(column, height),
                va="center", fontsize=7.5,
                arrowprops={
                    "arrowstyle": "-", "linewidth": 0.4, "color": "#888888", "relpos": (0, 0.5)
                },
            )  # fmt: skip
    axis.set_xlim(part["skip"].min() - 1.5, part["skip"].max() + 11)


def forest(retain: pd.DataFrame, differences: pd.DataFrame) -> Figure:
    """Differences of Retain with their intervals: from HeRo, or from the reference without it."""
    main = differences[differences["measure"] == RETAIN]
    opponents = list(dict.fromkeys(main["against"]))
    against = FOCUS if FOCUS in opponents else next(iter(opponents), FOCUS)
    shown = main[main["against"] == against].merge(
        retain[["backbone", "row", "kind"]].drop_duplicates(), on=["backbone", "row"]
    )
    names = _line_names(shown)
    figure, axis = plt.subplots(figsize=(6.4, 1.0 + 0.3 * max(1, len(shown))))
    for height, (_, line) in enumerate(shown.iterrows()):
        color, marker, _ = KIND_STYLE[line["kind"]]
        spread = [[line["difference"] - line["low"]], [line["high"] - line["difference"]]]
        told = line["p_holm"] < LEVEL
        axis.errorbar(
            line["difference"], height, xerr=np.clip(spread, 0, None), fmt=marker, color=color,
            markerfacecolor=color if told else "white", capsize=2, markersize=5, linewidth=1,
        )  # fmt: skip
    axis.axvline(0, color="#999999", linewidth=0.8, linestyle=":")
    axis.set_yticks(range(len(shown)), names)
    axis.set_ylim(len(shown) - 0.5, -0.5)
    title = retain.loc[retain["row"] == against, "title"].iloc[0] if len(shown) else against
    axis.set_xlabel(f"Retain minus that of {title} (points), with 95 % interval")
    return figure


def scores_per_task(frame: pd.DataFrame) -> Figure:
    """Scores in percent, rows against tasks; the shade is the score over the dense score."""
    named = frame.assign(match=protocol_column(frame))
    lines = named.drop_duplicates(["backbone", "target", "match", "row"])
    shown = lines[lines["retain"].notna()].reset_index(drop=True)
    tasks = [name for name in shown.columns if ":" in name and "perplexity" not in name]
    values = shown[tasks].to_numpy(dtype=float)
    best = np.nanmax(values, axis=0, keepdims=True)
    figure, axis = plt.subplots(figsize=(1.6 + 0.85 * len(tasks), 1.2 + 0.32 * len(shown)))
    axis.imshow(
        values / np.where(best > 0, best, 1), cmap="Blues", vmin=0, vmax=1.35, aspect="auto"
    )
    for (y, x), value in np.ndenumerate(values):
        text = "–" if np.isnan(value) else f"{value:.1f}"
        axis.text(x, y, text, ha="center", va="center", fontsize=8)
    axis.set_yticks(range(len(shown)), _line_names(shown))
    labels = [short_name(task).rsplit(" ", 1) for task in tasks]
    axis.set_xticks(range(len(tasks)), ["\n".join(label) for label in labels], fontsize=8)
    axis.tick_params(length=0)
    axis.spines[:].set_visible(False)
    axis.xaxis.tick_top()
    axis.set_xlabel("score (%); shade: relative to the best row of the column", fontsize=8)
    return figure


def _line_names(lines: pd.DataFrame) -> list[str]:
    """Title and target of each line; backbone and protocol where the lines have several."""
    backbones, matches = lines["backbone"].nunique() > 1, lines["match"].nunique() > 1
    names = []
    for line in lines.to_dict("records"):
        # A reference skips nothing; it has a target where a row with one is subtracted from it.
        beside = "against " if line["kind"] == "reference" else ""
        target = "" if pd.isna(line["target"]) else f", {beside}{line['target']:g} %"
        match = f", {line['match']}" if matches and not pd.isna(line["match"]) else ""
        backbone = f"{line['backbone']}: " if backbones else ""
        names.append(f"{backbone}{line['title']}{target}{match}")
    return names


def executed_per_layer(layers: pd.DataFrame) -> Figure:
    """Share of tokens that ran each layer (its routed part), rows against layers."""
    values = layers.to_numpy(dtype=float)
    figure, axis = plt.subplots(
        figsize=(2.2 + 0.36 * values.shape[1], 1.0 + 0.32 * values.shape[0])
    )
    image = axis.imshow(values, cmap="Blues", vmin=0, vmax=1, aspect="auto")
    for (y, x), value in np.ndenumerate(values):
        if values.shape[1] <= 16 and 0 < value < 1:
            color = "white" if value > 0.6 else "black"
            axis.text(x, y, f"{100 * value:.0f}", ha="center", va="center", fontsize=7, color=color)
    axis.set_yticks(range(len(layers)), list(layers.index))
    step = 1 if values.shape[1] <= 16 else 4
    axis.set_xticks(range(0, values.shape[1], step))
    axis.set_xlabel("layer (0-based)")
    axis.tick_params(length=0)
    axis.spines[:].set_visible(False)
    bar = figure.colorbar(image, ax=axis, pad=0.02)
    bar.set_label("share of tokens that run it", fontsize=8)
    return figure
