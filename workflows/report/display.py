"""Frames as people read them: cells of text with marks, one table for CSV's every line."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from workflows.demo.presets import PRESETS
from workflows.evaluation.tasklist import PERPLEXITY
from workflows.stats.ranking import Mark
from workflows.stats.resample import RESAMPLES

WORDS = frozenset(
    {
        "Backbone",
        "Match",
        "Mode",
        "Row",
        "Note",
        "Missed",
        "Device",
        "Fitted under",
        "torch reports",
    }
)


class Cell(NamedTuple):
    """Text and how it is set."""

    text: str
    mark: Mark = Mark()


@dataclass(frozen=True)
class Table:
    """What is printed.

    Args:
        name: Stem of its files.
        title: Over it.
        columns: Heads.
        lines: Cells, as many per line as there are columns.
        words: Names of the columns that hold words.
        note: Below it.
        match: The protocol of its lines; empty where they are of all.
        ids: What each line is called (:func:`line_id`); empty where lines are no rows at a target.
        groups: Column -> the group of columns that it is shown with; none is always shown.
    """

    name: str
    title: str
    columns: Sequence[str]
    lines: Sequence[Sequence[Cell]]
    words: Collection[str] = ()
    note: str = ""
    match: str = ""
    ids: Sequence[str] = ()
    groups: Mapping[str, str] = field(default_factory=dict)


def line_id(line: Mapping[Any, Any]) -> str:
    """What a line of a frame is called on a page: ``backbone/row/target/match``."""
    parts = [number(line["target"], "{:g}"), number(line["match"], "{}")]
    return "/".join([line["backbone"], line["row"], *parts]).replace("–", "")


@dataclass
class Builder:
    """Collects columns of equal length."""

    columns: dict[str, list[Cell]] = field(default_factory=dict)
    ids: list[str] = field(default_factory=list)
    groups: dict[str, str] = field(default_factory=dict)
    group: str = ""

    def add(self, name: str, texts: Sequence[Any], marks: Sequence[Mark] | None = None) -> None:
        """One column of texts, with marks where they are given, in the group at hand."""
        all_marks = marks or [Mark()] * len(texts)
        self.columns[name] = [Cell(str(t), m) for t, m in zip(texts, all_marks, strict=True)]
        self.groups |= {name: self.group} if self.group else {}

    def lead(self, frame: pd.DataFrame) -> None:
        """The columns that name a line."""
        self.ids = [line_id(line) for line in frame.to_dict("records")]
        if frame["backbone"].nunique() > 1:
            self.add("Backbone", frame["backbone"].tolist())
        self.add("Row", frame["title"].tolist())
        self.add("Target", [number(value, "{:g}") for value in frame["target"]])
        if frame["match"].nunique() > 1:
            self.add("Match", [number(value, "{}") for value in frame["match"]])

    def skips(self, frame: pd.DataFrame, deviations: bool = False) -> None:
        """Skip on prompt and on answer tokens."""
        for head, name in (("On prompts", "skip_prompt"), ("On answers", "skip_answer")):
            spread = frame[f"{name}_std"] if deviations else [None] * len(frame)
            self.add(head, [plus(v, s) for v, s in zip(frame[name], spread, strict=True)])

    def numbers(self, frame: pd.DataFrame, heads: Mapping[str, tuple[str, str]]) -> None:
        """Head -> (column, form) of plain numbers."""
        for name, (column, form) in heads.items():
            self.add(name, [number(value, form) for value in frame[column]])

    def table(self, name: str, title: str, note: str) -> Table:
        """What was collected."""
        lines = list(zip(*self.columns.values(), strict=True))
        return Table(
            name, title, list(self.columns), lines, WORDS, note, ids=self.ids, groups=self.groups
        )


def number(value: Any, form: str = "{:.2f}") -> str:
    """A dash where there is no number."""
    return "–" if value is None or pd.isna(value) else form.format(value)


def plus(value: float | None, deviation: float | None) -> str:
    """``26.00 ± 1.41``, without the deviation where there is none."""
    text = number(value)
    return text if deviation is None or pd.isna(deviation) else f"{text} ± {deviation:.2f}"


def span(low: float | None, high: float | None, form: str = "{:.1f}") -> str:
    """``1.0 to 2.0``."""
    return "–" if low is None or pd.isna(low) else f"{number(low, form)} to {number(high, form)}"


def spans(frame: pd.DataFrame, low: str, high: str, form: str = "{:.1f}") -> list[str]:
    """The intervals of two columns."""
    return [span(a, b, form) for a, b in zip(frame[low], frame[high], strict=True)]


def p_texts(frame: pd.DataFrame, name: str) -> list[str]:
    """The values of a column of p, ≤ where resamples could tell none smaller.

    Holm's correction multiplies the least p of a target by its rows; what it leaves equal to that
    is no better known.
    """
    # Between the least of bootstrap, 2 / (B + 1), and the next.
    least = frame["test"].eq("bootstrap") & (frame["p"] < 3 / (RESAMPLES + 1))
    bound = frame[name].where(least).groupby([frame["backbone"], frame["target"]], dropna=False)
    signs = np.where(frame[name] <= bound.transform("max"), "≤ ", "")
    return [sign + number(p, "{:.4f}") for sign, p in zip(signs, frame[name], strict=True)]


def task_name(task: str) -> str:
    """``demo_two_hop`` -> ``two hop``."""
    world, _, kind = task.partition("_")
    return (kind if world in PRESETS else task).replace("_", " ")


def short_name(column: str) -> str:
    """``demo_facts:acc`` -> ``facts acc``."""
    task, metric = column.rsplit(":", 1)
    label = task_name(task)
    # A perplexity is told apart from other perplexities by the name behind its colon.
    return label if label.split(":")[0] == metric == PERPLEXITY else f"{label} {metric}"
