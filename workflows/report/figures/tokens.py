"""What ran for each token of a prompt."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from workflows.report.figures.data import FigureFrames
from workflows.report.figures.heat import paint
from workflows.report.figures.lines import line_names, of_run, parts, with_part
from workflows.report.figures.style import GREY, SMALL, Margins, sheet
from workflows.stats.lines import LINE_KEYS

MOST = 8
TOKENS = {1: 30, 2: 64}  # that can be read at a paper's width
TALL = 0.62  # inches of a row's panel
WORD = 12  # characters of a token that are shown
CAPTION = (
    "dark blue: the layer, or the part in the title, ran; mid blue: its FFN alone;\n"
    "light blue: attention alone; white: skipped; right of the line: answer tokens"
)


def token_map(data: FigureFrames, columns: int) -> dict[str, Figure]:
    """Layers against the last tokens of the first prompt that is routed, a panel per row."""
    if data.routes.empty:
        return {}
    first = data.routes[data.routes["task"] == data.routes["task"].iloc[0]]
    runs = with_part(first, data.methods).drop_duplicates(LINE_KEYS)
    return {suffix: _sheet(part, first, columns) for suffix, part in parts(runs, MOST).items()}


def _sheet(runs: pd.DataFrame, routes: pd.DataFrame, columns: int) -> Figure:
    """Rows below each other, the tokens as words below the last."""
    figure, axes = sheet(
        columns, [TALL] * len(runs), 1, Margins(0.38, 0.05, top=0.17, bottom=0.05, below=0.75)
    )
    for axis, name, run in zip(axes, line_names(runs), runs.to_dict("records"), strict=True):
        _panel(axis, of_run(routes, run), TOKENS[columns])
        axis.set_title(name, loc="left", pad=2)
    words = axes[-1]
    own = of_run(routes, runs.iloc[-1].to_dict())
    last = own.drop_duplicates("place").nlargest(TOKENS[columns], "place").sort_values("place")
    words.set_xticks(range(len(last)), [_word(token) for token in last["token"]], rotation=90)
    words.tick_params(axis="x", labelsize=5, length=0, pad=1)
    figure.text(0.5, 0.04 / figure.get_figheight(), CAPTION, ha="center", fontsize=SMALL)
    return figure


def _panel(axis: Axes, own: pd.DataFrame, most: int) -> None:
    """Layers upwards, the last tokens to the right; a line before the answer tokens."""
    shares = own.pivot(index="layer", columns="place", values="ran").iloc[:, -most:]
    paint(axis, shares.to_numpy(dtype=float))
    axis.invert_yaxis()
    first = own[own["answer"].astype(bool)]["place"].min() - shares.columns[0]
    axis.axvline(first - 0.5, color=GREY, linewidth=0.8, linestyle="--")
    axis.set_xticks([])
    axis.set_yticks([0, len(shares) - 1])
    axis.tick_params(axis="y", length=0)
    axis.set_ylabel("layer", labelpad=-4)


def _word(token: str) -> str:
    """A token as text: white space as a sign, nothing that ends a line."""
    return token.strip(" ")[:WORD].replace("\n", "↵") or "␣"
