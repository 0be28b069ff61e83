"""One job of a suite: its paths, the models it waits for, the data of its fit; no torch here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from methods import Row
from workflows import ROOT
from workflows.records.record import Protocol
from workflows.runtime.provenance import code_files, fit_parts

DATA_PARTS = ("training", "validation", "probe", "calibration")
# The part that no fit reads: on it rows are compared with the dense model.
FIDELITY = "fidelity"


@dataclass(frozen=True)
class Job:
    """One row on a backbone at a budget under a seed.

    Args:
        suite: Name of the suite.
        backbone: Name of the backbone.
        row: Name in the suite's table.
        method: The discovered row that it runs.
        params: Override those of ``method``.
        budget: None if none applies or a param is pinned.
        seed: Of every draw.
        match: Protocol by which the budget is met; None if the protocols do not differ.
        start: The job whose model this one starts from, in place of the backbone.
        lender: The job whose rates a control takes.
    """

    suite: str
    backbone: str
    row: str
    method: Row
    params: Mapping[str, Any]
    budget: float | None
    seed: int
    match: Protocol | None = None
    start: Job | None = None
    lender: Job | None = None

    @property
    def label(self) -> str:
        """The folder of the budget: b25, b25-split, b0 without one, bfree with pinned params."""
        if not self.method.budgeted and self.start is None:
            return "b0"
        if self.budget is None:
            return "bfree"
        return f"b{self.budget * 100:g}" + ("-split" if self.match == "split" else "")

    @property
    def key(self) -> tuple[str, str, str, str]:
        """What distinguishes the jobs of a suite; the end of their paths."""
        return self.backbone, self.row, self.label, f"s{self.seed}"

    @property
    def folder(self) -> str:
        """The folder of its results, relative to the checkout."""
        return "/".join(("results", self.suite, *self.key))

    @property
    def model(self) -> str:
        """The folder of the fitted model, relative to the checkout."""
        return f"{self.folder}/model"

    def waits_for(self) -> list[str]:
        """Models of other jobs that the fit reads."""
        return [job.model for job in (self.start, self.lender) if job is not None]

    def stands_on(self) -> list[str]:
        """Models of other jobs that its own model needs to be read: it holds only what changed."""
        return [] if self.start is None else [self.start.model]

    def code(self) -> list[str]:
        """The files whose change makes the fit run again: the method's and what all share."""
        return relative([f for part in fit_parts(self.method) for f in code_files(part)])


def data_parts(method: Row) -> list[str]:
    """The parts of a suite's data that a fit reads: training texts only if it trains."""
    if method.kind == "reference" and not method.trained:
        return []
    return [part for part in DATA_PARTS if part != "training" or method.trained]


def data_words(files: Mapping[str, str | Path]) -> list[str]:
    """Data files, by part, as arguments of the fit step."""
    words = []
    for part, file in files.items():
        words += ["--train" if part == "training" else f"--{part}", str(file)]
    return words


def relative(paths: Sequence[Path]) -> list[str]:
    """Paths relative to the checkout, as rules name them."""
    return [str(path.relative_to(ROOT)) for path in paths]
