"""A record as a typed value, and the same as JSON.

A record of a row that is not applicable says why, and has no scores.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from workflows.records.parts import (
    Backbone,
    Evaluation,
    Fidelity,
    Fit,
    Layers,
    NotRun,
    Rates,
    Route,
    Score,
    Start,
    Unit,
    to_rates,
)

Protocol = Literal["pooled", "split"]
PROTOCOLS: tuple[Protocol, ...] = ("pooled", "split")

FORMAT = 2


# Fields of a record that only a scored row has.
SCORED = (
    "scores", "not_run", "rates", "skip_authors", "units", "layers", "evaluation", "routes",
    "fidelity",
)  # fmt: skip
# Field -> what makes its value from JSON.
PARTS: Mapping[str, Callable[[Any], Any]] = {
    "start": lambda entries: Start(**entries),
    "backbone": lambda entries: Backbone(**entries),
    "fit": lambda entries: Fit(**entries),
    "scores": lambda entries: [Score.of(score) for score in entries],
    "not_run": lambda entries: [NotRun(**task) for task in entries],
    "rates": to_rates,
    "units": lambda entries: [Unit(**unit) for unit in entries],
    "layers": lambda entries: Layers(**entries),
    "evaluation": lambda entries: Evaluation(**entries),
    "routes": lambda entries: [Route(**route) for route in entries],
    "fidelity": Fidelity.of,
}


@dataclass(frozen=True, kw_only=True)
class Record:
    """One run of one row.

    Args:
        status: ``ok`` or ``not applicable``. The fields of ``SCORED`` are set only where it is ok.
        reason: Why the row is not applicable; else None.
        suite: Name of the suite.
        row: Name of the row in tables.
        method: Name of the row in the method's file: ``row`` may be a variant of it.
        title: What tables call the row.
        kind: ``reference``, ``static`` or ``dynamic``; of a healed row that of its start.
        stochastic: Whether the result depends on the seed.
        params: Of the method.
        start: The fitted model that this fit started from; None where it was the backbone.
        budget: Skip that is asked for, a fraction; None where none applies.
        match: The protocol by which a dynamic row meets its budget; None for all other rows.
        seed: Of the fit.
        backbone: The dense model.
        fit: What the fit cost; None where a plain model was scored.
        fit_code: Part of the checkout -> hash of its code at the fit; None without a fit.
        weights_hash: Hash of the fitted weights; None without a fit.
        scores: Every metric of every task.
        not_run: Tasks that the machine could not run.
        rates: Skip over the scored tokens of all tasks.
        skip_authors: Skip by the definition of the method's authors, a fraction.
        units: Parts that tokens may skip; empty where every token runs the same.
        layers: Layers of the fitted model.
        evaluation: How it was scored.
        routes: What ran for a few prompts; empty where nothing is routed.
        fidelity: Distance from the dense model; None where the suite has no texts for it.
        versions: Package -> version.
        commit: Of the checkout; None outside git.
        dirty: Whether the checkout had changes that were not committed, at the fit or at scoring.
        code: Part of the checkout -> hash of its code at scoring.
        hardware: Processor, cores, accelerator.
    """

    status: str
    reason: str | None
    suite: str
    row: str
    method: str
    title: str
    kind: str
    stochastic: bool
    params: Mapping[str, Any]
    start: Start | None
    budget: float | None
    match: Protocol | None
    seed: int
    backbone: Backbone
    fit: Fit | None
    fit_code: Mapping[str, str] | None
    weights_hash: str | None
    scores: Sequence[Score] = field(default_factory=list)
    not_run: Sequence[NotRun] = field(default_factory=list)
    rates: Rates = field(default_factory=dict)
    skip_authors: float = 0.0
    units: Sequence[Unit] = field(default_factory=list)
    layers: Layers = field(default_factory=Layers)
    evaluation: Evaluation = field(default_factory=Evaluation)
    routes: Sequence[Route] = field(default_factory=list)
    fidelity: Fidelity | None = None
    versions: Mapping[str, str]
    commit: str | None
    dirty: bool
    code: Mapping[str, str]
    hardware: Mapping[str, Any]

    @classmethod
    def of(cls, entries: Mapping[str, Any]) -> Record:
        """A record from JSON that keeps the schema."""
        values = {name: value for name, value in entries.items() if name != "format"}
        there = [name for name in PARTS if values.get(name) is not None]
        parts = {name: PARTS[name](values[name]) for name in there}
        return cls(**(values | parts))

    def to_json(self) -> dict[str, Any]:
        """The record as JSON values; without scores where it has none."""
        entries = {"format": FORMAT} | asdict(self)
        absent = set() if self.done else {*SCORED}
        absent |= {name for name in ("routes", "fidelity") if not getattr(self, name)}
        if self.fit is not None:
            # A fit without a router names neither.
            for name in ("trained_skip", "threshold"):
                if entries["fit"][name] is None:
                    del entries["fit"][name]
        return {name: value for name, value in entries.items() if name not in absent}

    @property
    def done(self) -> bool:
        """Whether it has scores."""
        return self.status == "ok"

    @property
    def headlines(self) -> dict[str, Score]:
        """Task -> the score of its headline metric."""
        return {score.task: score for score in self.scores if score.primary}

    @property
    def key(self) -> tuple[Any, ...]:
        """What is unique for each run: backbone, row, budget, protocol, seed."""
        return self.backbone.name, self.row, self.budget, self.match, self.seed
