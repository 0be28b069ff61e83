"""From records and item frames to the lines of a table and their resampled scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from workflows.records.parts import Score
from workflows.records.record import PROTOCOLS, Protocol, Record
from workflows.stats.distances import distances
from workflows.stats.measures import Choices, Measures, measure
from workflows.stats.resample import RESAMPLES, Run, bootstrap
from workflows.stats.retain import Floats, retain
from workflows.stats.sampling import Sample, without_seeds

# Columns of a frame that name a line.
LINE_KEYS = ["backbone", "target", "match", "row"]


@dataclass(frozen=True)
class Line:
    """A row at one target, on one backbone and by one protocol: a line of a table.

    Args:
        backbone: Its name.
        match: The protocol of its panel.
        row: Its name in the table.
        budget: Fraction that was asked for; None where none applies or params are pinned.
        records: One per seed.
        runs: Task -> item values (n,) of each record; empty where a run is not applicable.
        choices: Task -> chosen answers (n,) of each of the runs, where answers are chosen.
    """

    backbone: str
    match: Protocol
    row: str
    budget: float | None
    records: Sequence[Record]
    runs: Sequence[Run]
    choices: Sequence[Choices]

    @property
    def name(self) -> str:
        """Its name, unique in its panel. The random draws of its seeds follow from it."""
        return self.row if self.budget is None else f"{self.row} at {100 * self.budget:g} %"

    @property
    def first(self) -> Record:
        """The record of its first seed."""
        return self.records[0]

    @property
    def done(self) -> bool:
        """Whether every run has scores."""
        return all(record.done for record in self.records)

    @property
    def one_seed(self) -> bool:
        """Whether its seed matters and it has one run. Its intervals then cover items only."""
        return self.first.stochastic and len(self.records) == 1

    @property
    def pairs(self) -> list[tuple[Record, Run]]:
        """Each finished record with its items."""
        return list(zip(self.records, self.runs, strict=True))

    @property
    def weights(self) -> list[str | None]:
        """Hash of the weights of each run; None where a plain folder was scored."""
        return [record.weights_hash for record in self.records]

    @property
    def labels(self) -> dict[str, Any]:
        """The columns that name it in every table; the target in percent."""
        return {
            "backbone": self.backbone,
            "target": None if self.budget is None else 100 * self.budget,
            "match": self.match,
            "row": self.row,
            "title": self.first.title,
        }


@dataclass(frozen=True)
class Panel:
    """The lines of one backbone and one protocol: what may be compared.

    Args:
        match: The protocol.
        lines: In the table's order.
        reference: The one whose scores are 100 %.
        retain_tasks: Tasks that enter Retain.
        measure_tasks: Tasks that may enter the measures beside it.
        samples: ``"retain"`` and each task -> name of a finished line -> its sample.
        measures: What stands beside Retain.
        distances: KL and agreement -> name of a line that was compared with the dense model on
            texts -> its sample.
    """

    match: Protocol
    lines: Sequence[Line]
    reference: Line
    retain_tasks: Sequence[str]
    measure_tasks: Sequence[str]
    samples: Mapping[str, Mapping[str, Sample]]
    measures: Measures
    distances: Mapping[str, Mapping[str, Sample]]

    @property
    def name(self) -> str:
        """Its name, unique in a results folder."""
        return f"{self.reference.backbone} ({self.match})"

    @property
    def done(self) -> list[Line]:
        """The lines that have scores."""
        return [line for line in self.lines if line.done]

    def sample(self, line: Line, measure: str) -> Sample | None:
        """Of Retain, of a task or of a measure beside Retain: None where it was not measured."""
        return self.by_measure[measure].get(line.name)

    @property
    def by_measure(self) -> dict[str, Mapping[str, Sample]]:
        """Retain, task or measure beside them -> line -> sample."""
        return {**self.samples, **self.beside}

    @property
    def beside(self) -> dict[str, Mapping[str, Sample]]:
        """Measure beside Retain -> line -> sample."""
        return {**self.measures.samples, **self.distances}

    @property
    def texts(self) -> str | None:
        """Hash of the texts on which its lines were compared with the dense model."""
        fidelities = (record.fidelity for line in self.lines for record in line.records)
        return next((one.texts for one in fidelities if one is not None), None)

    def retain(self, run: Run) -> float:
        """The Retain of one run, in percent."""
        base = {task: self.samples[task][self.reference.name].value for task in self.retain_tasks}
        return 100 * float(retain({task: run[task].mean() for task in base}, base))


def make_panels(
    records: Sequence[Record],
    items: Mapping[int, pd.DataFrame],
    retain_tasks: Sequence[str],
    reference_row: str,
    measure_tasks: Sequence[str] | None = None,
    resamples: int = RESAMPLES,
) -> list[Panel]:
    """One panel per backbone and protocol, lines in the order of the records.

    Runs without a protocol are in the panels of all protocols.

    Args:
        records: All runs of one suite.
        items: Index of a record -> its frame of items.
        retain_tasks: Tasks of the Retain. A panel leaves out tasks whose items its reference solves
            none of, here and in ``measure_tasks``.
        reference_row: Row whose scores are 100 %.
        measure_tasks: Tasks of Above chance, flips and changed answers; None: those of Retain.
        resamples: Of the bootstrap.

    Raises:
        ValueError: A backbone has no finished run of the reference, its reference solves nothing,
            or items differ.
    """
    panels = []
    for backbone, match in _panels(records):
        lines = _lines(records, items, backbone, match)
        references = [line for line in lines if line.row == reference_row and line.done]
        if not references:
            raise ValueError(f"backbone '{backbone}' has no record of the row '{reference_row}'")
        runs = {line.name: line.runs for line in lines if line.done}
        base = references[0].runs
        tasks, others = (
            [task for task in names if any(task not in run or run[task].any() for run in base)]
            for names in (retain_tasks, measure_tasks or retain_tasks)
        )
        if not tasks:
            raise ValueError(
                f"'{reference_row}' on '{backbone}' solves nothing, so there is no Retain"
            )
        reference = references[0]
        samples = bootstrap(runs, reference.name, tasks, resamples)
        choices = {line.name: line.choices for line in lines if line.done}
        heads = reference.first.headlines
        chances = {t: c for t in others if t in heads and (c := heads[t].chance) is not None}
        measures = measure(runs, choices, samples, reference.name, others, tasks, chances)
        apart = distances({line.name: line.records for line in lines if line.done}, resamples)
        alone = {line.name for line in lines if line.one_seed}
        measures = replace(measures, samples=without_seeds(measures.samples, alone))
        samples, apart = without_seeds(samples, alone), without_seeds(apart, alone)
        panels.append(Panel(match, lines, reference, tasks, others, samples, measures, apart))
    return panels


def _panels(records: Sequence[Record]) -> list[tuple[str, Protocol]]:
    """Backbone and protocol of every panel; pooled where no row names a protocol."""
    pairs = dict.fromkeys((record.backbone.name, record.match) for record in records)
    backbones = dict.fromkeys(backbone for backbone, _ in pairs)
    return [
        (backbone, match)
        for match in PROTOCOLS
        for backbone in backbones
        if (backbone, match) in pairs or (match == "pooled" and (backbone, "split") not in pairs)
    ]


def _lines(
    records: Sequence[Record], items: Mapping[int, pd.DataFrame], backbone: str, match: Protocol
) -> list[Line]:
    """The lines of one panel."""
    groups: dict[tuple[str, float | None], list[int]] = {}
    for number, record in enumerate(records):
        if record.backbone.name == backbone and record.match in (match, None):
            groups.setdefault((record.row, record.budget), []).append(number)
    lines = []
    for (row, budget), numbers in groups.items():
        pairs = [(items[n], records[n]) for n in numbers if n in items]
        runs = [item_values(*pair) for pair in pairs]
        choices = [item_choices(*pair) for pair in pairs]
        own = [records[n] for n in numbers]
        lines.append(Line(backbone, match, row, budget, own, runs, choices))
    return lines


def item_values(frame: pd.DataFrame, record: Record) -> Run:
    """Task -> values (n,) of its headline metric, ordered by item; where more is better."""
    return {
        task: headline_items(frame, score)[1]
        for task, score in record.headlines.items()
        if score.higher_is_better
    }


def item_choices(frame: pd.DataFrame, record: Record) -> Choices:
    """Task -> number of the chosen answer (n,), ordered by item, where each item has one."""
    choices = {}
    for task, score in record.headlines.items():
        places = _places(frame, score)
        numbers = frame["choice"].to_numpy()[places]
        if len(numbers) and (numbers >= 0).all():
            choices[task] = numbers
    return choices


def headline_items(frame: pd.DataFrame, score: Score) -> tuple[NDArray[np.int64], Floats]:
    """Numbers and values (n,) of the items of one score, ordered by number."""
    places = _places(frame, score)
    return frame["item"].to_numpy()[places], frame["value"].to_numpy(np.float64)[places]


def _places(frame: pd.DataFrame, score: Score) -> NDArray[np.int64]:
    """Where the items of one score are in a frame, ordered by their numbers."""
    # Arrays, because selecting rows of a frame is too slow for thousands of runs.
    same = [frame[name].to_numpy() == getattr(score, name) for name in ("task", "metric", "filter")]
    places = np.flatnonzero(np.logical_and.reduce(same))
    return places[np.argsort(frame["item"].to_numpy()[places])]
