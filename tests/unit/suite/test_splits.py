"""ARC on its validation splits: what the overlay adds, and that no Retain has two splits."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.records import dense, record, score, write_run
from workflows.evaluation.tasklist import TaskEntry
from workflows.evaluation.tasknames import OWN_TASKS, hub_task_names, own_task_names
from workflows.report.results import read_results
from workflows.suite import commands
from workflows.suite.config import read_configs
from workflows.suite.jobs import Suite, read_suite
from workflows.suite.splits import VALIDATION, check_one_split

SPLIT = {"retain_tasks": ["arc_easy", "arc_challenge_validation"]}


def config(*names: str, **more: Any) -> dict[str, Any]:
    return read_configs(names) | more


@pytest.fixture(scope="module")
def plain() -> Suite:
    return read_suite(config("llama31_8b"))


@pytest.fixture(scope="module")
def suite() -> Suite:
    return read_suite(config("llama31_8b", "overlays/paper_literal"))


def test_both_splits_are_scored_and_the_validation_splits_enter_the_retain(
    plain: Suite, suite: Suite
) -> None:
    added = suite.entries[len(plain.entries) :]
    assert suite.entries[: len(plain.entries)] == plain.entries
    assert [entry.task for entry in added] == list(VALIDATION.values())
    assert {(entry.num_fewshot, entry.metric) for entry in added} == {(25, "acc")}
    expected = [VALIDATION.get(task, task) for task in plain.config["retain_tasks"]]
    assert suite.config["retain_tasks"] == expected


def test_no_fit_and_no_probe_knows_of_it(plain: Suite, suite: Suite) -> None:
    assert [job.key for job in suite.jobs] == [job.key for job in plain.jobs]
    assert commands.probe(suite) == commands.probe(plain)
    assert suite.probe_task_files() == plain.probe_task_files() == plain.task_data_files()[:-1]
    for ours, other in zip(suite.jobs, plain.jobs, strict=True):
        assert commands.fit(suite, ours) == commands.fit(plain, other)
        assert suite.data_files(ours) == plain.data_files(other)


def test_their_data_are_fetched(suite: Suite) -> None:
    assert set(VALIDATION.values()) <= {Path(file).stem for file in suite.task_data_files()}
    assert set(VALIDATION.values()) <= hub_task_names() <= own_task_names()
    assert not {name for name in hub_task_names() if name.startswith(("demo", "small"))}


@pytest.mark.parametrize("name", VALIDATION)
def test_they_are_the_tasks_of_lm_eval_but_for_the_split(name: str) -> None:
    spec = find_spec("lm_eval")
    assert spec is not None and spec.origin is not None
    stock, ours = (
        whole_task(folder, task)
        for folder, task in (
            (Path(spec.origin).parent / "tasks/arc", name),
            (OWN_TASKS / "arc", VALIDATION[name]),
        )
    )
    assert (ours.pop("task"), stock.pop("task")) == (VALIDATION[name], name)
    assert (ours.pop("test_split"), stock.pop("test_split")) == (None, "test")
    assert stock.pop("tag") == ["ai2_arc"]
    assert ours == stock


def whole_task(folder: Path, task: str) -> dict[str, Any]:
    """A task's file with what it includes."""
    task_file: dict[str, Any] = yaml.safe_load((folder / f"{task}.yaml").read_text())
    if "include" not in task_file:
        return task_file
    included: dict[str, Any] = yaml.safe_load((folder / task_file.pop("include")).read_text())
    return included | task_file


def test_two_splits_never_enter_one_retain(tmp_path: Path) -> None:
    check_one_split(["arc_easy", "arc_challenge", "piqa"])
    check_one_split(VALIDATION.values())
    sentence = "arc_easy is of ARC's test split, arc_challenge_validation of the validation split"
    tasks = ["arc_easy", "arc_challenge_validation"]
    with pytest.raises(ValueError, match=f"suite config, retain_tasks: {sentence}"):
        read_suite(config("llama31_8b", tasks=tasks, **SPLIT))
    entries = ["arc_easy", {"task": "arc_challenge", "split": "validation"}]
    with pytest.raises(ValueError, match=f"suite config, retain_tasks: {sentence}"):
        read_suite(config("llama31_8b", tasks=entries, retain_tasks=["arc_easy", "arc_challenge"]))
    write_run(tmp_path, dense(*(score(task, [1, 0]) for task in tasks)))
    (tmp_path / "suite.json").write_text(
        '{"retain_tasks": ["arc_easy", "arc_challenge_validation"]}'
    )
    with pytest.raises(ValueError, match=f"retain_tasks: {sentence}"):
        read_results(tmp_path)


def test_without_a_suite_the_test_split_enters(tmp_path: Path) -> None:
    tasks = ["arc_easy", "arc_easy_validation"]
    write_run(tmp_path, dense(*(score(task, [1, 0]) for task in tasks)))
    (panel,) = read_results(tmp_path).panels
    assert list(panel.retain_tasks) == ["arc_easy"]
    assert set(panel.samples) == {"retain", *tasks}


def test_rows_scored_by_one_and_by_the_other_stand_in_no_table(tmp_path: Path) -> None:
    both = [score(task, [1, 0]) for task in ("arc_easy", "arc_easy_validation")]
    write_run(tmp_path, dense(*both))
    write_run(tmp_path, record("hero", 0.25, both[0]))
    with pytest.raises(ValueError, match="'hero at 25 %' was not scored on task 'arc_easy_valid"):
        read_results(tmp_path)


def test_an_entry_of_another_split_is_no_other_task() -> None:
    """The older way, one split at a time; tables refuse a mixture of records."""
    (spec,) = TaskEntry("arc_easy", split="validation").lm_eval_spec["task"]
    assert spec == {"task": "arc_easy", "test_split": None}
