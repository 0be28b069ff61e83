"""Reading results: records in the table's order, their items, the suite's settings."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from methods import ORDER
from workflows.records import SAMPLE
from workflows.records.archive import ITEMS, SPEED, run_files, write_archive
from workflows.records.files import read_record, read_speeds
from workflows.records.record import Record
from workflows.report.places import as_folder, read_suite_file, read_suites, suite_files
from workflows.report.runs import find_runs, other_params
from workflows.stats.comparable import check_comparable
from workflows.stats.lines import Panel, headline_items, make_panels
from workflows.stats.speeds import Speeds
from workflows.suite.checks import default_focus
from workflows.suite.splits import check_one_split, without_second_split


@dataclass(frozen=True)
class Results:
    """The results of a suite.

    Args:
        place: What people call the folder: its path, or that of the archive that it was packed in.
        folder: Where the files lie.
        settings: ``suite``, ``retain_tasks``, ``measure_tasks``, ``reference_row`` and ``focus``,
            with the rest of suite.json.
        records: All runs, in the table's order.
        files: Where each record lies.
        panels: Their lines, one panel per backbone and protocol of matching.
        repeats: The reference scored again at other batch sizes.
        repeat_items: Index of a repeat -> its frame of items.
        speeds: Measured times of runs.
        missing: Runs of the suite without a record, by row and budget, and why some failed.
        outdated: Runs whose record has other params than the suite, with their names.
        other_models: Runs whose times are of an earlier model, so that no table shows them.
        incomplete: Runs of which not all cases were timed.
        configs: Of the suite's parts, which made the runs.
    """

    place: str
    folder: Path
    settings: dict[str, Any]
    records: list[Record]
    files: list[Path]
    panels: list[Panel]
    repeats: list[Record]
    repeat_items: dict[int, pd.DataFrame]
    speeds: Speeds
    missing: list[str]
    outdated: list[str]
    other_models: list[str]
    incomplete: list[str]
    configs: list[dict[str, Any]]

    def name_of(self, file: Path) -> str:
        """What people call a file of the folder."""
        return f"{self.place}/{file.relative_to(self.folder).as_posix()}"

    def write_archive(self, file: Path) -> None:
        """Write all that :func:`read_results` reads of these records into one file."""
        runs = [one for record in self.files for one in run_files(record)]
        write_archive(file, self.folder, [*suite_files(self.folder), *runs])


def read_results(*places: Path) -> Results:
    """All records of a suite, checked for one table, with their lines.

    Args:
        places: Results folders and archives, see :func:`workflows.report.places.as_folder`.

    Raises:
        ValueError: There is no record, a record breaks the schema, its items are missing or are
            not its own, two records are of one run, they cannot be in one table, or the places
            cannot be joined.
    """
    folder = as_folder(places)
    name = str(places[0]) if len(places) == 1 else f"({', '.join(map(str, places))})"
    try:
        return _read(folder, name)
    except ValueError as error:
        # Of a folder that lies where nobody looks, the message names what it was made of.
        raise ValueError(str(error).replace(str(folder), name)) from error


def _read(folder: Path, name: str) -> Results:
    """The results of a folder with this name."""
    order = {name: position for position, name in enumerate(ORDER)}
    configs = read_suites(folder)
    runs, noise, missing, jobs = find_runs(folder, configs)
    loaded = [(read_record(file), file) for file in runs]
    loaded.sort(key=lambda pair: _position(pair[0], order))
    records, files = [record for record, _ in loaded], [file for _, file in loaded]
    _check_twins(records, files)
    repeats = [read_record(file) for file in noise]
    absent = {task.task for record in (*records, *repeats) for task in record.not_run}
    records, repeats = (
        [_without(record, absent) for record in kind] for kind in (records, repeats)
    )
    every = [*records, *repeats]
    check_comparable(every)
    items = _read_items(records, files)
    settings = read_settings(folder, records)
    retain_tasks, measure_tasks = (
        counted_tasks(settings[kind], every) for kind in ("retain_tasks", "measure_tasks")
    )
    panels = make_panels(records, items, retain_tasks, settings["reference_row"], measure_tasks)
    repeat_items = _read_items(repeats, noise)
    speeds, other_models, incomplete = _read_speeds(records, files)
    outdated = [
        f"{record.row} {file.parts[-3]} s{record.seed} ({', '.join(names)})"
        for record, file in zip(records, files, strict=True)
        if (names := other_params(record.params, jobs.get(file, [])))
    ]
    return Results(
        name, folder, settings, records, files, panels, repeats, repeat_items, speeds, missing,
        outdated, other_models, incomplete, configs,
    )  # fmt: skip


def _without(record: Record, tasks: Container[str]) -> Record:
    """The record without the scores of some tasks: all lines of a table have the same tasks."""
    return replace(record, scores=[score for score in record.scores if score.task not in tasks])


def counted_tasks(tasks: Sequence[str], records: Sequence[Record]) -> list[str]:
    """The tasks that every record has, with a metric whose higher values are better.

    Raises:
        ValueError: There is none.
    """
    reasons = {task.task: task.reason for record in records for task in record.not_run}
    perplexities = falling_tasks(tasks, records)
    rest = [task for task in tasks if task not in reasons and task not in perplexities]
    if not rest:
        why = next(iter(reasons.values()), "lower values are better for every headline metric")
        raise ValueError(f"no task of the Retain was run: {why}")
    return rest


def falling_tasks(tasks: Sequence[str], records: Sequence[Record]) -> list[str]:
    """The tasks whose headline metric is better where it is lower, such as perplexity."""
    names = {
        task
        for record in records
        for task, score in record.headlines.items()
        if not score.higher_is_better
    }
    return [task for task in tasks if task in names]


def _position(record: Record, order: dict[str, int]) -> tuple[Any, ...]:
    place = order.get(record.method, len(order))
    budget = -1.0 if record.budget is None else record.budget
    return (record.backbone.name, budget, place, record.row, record.seed)


def _read_speeds(
    records: Sequence[Record], files: Sequence[Path]
) -> tuple[Speeds, list[str], list[str]]:
    """The measurements of the runs that were timed; files of other models, and incomplete ones."""
    speeds, other_models, incomplete = {}, [], []
    pairs = [(record, file.with_name(SPEED)) for record, file in zip(records, files, strict=True)]
    for record, file in pairs:
        if file.is_file():
            place, entries = "/".join(file.parts[-5:]), read_speeds(file, record.weights_hash)
            if entries is None:
                other_models.append(place)
                continue
            speeds[record.key] = entries["lines"]
            incomplete += [place] if entries.get("left") else []
    return speeds, other_models, incomplete


def _check_twins(records: Sequence[Record], files: Sequence[Path]) -> None:
    """Refuse two records of one run."""
    files_of: dict[Any, Path] = {}
    for record, file in zip(records, files, strict=True):
        run = record.key
        if run in files_of:
            raise ValueError(f"{files_of[run]} and {file} are records of one run; name one folder")
        files_of[run] = file


def _read_items(records: Sequence[Record], files: Sequence[Path]) -> dict[int, pd.DataFrame]:
    """Index of a record -> its frame of items, checked against the record's scores."""
    items = {}
    for number, (record, file) in enumerate(zip(records, files, strict=True)):
        if not record.done:
            continue
        frame = file.with_suffix(f".{ITEMS}")
        if not frame.is_file():
            raise ValueError(f"{file} has no items beside it ({frame.name} is missing)")
        items[number] = _read_frame(frame)
        for score in record.scores:
            _, values = headline_items(items[number], score)
            same = score.k is None or (len(values), values.sum()) == (score.n, score.k)
            if not same:
                raise ValueError(f"{frame} does not hold the items of {file.name}")
    return items


def _read_frame(frame: Path, texts: bool = False) -> pd.DataFrame:
    """A frame of items, with or without the column of their texts."""
    try:
        with pq.ParquetFile(frame) as file:
            held = file.schema_arrow.names
            names = [name for name in held if texts or name != SAMPLE]
            items = file.read(columns=names).to_pandas()
    except pa.ArrowInvalid as error:
        raise ValueError(f"{frame} is no whole parquet file: {error}") from error
    if missing := [
        name for name in ("task", "metric", "filter", "item", "value") if name not in held
    ]:
        raise ValueError(f"{frame} has no column '{missing[0]}'")
    return items


def read_texts(file: Path) -> pd.DataFrame:
    """``task``, ``item`` and ``sample`` (JSON) of the items of a record that keeps texts."""
    frame = _read_frame(file.with_suffix(f".{ITEMS}"), texts=True)
    return frame.reindex(columns=["task", "item", SAMPLE]).dropna(subset=SAMPLE)


def read_settings(folder: Path, records: Sequence[Record]) -> dict[str, Any]:
    """The suite's settings; without a suite every scored task counts, against ``dense``.

    A suite.json without ``focus`` or ``measure_tasks`` gets their defaults.

    Raises:
        ValueError: The tasks of the Retain are of two splits of ARC.
    """
    tasks = [
        task
        for record in records
        for task, score in record.headlines.items()
        if score.higher_is_better
    ]
    settings: dict[str, Any] = {
        "suite": records[0].suite,
        "retain_tasks": without_second_split(dict.fromkeys(tasks)),
        "reference_row": "dense",
    }
    if not settings["retain_tasks"] and not suite_files(folder):
        raise ValueError(f"{folder}: no task was scored whose metric is better where it is higher")
    settings |= read_suite_file(folder)
    rows = {record.row for record in records}
    settings.setdefault("focus", default_focus(rows, settings["reference_row"]))
    settings.setdefault("measure_tasks", settings["retain_tasks"])
    for kind in ("retain_tasks", "measure_tasks"):
        names = settings[kind] if isinstance(settings[kind], list) else []
        if not names or not all(isinstance(name, str) for name in names):
            raise ValueError(f"{folder / 'suite.json'}: {kind} must be a list of names")
        settings[kind] = list(dict.fromkeys(names))
    if not isinstance(settings["reference_row"], str):
        raise ValueError(f"{folder / 'suite.json'}: reference_row must be a name")
    check_one_split(settings["retain_tasks"])
    return settings
