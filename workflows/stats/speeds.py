"""What rows take on the clock, from the measurements beside their records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from workflows.records.record import Record
from workflows.report.display import Builder, Table, number, spans
from workflows.stats.lines import Panel

# What tells a run apart, and the lines that the time step measured of it.
Key = tuple[Any, ...]
Speeds = Mapping[Key, Sequence[Mapping[str, Any]]]

COLUMNS = [
    "backbone", "target", "match", "row", "title", "mode", "case", "bypass", "speed", "speed_low",
    "speed_high", "bound", "realised", "predicted",
]  # fmt: skip
KEYS = ["backbone", "target", "match", "row"]
NOTE = (
    "A skip rate is no speed-up. Speed: time of the dense model over that of the row, called in "
    "turn in one process on texts of the suite, LoRA folded into its matrices; median of pairs "
    "with its 95 % interval; above 1 is faster. Bound: what the row's own decisions would allow "
    "were work alone to cost time (multiplications of a prompt, bytes read for a new token). "
    "Realised: share of that saving; a dash where the row is slower than dense. Predicted: the "
    "bound of a decode step by decisions on single tokens. Training: forward and backward pass of "
    "one update, its speed over that of LoRA on every linear layer; without a bound."
)


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


def speed_table(frame: pd.DataFrame) -> Table:
    """Speed beside its bound."""
    made = Builder()
    made.lead(frame)
    made.add("Mode", frame["mode"].tolist())
    made.add("Case", [case.replace("x", " x ") for case in frame["case"]])
    made.numbers(frame, {"Units skipped (%)": ("bypass", "{:.1f}"), "Speed": ("speed", "{:.2f}")})
    made.add("95 % interval", spans(frame, "speed_low", "speed_high", "{:.2f}"))
    made.numbers(frame, {"Bound": ("bound", "{:.2f}")})
    faster = frame["realised"].where(frame["realised"] >= 0)
    made.add("Realised (%)", [number(value, "{:.0f}") for value in faster])
    made.add("Predicted", [number(value) for value in frame["predicted"]])
    return made.table("speeds", "Speed", NOTE)
