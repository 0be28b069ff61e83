"""Tables as they lie in a folder of CSV files, read back into frames."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd

from workflows.report import FRAMES
from workflows.report.lead import Frames
from workflows.stats.speeds import COLUMNS

# Whole numbers with gaps, and words that may be missing, by frame.
WHOLE = {"costs": ["trained_parameters", "training_tokens"], "scores": ["k"]}
WORDS = {"retain": ["same_weights", "note"], "budgets": ["missed"]}
# What tables of older code lack: there, that seeds are several is not known, and the note says what
# has the same weights.
LACKING: dict[str, dict[str, Any]] = {
    "ranks": {"one_seed": True},
    "retain": {"same_weights": ""},
}


def read_frames(folder: Path) -> Frames:
    """Name -> frame, as :func:`workflows.report.frames.make_frames` makes them.

    Raises:
        ValueError: A table is missing; ``speeds`` may be.
    """
    return {name: _read(folder / f"{name}.csv") for name in FRAMES}


def _read(file: Path) -> pd.DataFrame:
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
