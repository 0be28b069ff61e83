"""Which data the jobs of a suite read, who prepares it, and which command fetches a task's."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from tests.unit.conftest import config
from workflows import ROOT
from workflows.suite import commands, inputs
from workflows.suite.jobs import read_suite


def test_a_backbone_writes_texts_for_its_own_suite(root: Path) -> None:
    data = {"calibration": {"source": "self", "rows": 3, "seed": 5}}
    suite = read_suite(config(data=data, max_length=64), root)
    assert suite.own_parts == ["calibration"]
    assert commands.texts(suite, "calibration") == (
        "--model toy --rows 3 --seed 5 --part calibration --max-length 64"
    )
    assert inputs.source_files(suite, "calibration") == []
    assert suite.prepared_files()[0] == "results/tiny/data/calibration.jsonl"


def test_texts_stand_on_the_code_that_reads_and_draws_them(root: Path) -> None:
    code = read_suite(config(), root).text_code()
    assert {"methods/core/data.py", "workflows/steps/tokens.py", "workflows/demo/corpus.py"} < {
        *code
    }
    assert all((ROOT / name).is_file() for name in code)


def test_rows_that_skip_read_all_data_but_training_and_trained_ones_that_too(root: Path) -> None:
    data = {part: {"source": "text.txt"} for part in ("training", "validation", "probe")}
    rows = ["dense", "shortgpt", "random-skip", "hero", "lora"]
    parts = data | {"calibration": {"source": "ids.npy"}}
    suite = read_suite(config(rows=rows, data=parts), root)
    jobs = {job.row: job for job in suite.jobs}
    folder, tokens = "results/tiny/data", "results/tiny/tokens/toy/training.tokens"
    assert suite.data_files(jobs["dense"]) == {}
    untrained = {
        "validation": f"{folder}/validation.jsonl", "probe": f"{folder}/probe.jsonl",
        "calibration": "ids.npy",
    }  # fmt: skip
    for row in ("shortgpt", "random-skip"):
        assert suite.data_files(jobs[row]) == untrained
    for row in ("hero", "lora"):
        assert suite.data_files(jobs[row]) == untrained | {"training": tokens}
    assert commands.data(suite, jobs["hero"]) == (
        f"--train {tokens} --validation {folder}/validation.jsonl "
        f"--probe {folder}/probe.jsonl --calibration ids.npy"
    )


def test_a_suite_gives_the_parts_it_has(root: Path) -> None:
    data = {"calibration": {"source": "ids.npy"}, "probe": {"source": "tasks", "rows": 8}}
    suite = read_suite(config(rows=["dense", "hero"], data=data), root)
    (job, *_) = (job for job in suite.jobs if job.row == "hero")
    probe = "results/tiny/data/probe.jsonl"
    assert suite.data_files(job) == {"calibration": "ids.npy", "probe": probe}
    assert suite.prepared_files() == [probe, *suite.task_data_files()]
    assert "--rows 8 --seed 0 --backbone toy" in commands.probe(suite)
    assert "--limit" not in commands.probe(suite)
    short = read_suite(config(rows=["dense", "hero"], data=data, limit=30), root)
    for words in (commands.probe(short), commands.score(short, short.jobs[0])):
        assert "--limit 30" in words


def test_a_task_that_is_added_stays_out_of_a_probe_that_is_made(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workflows.suite.jobs.ROOT", root)
    data = {"probe": {"source": "tasks"}}
    first = read_suite(config(data=data), root)
    folder = root / "results/tiny/data"
    folder.mkdir(parents=True)
    (folder / "probe.tasks.json").write_text('["piqa", "boolq"]')
    more = config(data=data, tasks=["piqa", {"task": "boolq"}, "sciq"])
    # Nothing is made yet, so the task comes in; what is made stays, its own changes count.
    assert "sciq" in commands.probe(read_suite(more, root))
    (folder / "probe.jsonl").write_text("")
    later = read_suite(more, root)
    assert commands.probe(later) == commands.probe(first).replace('"boolq"', '{"task": "boolq"}')
    assert later.probe_task_files() == first.probe_task_files()
    assert "results/tiny/tasks/sciq.json" in later.task_data_files()
    turned = read_suite(config(data=data, tasks=["boolq", "piqa"]), root)
    assert commands.probe(turned) == commands.probe(first)


def test_texts_of_fidelity_go_to_the_score_step_alone(root: Path) -> None:
    data = {
        "probe": {"source": "text.txt", "rows": 2},
        "fidelity": {"source": "text.txt", "skip": 2},
    }
    changes = {"rows": ["dense", "hero"], "max_length": 64, "noise_batch_sizes": [8]}
    suite = read_suite(config(data=data, **changes), root)
    file = "results/tiny/data/fidelity.jsonl"
    assert suite.fidelity_files() == [file]
    assert file in suite.prepared_files()
    assert all(file not in suite.data_files(job).values() for job in suite.jobs)
    for job in suite.jobs:
        words = f"--fidelity {file} --fidelity-length 64 --reference toy"
        assert words in commands.score(suite, job)
        assert file not in commands.data(suite, job)
    # The noise floor scores tasks alone.
    assert "fidelity" not in commands.score(suite, suite.jobs[0], 8)
    without = read_suite(config(data={"probe": {"source": "text.txt"}}), root)
    assert without.fidelity_files() == []
    assert "fidelity" not in commands.score(without, without.jobs[0])


def test_only_a_probe_is_made_of_tasks(root: Path) -> None:
    with pytest.raises(ValueError, match="data.validation: file tasks does not exist"):
        read_suite(config(data={"validation": {"source": "tasks"}}), root)


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
