"""The table of two folders side by side, as compare writes it."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from workflows.report.display import (
    Builder,
    Table,
    p_texts,
    spans,
)
from workflows.report.suite_tables import DISTANT, LEAST, add_tasks
from workflows.stats.lines import LINE_KEYS
from workflows.stats.resample import RETAIN


def comparison_table(frame: pd.DataFrame, equality: pd.DataFrame, folders: Sequence[str]) -> Table:
    """Two folders side by side: Retain of both, the differences of every task, what is equal."""
    main = frame[frame["measure"] == RETAIN].reset_index(drop=True)
    builder = Builder()
    builder.lead(main)
    for side in "ab":
        builder.numbers(main, {f"Retain {side.upper()}": (side, "{:.2f}")})
        builder.add(f"95 % interval {side.upper()}", spans(main, f"{side}_low", f"{side}_high"))
    builder.numbers(main, {"B - A": ("difference", "{:+.2f}")})
    builder.add("95 % interval", spans(main, "low", "high", "{:+.2f}"))
    builder.add("p", p_texts(main, "p"))
    _add_distances(builder, main, frame)
    add_tasks(builder, main, frame, "p")
    note = (
        f"A: {folders[0]}, B: {folders[1]}, match {' and '.join(frame['match'].unique())}. Task "
        "columns: points, B minus A; *: p below 5 % (single runs, which know the items alone: "
        "exact McNemar test; several seeds: bootstrap over items and seeds; not corrected). "
        + f"{LEAST} "
        + " ".join([*_agreement_sentences(equality), *[DISTANT] * ("KL A" in builder.columns)])
    )
    return builder.table("compare", "Two folders", note)


def _add_distances(builder: Builder, main: pd.DataFrame, frame: pd.DataFrame) -> None:
    """Add KL and agreement of both folders, with the interval of their difference."""
    heads = {"kl": ("KL", "4f"), "agreement": ("Agreement", "2f")}
    for measure in (name for name in heads if (frame["measure"] == name).any()):
        head, digits = heads[measure]
        same = main[LINE_KEYS].merge(frame[frame["measure"] == measure], on=LINE_KEYS, how="left")
        for side in "ab":
            builder.numbers(same, {f"{head} {side.upper()}": (side, f"{{:.{digits}}}")})
        builder.numbers(same, {f"{head}, B - A": ("difference", f"{{:+.{digits}}}")})
        builder.add(f"{head}, B - A, 95 % interval", spans(same, "low", "high", f"{{:+.{digits}}}"))


def _agreement_sentences(frame: pd.DataFrame) -> list[str]:
    return [
        f"Of {line['runs']} runs of {line['rows']} rows in both, {line['weights']} have the "
        f"same weights, {line['items']} every item scored alike; Retain differs by up "
        f"to {line['retain']:.2f} points."
        for line in frame.to_dict("records")
    ]
