"""What rows take on the clock, from the measurements beside their records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from workflows.records.record import Record
from workflows.stats.lines import Panel

# What tells a run apart, and the lines that the time step measured of it.
Key = tuple[Any, ...]
Speeds = Mapping[Key, Sequence[Mapping[str, Any]]]

COLUMNS = [
    "backbone", "target", "match", "row", "title", "mode", "case", "bypass", "speed", "speed_low",
    "speed_high", "bound", "realised", "predicted",
]  # fmt: skip
KEYS = ["backbone", "target", "match", "row"]


def key(record: Record) -> Key:
    """What tells a run apart."""
    return (record.backbone.name, record.row, record.budget, record.match, record.seed)


def speed_frame(panels: Sequence[Panel], speeds: Speeds) -> pd.DataFrame:
    """One line per timed row, mode and case, the columns of ``COLUMNS``.

    ``speed`` is dense over row; ``bypass`` (units left out) and ``realised`` are in percent.
    """
    lines = [
        line.labels | _measured(found)
        for panel in panels
        for line in panel.done
        for found in _of(line.records, speeds)
    ]
    # A suite of pinned rows has no target at all.
    return pd.DataFrame(lines, columns=COLUMNS).astype({"target": float})


def _of(records: Sequence[Record], speeds: Speeds) -> Sequence[Mapping[str, Any]]:
    """The measurements of a line's first run that was timed."""
    timed = [speeds[key(record)] for record in records if key(record) in speeds]
    return timed[0] if timed else []


def _measured(found: Mapping[str, Any]) -> dict[str, Any]:
    low, high = found["interval"]
    realised, bypass, bound = found["realised_share"], found["bypass"], found["bound"]
    sequences = found["case"].split("x")[0]
    predicted = found.get("predicted", {}).get(sequences)
    return {
        "mode": found["mode"],
        "case": found["case"],
        "bypass": None if bypass is None else 100 * bypass,
        "speed": 1 / found["over_dense"],
        "speed_low": 1 / high,
        "speed_high": 1 / low,
        "bound": None if bound is None else 1 / bound,
        "realised": None if realised is None else 100 * realised,
        "predicted": None if predicted is None else 1 / predicted,
    }


def with_speed(retain: pd.DataFrame, speeds: pd.DataFrame) -> pd.DataFrame:
    """The retain frame with ``prefill`` and ``decode``: speed in the first case of each mode."""
    columns = {}
    for mode in ("prefill", "decode"):
        first = speeds[speeds["mode"] == mode].drop_duplicates(KEYS)
        found = retain[KEYS].merge(first[[*KEYS, "speed"]], on=KEYS, how="left")["speed"]
        columns[mode] = found.astype(float).round(3).tolist()
    return retain.assign(**columns)
