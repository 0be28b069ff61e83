"""Tables for people: cells of text with marks, and a builder of their columns."""

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

WORDS = frozenset({"Backbone", "Match", "Mode", "Row", "Note", "Missed", "Overtakes", "Device"})


class Cell(NamedTuple):
    """Text and its mark."""

    text: str
    mark: Mark = Mark()


@dataclass(frozen=True)
class Table:
    """A table for people.

    Args:
        name: Stem of its files.
        title: Its heading.
        columns: Heads of the columns.
        lines: Cells, one per column.
        words: Names of the columns that hold words.
        note: The text below it.
        match: The protocol of its lines; empty where they are of several.
        ids: Name of each line (:func:`line_id`); empty where lines are not rows at a target.
        groups: Column -> the group that a reader switches on; columns without one are always on.
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

    def __post_init__(self) -> None:
        if "/" in self.name:
            raise ValueError(f"a table's name is that of its files: '{self.name}' may hold no '/'")


def line_id(line: Mapping[Any, Any]) -> str:
    """Name of a line of a frame on the page: ``backbone/row/target/match``."""
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
        """Add a column of texts, with marks if there are any, to the current group."""
        all_marks = marks or [Mark()] * len(texts)
        self.columns[name] = [Cell(str(t), m) for t, m in zip(texts, all_marks, strict=True)]
        self.groups |= {name: self.group} if self.group else {}

    def lead(self, frame: pd.DataFrame) -> None:
        """Add the columns that name a line."""
        self.ids = [line_id(line) for line in frame.to_dict("records")]
        if frame["backbone"].nunique() > 1:
            self.add("Backbone", frame["backbone"].tolist())
        self.add("Row", frame["title"].tolist())
        self.add("Target", [number(value, "{:g}") for value in frame["target"]])
        if frame["match"].nunique() > 1:
            self.add("Match", [number(value, "{}") for value in frame["match"]])

    def spread(
        self, frame: pd.DataFrame, head: str, name: str, marks: Sequence[Mark] | None = None
    ) -> None:
        """Add a column of numbers, each with its standard deviation."""
        pairs = zip(frame[name], frame[f"{name}_std"], strict=True)
        self.add(head, [plus(value, deviation) for value, deviation in pairs], marks)

    def seeds(self, frame: pd.DataFrame) -> None:
        """Add how many seeds each row ran, where rows differ in it."""
        if frame["seeds"].nunique() > 1:
            self.numbers(frame, {"Seeds": ("seeds", "{:.0f}")})

    def skips(self, frame: pd.DataFrame, deviations: bool = False) -> None:
        """Add skip on prompt and on answer tokens."""
        for head, name in (("On prompts", "skip_prompt"), ("On answers", "skip_answer")):
            if deviations:
                self.spread(frame, head, name)
            else:
                self.add(head, [plus(value, None) for value in frame[name]])

    def beside(self, frame: pd.DataFrame) -> None:
        """Add the measures beside Retain that the frame has."""
        heads = {
            "Above chance": "above_chance", "Flips": "flips", "Changed": "changed", "KL": "kl",
            "Agreement": "agreement", "KL on answers": "kl_answer",
            "Agreement on answers": "agreement_answer",
        }  # fmt: skip
        present = {head: name for head, name in heads.items() if has(frame, name)}
        for head, name in present.items():
            form = "{:.4f}" if name.startswith("kl") else "{:.2f}"
            self.add(head, [number(value, form) for value in frame[name]])
            if name == "above_chance":
                self.add("Above chance, 95 % interval", spans(frame, "above_low", "above_high"))
            if name == "kl":
                self.add("KL, 95 % interval", spans(frame, "kl_low", "kl_high", "{:.4f}"))

    def numbers(self, frame: pd.DataFrame, heads: Mapping[str, tuple[str, str]]) -> None:
        """Add columns of numbers, by head -> (column of the frame, format)."""
        for name, (column, form) in heads.items():
            self.add(name, [number(value, form) for value in frame[column]])

    def table(self, name: str, title: str, note: str) -> Table:
        """The table of all columns so far."""
        lines = list(zip(*self.columns.values(), strict=True))
        return Table(
            name, title, list(self.columns), lines, WORDS, note, ids=self.ids, groups=self.groups
        )


def has(frame: pd.DataFrame, column: str) -> bool:
    """Whether a frame has a number in a column."""
    return column in frame and bool(frame[column].notna().any())


def number(value: Any, form: str = "{:.2f}") -> str:
    """A number as text; a dash where there is none."""
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
    """A column of p as texts, with ≤ where resamples cannot give a smaller p.

    Holm's correction multiplies the least p of a target by its number of rows, and may raise larger
    ones to the same value: these get ≤ as well.
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
    # The name after the colon tells perplexities apart.
    return label if label.split(":")[0] == metric == PERPLEXITY else f"{label} {metric}"
