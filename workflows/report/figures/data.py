"""The frames that figures are drawn from; a frame is empty where a suite has no such data."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from workflows.records.files import read_decisions
from workflows.records.parts import Route
from workflows.records.record import Record
from workflows.stats.frames import run_labels, unit_title
from workflows.stats.lines import LINE_KEYS

LEAD = [*LINE_KEYS, "title", "kind"]
CURVES = [*LEAD, "update", "loss", "skip", "alpha"]
ROUTES = [*LEAD, "task", "place", "token", "answer", "layer", "ran"]


@dataclass(frozen=True)
class FigureFrames:
    """The frames.

    Args:
        retain, differences, layers, speeds: As in workflows/stats.
        settings: Per row ``method`` (the row of its file) and ``params`` (JSON), see
            :func:`settings_frame`.
        curves: Training, see :func:`curve_frame`.
        routes: What ran for the tokens of a few prompts, see :func:`route_frame`.
        directions: Of each column of scores, see :func:`direction_frame`.
    """

    retain: pd.DataFrame
    differences: pd.DataFrame
    layers: pd.DataFrame
    speeds: pd.DataFrame = field(default_factory=pd.DataFrame)
    settings: pd.DataFrame = field(default_factory=lambda: settings_frame([]))
    curves: pd.DataFrame = field(default_factory=pd.DataFrame)
    routes: pd.DataFrame = field(default_factory=pd.DataFrame)
    directions: pd.DataFrame = field(default_factory=lambda: direction_frame([]))

    @property
    def methods(self) -> dict[str, str]:
        """Row -> the row of its method's file."""
        return dict(zip(self.settings["row"], self.settings["method"], strict=True))


def run_frames(records: Sequence[Record], files: Sequence[Path]) -> dict[str, pd.DataFrame]:
    """``settings``, ``curves``, ``routes``, ``directions`` of the runs of a suite, by name."""
    finished = [(record, file) for record, file in zip(records, files, strict=True) if record.done]
    return {
        "settings": settings_frame([record for record, _ in finished]),
        "curves": curve_frame(finished),
        "routes": route_frame([record for record, _ in finished]),
        "directions": direction_frame([record for record, _ in finished]),
    }


def settings_frame(records: Sequence[Record]) -> pd.DataFrame:
    """One line per backbone and row: ``method`` and ``params`` as JSON with sorted keys."""
    lines = [
        {
            "backbone": record.backbone.name,
            "row": record.row,
            "method": record.method,
            "params": json.dumps(record.params, sort_keys=True),
        }
        for record in records
    ]
    frame = pd.DataFrame(lines, columns=["backbone", "row", "method", "params"])
    return frame.drop_duplicates(["backbone", "row"])


def direction_frame(records: Sequence[Record]) -> pd.DataFrame:
    """``column`` (``task:metric``) of every headline, and whether ``higher_is_better`` in it."""
    directions = {
        f"{task}:{score.metric}": score.higher_is_better
        for record in records
        for task, score in record.headlines.items()
    }
    frame = pd.DataFrame(directions.items(), columns=["column", "higher_is_better"])
    return frame.astype({"higher_is_better": bool})


def curve_frame(runs: Sequence[tuple[Record, Path]]) -> pd.DataFrame:
    """The log of training, of each line's first seed that has its decisions.

    Columns: those of ``CURVES``; ``skip`` in percent of the dense parameters, ``alpha`` (weight of
    the penalty) and ``skip`` empty where nothing is routed; under ``split`` of answer tokens.
    """
    curves: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for record, file in runs:
        lead = run_labels(record)
        name = tuple(str(lead[key]) for key in LINE_KEYS)
        if name in curves:
            continue
        lines = [
            lead
            | {key: point.get(key) for key in ("update", "loss")}
            | {key: point.get(key, point.get(f"{key}_answer")) for key in ("skip", "alpha")}
            for point in read_decisions(file).get("training", [])
        ]
        if lines:
            curves[name] = lines
    frame = pd.DataFrame([line for lines in curves.values() for line in lines], columns=CURVES)
    numbers = frame.astype({"skip": float, "alpha": float, "target": float})
    return numbers.assign(skip=100 * numbers["skip"])


def route_frame(records: Sequence[Record]) -> pd.DataFrame:
    """Which layers ran for each token of the prompts whose routes a record keeps.

    Columns: those of ``ROUTES``, one line per token and layer; ``ran`` is the share of the layer's
    routed parameters, 1 for a layer without units, 0 for a removed one; ``answer`` says whether
    the token is an answer token; ``title`` names the part of layers that is routed. First
    seeds only.
    """
    routes: dict[tuple[str, ...], list[pd.DataFrame]] = {}
    for record in records:
        lead = run_labels(record)
        name = tuple(str(lead[key]) for key in LINE_KEYS)
        if name not in routes and record.routes:
            lead["title"] = unit_title(record)
            routes[name] = [_prompt_frame(record, route).assign(**lead) for route in record.routes]
    frames = [frame for frames in routes.values() for frame in frames]
    return pd.concat(frames)[ROUTES] if frames else pd.DataFrame(columns=ROUTES)


def _prompt_frame(record: Record, route: Route) -> pd.DataFrame:
    """One prompt's tokens and layers."""
    tokens, layers = route.tokens, record.layers.dense
    units = record.units
    weights = np.array([unit.parameters for unit in units], dtype=float)
    of = np.array([unit.layer for unit in units])
    gates = np.array([[sign == "1" for sign in unit] for unit in route.executed], dtype=float)
    shares = np.ones((layers, len(tokens)))
    for layer in set(of.tolist()):
        own = of == layer
        shares[layer] = weights[own] @ gates[own] / weights[own].sum()
    shares[list(record.layers.removed)] = 0
    places = np.tile(np.arange(len(tokens)), layers)
    return pd.DataFrame(
        {
            "task": route.task,
            "place": places,
            "token": np.array(tokens, dtype=object)[places],
            "answer": places >= route.first_answer,
            "layer": np.repeat(np.arange(layers), len(tokens)),
            "ran": shares.ravel(),
        }
    )
