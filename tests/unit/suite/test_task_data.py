"""Which tasks have their data fetched, and by which command."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

from tests.unit.conftest import config
from workflows.suite import commands
from workflows.suite.jobs import read_suite


def test_the_data_of_stock_tasks_are_fetched_and_those_of_others_are_here(root: Path) -> None:
    local = {"dataset_path": "json", "dataset_kwargs": {"data_files": {"test": "x.jsonl"}}}
    tasks = [
        {"task": "arc_easy", "num_fewshot": 25}, "demo_facts",
        {"task": "boolq", "config": local}, {"task": "perplexity:t", "file": f"{root}/text.txt"},
    ]  # fmt: skip
    suite = read_suite(config(tasks=tasks), root)
    assert suite.task_data_files() == ["results/tiny/tasks/arc_easy.json"]
    flag, entry = shlex.split(commands.task_data(suite, "arc_easy"))
    assert (flag, json.loads(entry)) == ("--task", {"task": "arc_easy", "num_fewshot": 25})


def test_own_tasks_that_name_a_data_set_of_the_hub_are_fetched_as_well(root: Path) -> None:
    folder = root / "tasks"
    folder.mkdir()
    (folder / "theirs.yaml").write_text("task: theirs\ndataset_path: owner/set\n")
    (folder / "here.yaml").write_text(
        "task: here\ndataset_path: json\ndataset_kwargs: {data_files: {test: x.jsonl}}\n"
    )
    suite = read_suite(config(tasks=["theirs", "here"], task_folder=str(folder)), root)
    assert suite.task_data_files() == ["results/tiny/tasks/theirs.json"]
    assert commands.task_data(suite, "theirs").endswith(f"--task-dir {folder}")
