"""What rules wait for: every file that a suite names by a path."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from tests.toys.tasks import make_tasks
from tests.unit.conftest import config
from workflows.suite import commands, inputs
from workflows.suite.jobs import Suite, read_suite


@pytest.fixture
def suite(root: Path, monkeypatch: pytest.MonkeyPatch) -> Suite:
    """Texts, own tasks with data here, and sources, all beside the backbone."""
    monkeypatch.chdir(root)
    tasks = make_tasks(Path("tasks"), items=2)
    (tasks / "toy_write.yaml").write_text(
        "include: sub/base\n" + (tasks / "toy_write.yaml").read_text()
    )
    (tasks / "sub").mkdir()
    (tasks / "sub/base").write_text("process_docs: !function own.docs\n")
    (tasks / "sub/own.py").touch()
    for name in ("model.safetensors", "tokenizer.json"):
        (root / "toy" / name).touch()
    (root / "rows.jsonl").touch()
    local = {"dataset_path": "json", "dataset_kwargs": {"data_files": {"test": ["rows.jsonl"]}}}
    text = {"task": "perplexity:text", "file": "text.txt"}
    changes = config(
        rows=["dense", "hero"],
        tasks=["toy_choice", "toy_write", {"task": "piqa", "config": local}, text],
        task_folder="tasks",
        data={
            "training": {"source": "rows.jsonl"}, "validation": {"source": "demo"},
            "probe": {"source": "tasks"}, "calibration": {"source": "ids.npy"},
        },
    )  # fmt: skip
    return read_suite(changes, root)


BACKBONE = ["toy/config.json", "toy/model.safetensors", "toy/tokenizer.json"]
TASKS = [
    "tasks/toy_choice.yaml", "tasks/choice.jsonl", "tasks/toy_write.yaml", "tasks/sub/base",
    "tasks/sub/own.py", "tasks/write.jsonl", "rows.jsonl",
]  # fmt: skip


def test_scores_wait_for_texts_task_files_and_data_that_are_here(suite: Suite) -> None:
    assert inputs.score_files(suite) == [*TASKS, "text.txt"]
    assert inputs.task_files(suite, "toy_choice") == TASKS[:2]


def test_a_probe_of_the_tasks_waits_for_them_and_a_tokenizer(suite: Suite) -> None:
    assert inputs.probe_files(suite) == [*TASKS, "toy/config.json", "toy/tokenizer.json"]


def test_data_wait_for_the_file_that_they_are_made_of(suite: Suite) -> None:
    files = {part: inputs.source_files(suite, part) for part in suite.config["data"]}
    assert files == {
        "training": ["rows.jsonl"], "validation": [], "probe": [], "calibration": ["ids.npy"],
    }  # fmt: skip


def test_a_backbone_is_not_fetched_over_another(suite: Suite) -> None:
    config = {**suite.config, "backbones": {"mine": {"path": "hub:a/b"}}}
    mine = replace(suite, config=config)
    inputs.check_fetched(mine)
    folder = Path("results/backbones/mine")
    folder.mkdir(parents=True)
    (folder / "fetched.json").write_text('{"source": {"path": "hub:a/b"}}')
    inputs.check_fetched(mine)
    (folder / "fetched.json").write_text('{"source": {"path": "hub:c/d", "revision": "e"}}')
    with pytest.raises(ValueError, match=r"mine: results/backbones/mine holds hub:c/d e, not hub:"):
        inputs.check_fetched(mine)
    (folder / "fetched.json").write_text('{"source": {"path": "hub:c/d"}, "files": []}')
    with pytest.raises(ValueError, match=r"fetched.json: files must be an object"):
        inputs.check_fetched(mine)
    # By hand, without the hash that the suite names.
    spec = {"path": "pypi:toy==1", "sha256": "ab"}
    (folder / "fetched.json").write_text('{"source": {"path": "pypi:toy==1"}, "wheel": "ab"}')
    inputs.check_fetched(replace(suite, config={**config, "backbones": {"mine": spec}}))
    # What was fetched by hand is taken from where it lies.
    backbones = {"mine": {"path": str(folder)}}
    inputs.check_fetched(replace(suite, config={**suite.config, "backbones": backbones}))


def test_the_commit_that_came_may_be_named_afterwards(suite: Suite) -> None:
    """Neither is it fetched, nor is anything fitted again."""

    def named(**more: str) -> Suite:
        return replace(suite, config={**suite.config, "backbones": {"toy": {**spec, **more}}})

    spec = {"path": "hub:a/b", "dtype": "float32"}
    folder = Path("results/backbones/toy")
    folder.mkdir(parents=True)
    (folder / "fetched.json").write_text('{"source": {"path": "hub:a/b"}, "commit": "abc"}')
    before, after = named(), named(revision="abc")
    for one in (before, after):
        inputs.check_fetched(one)
    assert after.hub_source("toy") == before.hub_source("toy") == '{"path": "hub:a/b"}'
    assert commands.fit(after, suite.jobs[-1]) == commands.fit(before, suite.jobs[-1])
    with pytest.raises(ValueError, match=r"holds hub:a/b, not hub:a/b v2"):
        inputs.check_fetched(named(revision="v2"))
    # Named before it was fetched, it stays in the arguments.
    note = '{"source": {"path": "hub:a/b", "revision": "abc"}, "commit": "abc"}'
    (folder / "fetched.json").write_text(note)
    again = named(revision="abc")
    inputs.check_fetched(again)
    assert "--revision abc" in commands.fit(again, suite.jobs[-1])


def test_the_score_of_a_guess_fetches_no_data_again(root: Path) -> None:
    tasks = ({"task": "piqa", "metric": "acc"}, {"task": "piqa", "metric": "acc", "chance": 0.5})
    first, second = (read_suite(config(tasks=[task]), root) for task in tasks)
    assert commands.task_data(first, "piqa") == commands.task_data(second, "piqa")


def test_a_lost_check_is_made_up_for_where_something_ran(suite: Suite) -> None:
    checked = Path("results/tiny/suite.json")
    inputs.restore_check(suite, checked)
    assert not checked.exists()
    Path(suite.jobs[0].folder).mkdir(parents=True)
    inputs.restore_check(suite, checked)
    assert json.loads(checked.read_text()) == suite.config


def test_how_a_task_is_scored_makes_no_new_probe(suite: Suite) -> None:
    words = commands.probe(suite)
    for changes, same in (({"metric": "acc", "chance": 0.5}, True), ({"limit": 3}, False)):
        tasks = [{"task": "toy_choice", **changes}, *suite.config["tasks"][1:]]
        other = replace(suite, config={**suite.config, "tasks": tasks})
        plain = json.loads(shlex.split(words)[1])[1:]
        told = json.loads(shlex.split(commands.probe(other))[1])
        assert told[1:] == plain
        assert (told[0] == {"task": "toy_choice"}) == same


def test_a_fit_waits_for_every_file_of_its_backbone(suite: Suite) -> None:
    hero, dense = suite.jobs[-1], suite.jobs[0]
    assert inputs.fit_files(suite, dense) == inputs.backbone_files(suite, "toy") == BACKBONE
    assert inputs.fit_files(suite, hero) == [*BACKBONE, "ids.npy"]
