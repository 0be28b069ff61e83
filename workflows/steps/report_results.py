"""Reading a results folder: records in the table's order, their items, the suite's settings."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from methods import ORDER
from workflows.jobs import list_jobs, with_defaults
from workflows.stats.comparable import check_comparable
from workflows.stats.lines import Panel, headline_items, make_panels
from workflows.steps.records import read_record


@dataclass(frozen=True)
class Results:
    """A results folder.

    Args:
        folder: Where it lies.
        settings: ``suite``, ``retain_tasks`` and ``reference_row``, with the rest of suite.json.
        records: All runs, in the table's order.
        files: Where each record lies.
        panels: Their lines, one panel per backbone.
        repeats: The reference scored again at other batch sizes.
        repeat_items: Index of a repeat -> its frame of items.
    """

    folder: Path
    settings: dict[str, Any]
    records: list[dict[str, Any]]
    files: list[Path]
    panels: list[Panel]
    repeats: list[dict[str, Any]]
    repeat_items: dict[int, pd.DataFrame]


def read_results(folder: Path) -> Results:
    """Every record below a folder, held against each other, with their lines.

    Raises:
        ValueError: There is no record, one breaks the schema, its items are missing or others, two
            are of one run, or they cannot stand in one table.
    """
    known = {name: position for position, name in enumerate(ORDER)}
    loaded = [(read_record(file), file) for file in _wanted(folder)]
    loaded.sort(key=lambda pair: _position(pair[0], known))
    records, files = [record for record, _ in loaded], [file for _, file in loaded]
    _check_twins(records, files)
    check_comparable(records)
    items = _read_items(records, files)
    settings = read_settings(folder, records)
    panels = make_panels(records, items, settings["retain_tasks"], settings["reference_row"])
    noise = sorted(folder.rglob("noise/batch*.json"), key=lambda file: (len(file.name), file.name))
    repeats = [read_record(file) for file in noise]
    check_comparable([*records, *repeats])
    return Results(folder, settings, records, files, panels, repeats, _read_items(repeats, noise))


def _wanted(folder: Path) -> list[Path]:
    """The records of a folder; runs that a changed suite no longer lists stay out of the table."""
    files = sorted(folder.rglob("record.json"))
    if not files:
        raise ValueError(f"{folder} holds no record.json")
    if (folder / "suite.json").is_file():
        parts = {"/".join(job.key) for job in list_jobs(_read_suite_file(folder))}
        files = [file for file in files if str(file.parent.relative_to(folder)) in parts] or files
    return files


def _read_suite_file(folder: Path) -> dict[str, Any]:
    file = folder / "suite.json"
    try:
        return with_defaults(json.loads(file.read_text(encoding="utf-8")))
    except json.JSONDecodeError as error:
        raise ValueError(f"{file} is not valid JSON: {error}") from error


def _position(record: dict[str, Any], known: dict[str, int]) -> tuple[Any, ...]:
    order = known.get(record["method"], len(known))
    budget = -1.0 if record["budget"] is None else record["budget"]
    return (record["backbone"]["name"], budget, order, record["row"], record["seed"])


def _check_twins(records: Sequence[dict[str, Any]], files: Sequence[Path]) -> None:
    """A run must not count twice."""
    seen: dict[Any, Path] = {}
    for record, file in zip(records, files, strict=True):
        key = record["backbone"]["name"], record["row"], record["budget"], record["seed"]
        if key in seen:
            raise ValueError(f"{seen[key]} and {file} are records of one run; name one folder")
        seen[key] = file


def _read_items(
    records: Sequence[dict[str, Any]], files: Sequence[Path]
) -> dict[int, pd.DataFrame]:
    """Index of a record -> its frame of items, which must give the record's scores."""
    items = {}
    for number, (record, file) in enumerate(zip(records, files, strict=True)):
        if record["status"] != "ok":
            continue
        frame = file.with_suffix(".items.parquet")
        if not frame.is_file():
            raise ValueError(f"{file} has no items beside it ({frame.name} is missing)")
        items[number] = pd.read_parquet(frame)
        for score in record["scores"]:
            values = headline_items(items[number], score)["value"]
            told = score["k"] is None or (len(values), values.sum()) == (score["n"], score["k"])
            if not told:
                raise ValueError(f"{frame} does not hold the items behind {file.name}")
    return items


def read_settings(folder: Path, records: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The suite's settings; without a suite every scored task counts, against ``dense``."""
    scored = [
        score["task"]
        for record in records
        for score in record.get("scores", [])
        if score["primary"] and score["higher_is_better"]
    ]
    settings = {
        "suite": records[0]["suite"],
        "retain_tasks": list(dict.fromkeys(scored)),
        "reference_row": "dense",
    }
    suite = _read_suite_file(folder) if (folder / "suite.json").is_file() else {}
    return settings | suite
