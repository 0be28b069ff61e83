"""READMEs that quote results: Jinja templates whose figures are look-ups in committed frames.

``NAME.md.jinja`` below ``reports/reference`` becomes ``NAME.md`` beside it; :data:`PROJECT` becomes
the README of the checkout. A template has three look-ups: :class:`Published` as ``suite(name)``,
:func:`read_data` as ``data(file)`` and :func:`answers_right`. A figure is printed with one decimal
unless ``number`` says otherwise.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

import jinja2
import pandas as pd
import yaml

from methods.core.jsonfile import read_json
from workflows import ROOT
from workflows.report.display import number
from workflows.report.published import SOURCE, Frames, read_frames
from workflows.report.readme_table import published_tables
from workflows.stats.budget import met
from workflows.stats.resample import RETAIN

SUFFIX = ".md.jinja"
PROJECT = f"project{SUFFIX}"
COMMAND = "skipbench publish"
# Answers that each learning rate of the grid gets right, by row.
TRIES = ROOT / "workflows/suites/tuned/demo.yaml"

FrameLine = dict[Any, Any]


class Lead(NamedTuple):
    """By how much one row stands above another in a measure, with the 95 % interval."""

    points: float
    low: float
    high: float


class Spread(NamedTuple):
    """Mean, least and most of several numbers."""

    mean: float
    least: float
    most: float


class Published:
    """The committed frames of one suite.

    Args:
        folder: Where they lie.
        page: The README that quotes them.
    """

    def __init__(self, folder: Path, page: Path) -> None:
        self.folder, self.page = folder, page

    @cached_property
    def frames(self) -> Frames:
        """Name -> frame."""
        return read_frames(self.folder)

    @cached_property
    def source(self) -> dict[str, Any]:
        """Which code, machine and settings made them."""
        return read_json(self.folder / SOURCE)

    @property
    def table(self) -> str:
        """Retain of every row as Markdown, one table per protocol, with its notes."""
        link = os.path.relpath(self.folder / "retain.csv", self.page.parent)
        return published_tables(self.frames, self.source, link)

    def lines(self, frame: str, **where: Any) -> list[FrameLine]:
        """Lines of a frame whose columns have these values."""
        lines = self.frames[frame]
        for column, value in where.items():
            lines = lines[lines[column] == value]
        return lines.to_dict("records")

    def line(self, frame: str, **where: Any) -> FrameLine:
        """The only line of a frame whose columns have these values.

        Raises:
            ValueError: There is none, or several.
        """
        lines = self.lines(frame, **where)
        if len(lines) != 1:
            raise ValueError(
                f"{self.folder / frame}.csv has {len(lines)} lines with {where}, not 1"
            )
        return lines[0]

    def retain(self, row: str, target: float | None = None, match: str = "pooled") -> FrameLine:
        """The line of a row; ``target`` in percent, None for a row without a budget."""
        where = {"row": row, "match": match} | ({} if target is None else {"target": target})
        return self.line("retain", **where)

    def lead(
        self, row: str, other: str, target: float, match: str = "pooled", measure: str = RETAIN
    ) -> Lead:
        """``row`` - ``other``; one of the two is an opponent in the frame of differences."""
        where = {"target": target, "match": match, "measure": measure}
        if not self.lines("differences", row=row, against=other, **where):
            points, low, high = self.lead_of_line(row=other, against=row, **where)
            return Lead(-points, -high, -low)
        return self.lead_of_line(row=row, against=other, **where)

    def lead_of_line(self, **where: Any) -> Lead:
        """The difference that one line of the frame holds."""
        line = self.line("differences", **where)
        return Lead(line["difference"], line["low"], line["high"])

    def gains(
        self, rows: Sequence[str], others: Sequence[str], target: float, match: str
    ) -> Spread:
        """Points of Retain of each row over its partner in ``others``."""
        pairs = zip(rows, others, strict=True)
        points = [
            self.retain(row, target, match)["retain"] - self.retain(other, target, match)["retain"]
            for row, other in pairs
        ]
        return Spread(sum(points) / len(points), min(points), max(points))


def answers_right(row: str, budget: float) -> tuple[float, float]:
    """Least and most percent of validation answers over the grid of learning rates, pooled.

    Args:
        row: As in the file of tries. Tries at its first length count: all rows have these.
        budget: Of tries for it count those that met it within a point, and those that diverged, at
            0. A healed row's have no skip.
    """
    tries = yaml.safe_load(TRIES.read_text(encoding="utf-8"))["tries"][row]
    tries = [one for one in tries if one["updates"] == tries[0]["updates"]]
    right = [
        one["right"]
        for one in tries
        if (one.get("match", "pooled"), one["budget"]) == ("pooled", budget)
        and met(budget, one.get("skip", budget))
    ]
    return 100 * min(right), 100 * max(right)


def read_data(reference: Path, name: str) -> Any:
    """A JSON file, or the lines of a CSV file, below the folder of committed results."""
    file = reference / name
    if file.suffix == ".json":
        return read_json(file)
    return pd.read_csv(file, float_precision="round_trip").to_dict("records")


def page_of(template: Path) -> Path:
    """The README that a template becomes."""
    if template.name == PROJECT:
        return template.parents[2] / "README.md"
    return template.with_suffix("")


def templates(reference: Path) -> list[Path]:
    """All templates below the folder of committed results."""
    return sorted(reference.rglob(f"*{SUFFIX}"))


def render(template: Path, reference: Path) -> str:
    """The text of a README.

    Args:
        template: Its file.
        reference: Folder of committed results, which look-ups read.

    Raises:
        ValueError: The template has a mistake, or a figure is in no frame.
    """
    page = page_of(template)
    environment = jinja2.Environment(
        undefined=jinja2.StrictUndefined, finalize=figure, trim_blocks=True, lstrip_blocks=True,
        keep_trailing_newline=True,
    )  # fmt: skip
    look_ups: Mapping[str, Any] = {
        "suite": lambda name: Published(reference / name, page),
        "data": partial(read_data, reference),
        "answers_right": answers_right,
        "number": number,
        "with_interval": with_interval,
    }
    try:
        text = environment.from_string(template.read_text(encoding="utf-8")).render(look_ups)
    except (jinja2.TemplateError, KeyError) as error:
        raise ValueError(f"{template}: {error}") from error
    origin = os.path.relpath(template, page.parent)
    return f"<!-- Made from {origin} by {COMMAND}: edit that file. -->\n{text}"


def with_interval(line: FrameLine, measure: str = "retain") -> str:
    """Retain or ``above_chance`` of a line of the frame ``retain``, with its 95 % interval."""
    stem = measure.removesuffix("_chance")
    value, low, high = (figure(line[name]) for name in (measure, f"{stem}_low", f"{stem}_high"))
    return f"{value} ({low} to {high})"


def figure(value: Any) -> Any:
    """A number as the prose has it.

    Raises:
        ValueError: A frame has a gap there.
    """
    if not isinstance(value, float):
        return value
    if pd.isna(value):
        raise ValueError("a template quotes a number that its frame lacks")
    return f"{value:z.1f}"
