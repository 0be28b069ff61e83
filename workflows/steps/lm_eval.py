"""lm-eval's own command line, for compressed folders: `python -m workflows.steps.lm_eval ...`.

`--model skipbench --model_args pretrained=DIR` counts and scores as the score step does;
`--model hf` loads the same folders through transformers. All other options are lm-eval's; tasks of
this project need `--include_path workflows/evaluation/tasks`. Task files are held against the same
rules as by the score step, so `--tasks` takes names alone, no paths of files or folders.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from lm_eval.__main__ import cli_evaluate

import workflows.evaluation.registered  # noqa: F401
from workflows.evaluation.loading import confine_templates
from workflows.evaluation.taskfiles import as_list, check_files
from workflows.runtime.program import run, set_up_torch
from workflows.suite.config import read_yaml


def folders_and_tasks() -> tuple[list[str], list[str]]:
    """Folders of task files and tasks, of lm-eval's command line and of the file of `--config`.

    Raises:
        ValueError: That file is no YAML mapping.
    """
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--include_path", action="append", default=[])
    parser.add_argument("--tasks", "-t", action="extend", nargs="*", default=[])
    parser.add_argument("--config", "-C", action="append", default=[])
    args, _ = parser.parse_known_args()
    sources = [vars(args), *(read_yaml(Path(name), "--config") for name in args.config)]
    folders, tasks = (
        [str(value) for source in sources for value in as_list(source.get(key))]
        for key in ("include_path", "tasks")
    )
    return folders, [task for words in tasks for task in words.split(",")]


def check_tasks(tasks: Sequence[str]) -> None:
    """Refuse paths of task files, and of folders with such files: no check would read them.

    Raises:
        ValueError: There is one.
    """
    for task in tasks:
        if task.endswith(".yaml") or any(Path(task).glob("*.yaml")):
            raise ValueError(
                f"--tasks {task} is a path: name its folder by --include_path, and tasks by names"
            )


def main() -> None:
    """Register the model class and confine the tasks, then run lm-eval."""
    folders, tasks = folders_and_tasks()
    check_tasks(tasks)
    for folder in folders:
        check_files(Path(folder))
    confine_templates()
    set_up_torch(threads=1)
    cli_evaluate()


if __name__ == "__main__":
    run(main)
