"""Speeds of rows, from the measurements beside their records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from workflows.records.record import Record
from workflows.stats.lines import LINE_KEYS, Panel

# Key of a run -> the lines that the time step measured.
Speeds = Mapping[tuple[Any, ...], Sequence[Mapping[str, Any]]]

COLUMNS = [
    "backbone", "target", "match", "row", "title", "mode", "case", "bypass", "speed", "speed_low",
    "speed_high", "bound", "timed_bound", "realised",
]  # fmt: skip


def speed_frame(panels: Sequence[Panel], speeds: Speeds) -> pd.DataFrame:
    """One line per timed row, mode and case, the columns of ``COLUMNS``.

    ``speed`` is dense over row; ``bypass`` (units left out) and ``realised`` are in percent.
    """
    lines = [
        line.labels | _columns(measurement)
        for panel in panels
        for line in panel.done
        for measurement in _of(line.records, speeds)
    ]
    # A suite of pinned rows has no target at all.
    return pd.DataFrame(lines, columns=COLUMNS).astype({"target": float})


def _of(records: Sequence[Record], speeds: Speeds) -> Sequence[Mapping[str, Any]]:
    """The measurements of a line's first run that was timed."""
    measurements = [speeds[record.key] for record in records if record.key in speeds]
    return measurements[0] if measurements else []


def _columns(measurement: Mapping[str, Any]) -> dict[str, Any]:
    low, high = measurement["interval"]
    realised, bypass = measurement["realised_share"], measurement["bypass"]
    bound, timed_bound = measurement["bound"], measurement["timed_bound"]
    return {
        "mode": measurement["mode"],
        "case": measurement["case"],
        "bypass": None if bypass is None else 100 * bypass,
        "speed": 1 / measurement["over_dense"],
        "speed_low": 1 / high,
        "speed_high": 1 / low,
        "bound": None if bound is None else 1 / bound,
        "timed_bound": None if timed_bound is None else 1 / timed_bound,
        "realised": None if realised is None else 100 * realised,
    }


def with_speed(retain: pd.DataFrame, speeds: pd.DataFrame) -> pd.DataFrame:
    """The retain frame with columns ``prefill`` and ``decode``: speed in the first case of each.

    On a backbone all rows have one case; a row that was not timed in it has no speed.
    """
    columns = {}
    for mode in ("prefill", "decode"):
        timed = speeds[speeds["mode"] == mode]
        cases = {name: _first_case(own) for name, own in timed.groupby("backbone")}
        first = timed[timed["case"] == timed["backbone"].map(cases)].drop_duplicates(LINE_KEYS)
        known = first[[*LINE_KEYS, "speed"]]
        speed = retain[LINE_KEYS].merge(known, on=LINE_KEYS, how="left")["speed"]
        columns[mode] = speed.astype(float).round(3).tolist()
    return retain.assign(**columns)


def _first_case(timed: pd.DataFrame) -> str:
    """The first case of the row that has most: of a large case a GPU may lack the memory."""
    cases = [own["case"].tolist() for _, own in timed.groupby(LINE_KEYS, dropna=False, sort=False)]
    return str(max(cases, key=len)[0])
