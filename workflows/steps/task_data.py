"""Fetch the data of one lm-eval task into the libraries' cache, where the score step reads it.

Writes the files with commit and checksums; a task of local files has none.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from methods.core.jsonfile import parse_json
from workflows.evaluation.loading import CannotRun, load, task_manager
from workflows.evaluation.taskfiles import names_files
from workflows.evaluation.tasklist import TaskEntry, add_task_folder, read_entries, task_folders
from workflows.runtime.files import write_json
from workflows.runtime.hub import (
    describe_files,
    fetch_files,
    one_sentence,
    split_address,
    split_files,
)
from workflows.runtime.program import run, step_parser


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = step_parser(__doc__)
    parser.add_argument("--task", required=True, metavar="JSON", help="an entry of tasks:")
    add_task_folder(parser)
    parser.add_argument(
        "--out", required=True, type=Path, metavar="FILE.json", help="list of the files"
    )
    return parser.parse_args()


def main() -> None:
    """Build the task, which fetches its data; then write what it was built from."""
    args = arguments()
    entry = read_entries([parse_json(args.task, "--task")])[0]
    if entry.is_perplexity:
        raise ValueError(f"--task '{entry.task}' is a text file here: there is nothing to fetch")
    folders = task_folders(args)
    try:
        report = fetch(entry, folders)
    except CannotRun as error:
        # Other tasks are scored; the tables leave this one out and say why.
        report = {"task": entry.task, "files": [], "not_run": str(error)}
    write_json(args.out, report)
    summary = report.get("not_run") or f"{len(report['files'])} files"
    print(f"{entry.task}: {summary}")


def fetch(entry: TaskEntry, task_folders: Sequence[Path]) -> dict[str, Any]:
    """Fetch the data of an entry and describe its files.

    Raises:
        CannotRun: It could not be scored from what the hub has, or without more packages.
        ValueError: The data cannot be fetched.
    """
    files: list[dict[str, Any]] = []
    for repository, config, revision in sources_of(entry, task_folders):
        addresses = split_files(repository, config, revision)
        unique = dict.fromkeys(
            a for split in addresses.values() for a in split if split_address(a)[0]
        )
        files += describe_files(fetch_files(list(unique)))
    return {"task": entry.task, "files": files}


def sources_of(
    entry: TaskEntry, task_folders: Sequence[Path]
) -> list[tuple[str, str | None, str | None]]:
    """Repository, config and revision of the data sets of an entry, once its tasks are built.

    Raises:
        CannotRun: A package is missing, or a data set is a program.
        ValueError: The data cannot be fetched.
    """
    with one_sentence(f"the data of task '{entry.task}'"):
        tasks: list[Any] = load(entry, task_manager([entry], task_folders)).get_all_tasks()
    sources = []
    for task in tasks:
        kwargs = task.config.dataset_kwargs or {}
        if task.config.dataset_path and not names_files(kwargs):
            source = task.config.dataset_path, task.config.dataset_name, kwargs.get("revision")
            sources.append(source)
    return list(dict.fromkeys(sources))


if __name__ == "__main__":
    run(main)
