"""The runs that a suite lists: which have a record, which have none, which have other params."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from workflows.records import DECISIONS, IDLE
from workflows.runtime.heartbeat import read_status
from workflows.suite.job import Job
from workflows.suite.jobs import read_suite


class FolderRuns(NamedTuple):
    """What lies in a results folder.

    Args:
        files: Of records.
        noise: Of records of the noise floor.
        missing: Runs without a record, by row, and why some failed.
        jobs: File of a record -> its job in each part of the suite; empty where none can be read.
    """

    files: list[Path]
    noise: list[Path]
    missing: list[str]
    jobs: Mapping[Path, Sequence[Job]]


def find_runs(folder: Path, configs: Sequence[dict[str, Any]]) -> FolderRuns:
    """The files of a results folder.

    Runs that the suite does not list are left out; where no suite can be read every record counts.

    Args:
        folder: Of results.
        configs: Of the suite's parts.

    Raises:
        ValueError: There is no record, or none of a run that the suite lists.
    """
    files = sorted(folder.rglob("record.json"))
    beside = (f for f in folder.rglob("noise/batch*.json") if not f.name.endswith(DECISIONS))
    noise = sorted(sorted(beside), key=lambda file: (len(file.name), file.name))
    if not files:
        raise ValueError(f"{folder} holds no record.json")
    if not configs:
        return FolderRuns(files, noise, [], {})
    try:
        suites = [read_suite(config) for config in configs]
    except ValueError as error:
        unknown = f"unknown, for the suite cannot be read here ({error})"
        return FolderRuns(files, noise, [unknown], {})
    jobs: dict[Path, list[Job]] = {}
    for job in (job for suite in suites for job in suite.jobs):
        jobs.setdefault(folder.joinpath(*Path(job.folder).parts[2:], "record.json"), []).append(job)
    floor = {folder.joinpath(*Path(f).parts[2:]) for suite in suites for f in suite.noise_files()}
    runs = [file for file in files if file in jobs]
    if not runs:
        raise ValueError(f"{folder} holds no record of a run that its suite lists")
    done = {_run(jobs[file][0]) for file in runs}
    listed = [own[0] for own in jobs.values()]
    missing = [job for job in listed if _run(job) not in done]
    labels = [*_label_runs(missing, listed), *_failed(folder, missing)]
    return FolderRuns(runs, [file for file in noise if file in floor], labels, jobs)


def other_params(params: Mapping[str, Any], jobs: Sequence[Job]) -> list[str]:
    """Names of params that a record has otherwise than its job, in every part of the suite."""
    names: list[str] = []
    for job in jobs:
        asked = json.loads(json.dumps(job.params))
        names = [
            name
            for name, value in asked.items()
            if name not in IDLE and params.get(name, value) != value
        ]
        if not names:
            break
    return names


def _run(job: Job) -> tuple[str, ...]:
    """What one record is enough for: all seeds of a job that is not stochastic."""
    return job.key if job.method.stochastic else job.key[:-1]


def _label_runs(missing: Sequence[Job], jobs: Sequence[Job]) -> list[str]:
    """Runs without a record, by row; a budget or a seed without any record stands by itself."""
    rest = [job for job in jobs if job not in missing]
    labels = {job.label for job in missing} - {job.label for job in rest}
    seeds = {job.seed for job in missing} - {job.seed for job in rest}
    whole = [*sorted(labels), *(f"s{seed}" for seed in sorted(seeds))]
    names: dict[str, list[str]] = {f"all of {part}": [] for part in whole}
    for job in (job for job in missing if job.label not in labels and job.seed not in seeds):
        names.setdefault(f"{job.row} {job.label}", []).append(f"s{job.seed}")
    return [" ".join([name, *seeds]) for name, seeds in names.items()]


def _failed(folder: Path, missing: Sequence[Job]) -> Iterator[str]:
    """Runs without a record whose fit or score failed, each with its reason."""
    for job in missing:
        logs = folder.joinpath("logs", *job.key)
        for status in map(read_status, (logs / "fit.log", logs / "score.log")):
            if status is not None and status["status"] == "failed":
                yield f"{job.row} {job.label} s{job.seed} failed ({status['reason'].rstrip('.')})"
