"""From records and item frames to the lines of a table and their resampled scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from workflows.stats.resample import RESAMPLES, Run, Sample, bootstrap

Record = Mapping[str, Any]


@dataclass(frozen=True)
class Line:
    """A row at a target on a backbone.

    Args:
        backbone: Its name.
        row: Its name in the table.
        budget: Fraction that was asked for; None where none applies or params are pinned.
        records: One per seed.
        runs: Task -> item values (n,) of each record; empty where a run is not applicable.
    """

    backbone: str
    row: str
    budget: float | None
    records: Sequence[Record]
    runs: Sequence[Run]

    @property
    def name(self) -> str:
        """What tells it apart on its backbone."""
        return self.row if self.budget is None else f"{self.row} at {100 * self.budget:g} %"

    @property
    def first(self) -> Record:
        """The record of its first seed."""
        return self.records[0]

    @property
    def done(self) -> bool:
        """Whether every run has scores."""
        return all(record["status"] == "ok" for record in self.records)

    @property
    def one_seed(self) -> bool:
        """Whether its seed matters and no other was run: its intervals know the items alone."""
        return bool(self.first["stochastic"]) and len(self.records) == 1

    @property
    def pairs(self) -> list[tuple[Record, Run]]:
        """Each finished record with its items."""
        return list(zip(self.records, self.runs, strict=True))

    @property
    def weights(self) -> list[str | None]:
        """Hash of the weights of each run; None where a plain folder was scored."""
        return [record["weights_hash"] for record in self.records]

    @property
    def labels(self) -> dict[str, Any]:
        """The columns by which every table names it; the target in percent."""
        return {
            "backbone": self.backbone,
            "target": None if self.budget is None else 100 * self.budget,
            "row": self.row,
            "title": self.first["title"],
        }


@dataclass(frozen=True)
class Panel:
    """The lines of one backbone: what may be compared.

    Args:
        lines: In the table's order.
        reference: The one whose scores are 100 %.
        retain_tasks: Tasks that enter Retain.
        samples: ``"retain"`` and each task -> name of a finished line -> its sample.
    """

    lines: Sequence[Line]
    reference: Line
    retain_tasks: Sequence[str]
    samples: Mapping[str, Mapping[str, Sample]]

    @property
    def done(self) -> list[Line]:
        """The lines that have scores."""
        return [line for line in self.lines if line.done]


def make_panels(
    records: Sequence[Record],
    items: Mapping[int, pd.DataFrame],
    retain_tasks: Sequence[str],
    reference_row: str,
    resamples: int = RESAMPLES,
) -> list[Panel]:
    """One panel per backbone, lines in the order of the records.

    Args:
        records: All runs of one suite.
        items: Index of a record -> its frame of items.
        retain_tasks: Tasks of the Retain.
        reference_row: Row whose scores are 100 %.
        resamples: Of the bootstrap.

    Raises:
        ValueError: A backbone has no finished run of the reference, or items differ.
    """
    panels = []
    for lines in _by_backbone(records, items).values():
        found = [line for line in lines if line.row == reference_row and line.done]
        if not found:
            raise ValueError(
                f"backbone '{lines[0].backbone}' has no record of the row '{reference_row}'"
            )
        runs = {line.name: line.runs for line in lines if line.done}
        samples = bootstrap(runs, found[0].name, retain_tasks, resamples)
        panels.append(Panel(lines, found[0], retain_tasks, samples))
    return panels


def _by_backbone(
    records: Sequence[Record], items: Mapping[int, pd.DataFrame]
) -> dict[str, list[Line]]:
    groups: dict[tuple[str, str, float | None], list[int]] = {}
    for number, record in enumerate(records):
        key = record["backbone"]["name"], record["row"], record["budget"]
        groups.setdefault(key, []).append(number)
    backbones: dict[str, list[Line]] = {}
    for (backbone, row, budget), numbers in groups.items():
        runs = [item_values(items[n], records[n]) for n in numbers if n in items]
        line = Line(backbone, row, budget, [records[n] for n in numbers], runs)
        backbones.setdefault(backbone, []).append(line)
    return backbones


def item_values(frame: pd.DataFrame, record: Record) -> Run:
    """Task -> values (n,) of its headline metric, ordered by item; where more is better."""
    values = {}
    for score in record["scores"]:
        if score["primary"] and score["higher_is_better"]:
            same = headline_items(frame, score)
            values[score["task"]] = same["value"].to_numpy(dtype=np.float64)
    return values


def headline_items(frame: pd.DataFrame, score: Record) -> pd.DataFrame:
    """The items behind one score, ordered."""
    same = (
        (frame["task"] == score["task"])
        & (frame["metric"] == score["metric"])
        & (frame["filter"] == score["filter"])
    )
    return frame[same].sort_values("item")
