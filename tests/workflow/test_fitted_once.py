"""What changes no fit runs none again. Results are made up: a dry run tells what it would do."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from tests.workflow.conftest import environment, wait_for
from workflows.suite.jobs import read_suite

Snakemake = Callable[..., tuple[int, str]]
FOLDER = Path("results/once")
RECORDS = [f"{FOLDER}/demo/{run}/s42/record.json" for run in ("dense/b0", "shortgpt/b25")]
TASK, CHECKED = FOLDER / "tasks/theirs.json", FOLDER / "suite.json"
RULES = ("check", "task_data", "probe", "fit_untrained", "score", "time", "noise")


class Finished:
    """A suite whose runs are done, in a copy of the checkout."""

    def __init__(self, copy: Path, folder: Path, run_snakemake: Snakemake) -> None:
        self.copy, self.file, self.run = copy, folder / "once.yaml", run_snakemake
        tasks = folder / "tasks"
        tasks.mkdir()
        (tasks / "theirs.yaml").write_text("task: theirs\ndataset_path: owner/set\n")
        self.suite: dict[str, Any] = {
            "suite": FOLDER.name,
            "backbones": {"demo": {"path": "workflows/demo/backbone"}},
            "rows": ["dense", "shortgpt"],
            "budgets": [0.25],
            "seeds": [42],
            "tasks": ["demo_facts", "theirs"],
            "task_folder": str(tasks),
            "data": {"probe": {"source": "tasks"}},
        }
        self.write()
        for made in (CHECKED, TASK, FOLDER / "data/probe.jsonl", *RECORDS):
            (copy / made).parent.mkdir(parents=True, exist_ok=True)
            if made in RECORDS:
                (copy / made).with_name("model").mkdir()
            (copy / made).write_text("{}")

    def write(self, **changes: Any) -> None:
        self.suite |= changes
        self.file.write_text(yaml.safe_dump(self.suite), encoding="utf-8")

    def runs(self, *words: str) -> list[str]:
        """The rules that would run for the records."""
        given = ["-n", *RECORDS, *words, "--configfile", str(self.file)]
        status, said = self.run(self.copy, *given)
        assert status == 0, said
        return [rule for rule in RULES if f"\n{rule} " in said]


@pytest.fixture
def finished(plain_copy: Path, tmp_path: Path, run_snakemake: Snakemake) -> Iterator[Finished]:
    yield Finished(plain_copy, tmp_path, run_snakemake)
    shutil.rmtree(plain_copy / FOLDER)


def test_data_of_a_task_that_are_fetched_anew_make_no_new_probe(finished: Finished) -> None:
    """As after another metric, or once a machine has what the task lacked."""
    assert finished.runs("--forcerun", str(TASK)) == ["task_data", "score"]
    (finished.copy / TASK).write_text('{"files": []}')
    assert finished.runs() == ["score"]


def test_a_lost_check_is_made_again_alone(finished: Finished) -> None:
    (finished.copy / CHECKED).unlink()
    assert finished.runs("--forcerun", "score") == ["score"]


def test_fidelity_texts_are_for_the_scores_alone(finished: Finished) -> None:
    texts = finished.copy / FOLDER / "data/fidelity.jsonl"
    texts.write_text("{}")
    finished.write(data=finished.suite["data"] | {"fidelity": {"source": "demo", "rows": 2}})
    noise = RECORDS[0].replace("record.json", "noise/batch1.json")
    (finished.copy / noise).parent.mkdir()
    (finished.copy / noise).write_text("{}")
    assert finished.runs(noise, "--forcerun", str(FOLDER / "data/fidelity.jsonl")) == ["score"]


def test_a_model_that_is_fitted_again_is_timed_again(finished: Finished) -> None:
    finished.write(timing={"decode": "1x8", "prefill": "1x8", "rounds": 2}, keep_models="trained")
    speed = RECORDS[1].replace("record.json", "speed.json")
    (finished.copy / speed).write_text("{}")
    assert finished.runs(speed, "--forcerun", "fit_untrained")[-2:] == ["score", "time"]


def test_other_folders_and_a_suite_without_a_name(
    plain_copy: Path, tmp_path: Path, run_snakemake: Snakemake
) -> None:
    status, said = run_snakemake(tmp_path, "-n", "--snakefile", str(plain_copy / "Snakefile"))
    assert status != 0
    assert "error: call snakemake in the checkout, without --directory" in said
    status, said = run_snakemake(plain_copy, "-n", "--quiet", "--config", "limit=0")
    assert status != 0
    assert "error: suite config, limit:" in said


def test_a_check_that_fails_leaves_the_one_before(
    finished: Finished, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And no shell stands between Snakemake and a step, which a signal would end alone."""
    backbone = tmp_path / "backbone"
    backbone.mkdir()
    (backbone / "config.json").write_text('{"model_type": "llama"}')
    finished.write(backbones={"demo": {"path": str(backbone)}})
    monkeypatch.chdir(finished.copy)
    checked = finished.copy / CHECKED
    before = read_suite(finished.suite, finished.copy).as_json
    checked.write_text(before)
    words = ["--cores", "1", "--force", "check", "--configfile", finished.file]
    running = subprocess.Popen(
        [sys.executable, "-m", "snakemake", *words],
        cwd=finished.copy, env=environment(), text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    main = psutil.Process(running.pid)
    step = wait_for(lambda: [p for p in main.children() if "--config" in p.cmdline()], running)
    assert "workflows.steps.check" in step[0].cmdline()
    said, _ = running.communicate(timeout=200)
    assert running.returncode == 1
    assert "error: backbone folder" in said, said
    assert json.loads(checked.read_text()) == json.loads(before)
