"""Published tables, read from CSV into frames."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from workflows import ROOT
from workflows.report import FRAMES
from workflows.stats.ranking import ABOVE_COLUMNS
from workflows.stats.speeds import COLUMNS

Frames = Mapping[str, pd.DataFrame]

REFERENCE = ROOT / "reports" / "reference"
# Beside the frames: which code, machine and settings made them.
SOURCE = "source.json"
# Whole numbers with gaps, and words that may be missing, by frame.
WHOLE = {"costs": ["trained_parameters", "training_tokens"], "scores": ["k"]}
WORDS = {"retain": ["same_weights", "note"], "budgets": ["missed"], "ranks": ["overtakes"]}
# Columns that tables of older code lack -> a value: they have no Above chance and no timed bound.
LACKING: dict[str, dict[str, Any]] = {
    "ranks": {"overtakes": "", "overtakes_one_seed": False}
    | dict.fromkeys(ABOVE_COLUMNS.values(), float("nan")),
    "speeds": {"timed_bound": float("nan")},
}


def read_frames(folder: Path) -> Frames:
    """Name -> frame, as :func:`workflows.report.tables.make_frames` makes them.

    Raises:
        ValueError: A table is missing; ``speeds`` may be.
    """
    return {name: _read_frame(folder / f"{name}.csv") for name in FRAMES}


def _read_frame(file: Path) -> pd.DataFrame:
    name = file.stem
    if name == "speeds" and not file.is_file():
        return pd.DataFrame(columns=COLUMNS)
    if not file.is_file():
        raise ValueError(f"{file} is missing; the report and the publish step write it")
    frame = pd.read_csv(file, float_precision="round_trip")
    older = LACKING.get(name, {}).items()
    frame = frame.assign(**{column: value for column, value in older if column not in frame})
    words = {column: frame[column].fillna("") for column in WORDS.get(name, [])}
    return frame.astype(dict.fromkeys(WHOLE.get(name, []), "Int64")).assign(**words)
