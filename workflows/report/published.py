"""Published tables: read from CSV into frames, and compared with the checkout."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd

from workflows import ROOT
from workflows.report import FRAMES
from workflows.report.lead import Frames
from workflows.runtime.provenance import code_hash
from workflows.stats.ranking import ABOVE_COLUMNS
from workflows.stats.speeds import COLUMNS
from workflows.stats.tables import protocol_column
from workflows.suite.jobs import Suite

REFERENCE = ROOT / "reports" / "reference"
# Beside the frames: which code, machine and settings made them.
SOURCE = "source.json"
# Whole numbers with gaps, and words that may be missing, by frame.
WHOLE = {"costs": ["trained_parameters", "training_tokens"], "scores": ["k"]}
WORDS = {"retain": ["same_weights", "note"], "budgets": ["missed"], "ranks": ["overtakes"]}
# Columns that tables of older code lack -> a value. Those tables do not say how many seeds a row
# has, name rows with the same weights in the note, and have no Above chance and no timed bound.
LACKING: dict[str, dict[str, Any]] = {
    "ranks": {"one_seed": True, "overtakes": "", "overtakes_one_seed": False}
    | dict.fromkeys(ABOVE_COLUMNS.values(), float("nan")),
    "retain": {"same_weights": ""},
    "speeds": {"timed_bound": float("nan")},
}


def read_frames(folder: Path) -> Frames:
    """Name -> frame, as :func:`workflows.report.frames.make_frames` makes them.

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


def stale(folder: Path, suite: Suite) -> list[str]:
    """One sentence for each sign that a published table is older than the checkout.

    Args:
        folder: Of the published frames.
        suite: As the checkout would run it now.
    """
    source = json.loads((folder / SOURCE).read_text(encoding="utf-8"))
    table = pd.read_csv(folder / "retain.csv")
    lines = zip(table["row"], protocol_column(table), strict=True)
    rows = {_label(row, match) for row, match in lines}
    jobs = {_label(job.row, job.match) for job in suite.jobs}
    sentences = []
    if jobs - rows:
        sentences.append(f"the table lacks rows of the suite: {', '.join(sorted(jobs - rows))}")
    if rows - jobs:
        sentences.append(f"the suite lacks rows of the table: {', '.join(sorted(rows - jobs))}")
    if "code" not in source:
        sentences.append("its records do not say which parts of the code made them")
    changed = [
        part for part, hashes in source.get("code", {}).items() if hashes != [code_hash(part)]
    ]
    if changed:
        sentences.append(f"{', '.join(changed)} changed since records were made")
    return sentences


def _label(row: str, match: str | None) -> str:
    return f"{row} (match split)" if match == "split" else row
