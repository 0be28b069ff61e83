"""The paper's own suites, typed as a user types them, against a hub on the loopback.

Only the amount of work is small: backbones of the true style with narrow layers, data of the true
form, one budget and seed, two updates, two items per task. ``make rehearsal`` runs these;
``make test`` leaves them out.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml

from tests.hub import Hub
from tests.rehearsal_world import make_hub
from tests.workflow.conftest import copy_checkout, hub_environment, wait_for
from workflows.evaluation.sandbox import reason_not_to_run
from workflows.evaluation.tasknames import runs_programs
from workflows.suite.config import read_configs
from workflows.suite.jobs import read_suite

pytestmark = pytest.mark.rehearsal

SUITES = Path("workflows/suites")
# A fit of two updates, an answer of eight tokens.
SHORT = {"updates": 2, "batch_tokens": 512, "row_length": 128, "micro_tokens": 0}


class Rehearsal:
    """A checkout, a hub, and a home of the hub's libraries that no other test shares."""

    def __init__(self, folder: Path, hub: Hub) -> None:
        self.folder, self.hub = copy_checkout(folder / "checkout"), hub
        self.home = folder / "home"

    def suite(self, *names: str, rows: Sequence[str] = ()) -> list[str]:
        """Config files of a suite with its overlays, and the one that only shrinks work.

        Args:
            names: Of files below workflows/suites.
            rows: Those that run beside the suite's derived ones; none: all.
        """
        files = [f"{SUITES / name}.yaml" for name in names]
        small = Path(f"small_{len(list(self.folder.glob('small_*')))}.yaml")
        overlay = shrunk(self.merged(files)) | ({"rows": list(rows)} if rows else {})
        (self.folder / small).write_text(yaml.safe_dump(overlay), encoding="utf-8")
        return [*files, str(small)]

    def merged(self, files: Sequence[str]) -> dict[str, Any]:
        """The config that Snakemake makes of the files."""
        return read_configs([self.folder / file for file in files])

    def start(self, files: list[str], *targets: str) -> subprocess.Popen[str]:
        """Snakemake on these config files, in a process group of its own."""
        return subprocess.Popen(
            [sys.executable, "-m", "snakemake", *targets, "--cores", "2", "--configfile", *files],
            cwd=self.folder,
            # The paper's suites ask for a GPU.
            env=hub_environment(self.hub, self.home) | {"SKIPBENCH_CPU": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def run(self, files: list[str], *targets: str) -> str:
        """The same to its end, which must be a good one."""
        process = self.start(files, *targets)
        said, _ = process.communicate(timeout=3600)
        assert process.returncode == 0, said[-4000:]
        return said


def shrunk(suite: Mapping[str, Any]) -> dict[str, Any]:
    """An overlay with less of everything that costs time, and nothing else."""
    tasks = []
    for task in suite["tasks"]:
        small = dict(task) | {"limit": 2}
        if "gsm8k_llama" in task["task"]:
            small["num_fewshot"] = 1
        if "gsm8k" in task["task"] or "humaneval" in task["task"]:
            written = {"until": [], "do_sample": False, "max_gen_toks": 8}
            small["config"] = task.get("config", {}) | {"generation_kwargs": written}
        tasks.append(small)
    lines = suite.get("derive", {}).items()
    long = [name for name, line in lines if "updates" in line.get("params", {})]
    parts = {"calibration": {"rows": 20}, "validation": {"rows": 6}, "probe": {"rows": 2}}
    return {
        "tasks": tasks,
        "training": SHORT,
        # Greedy searches, which score every candidate of every round on each of them.
        "params": {"blockpruner": {"samples": 2}, "sleb": {"samples": 2}},
        "first": [],
        "budgets": suite["budgets"][:1],
        "row_seeds": {name: [42] for name in suite.get("row_seeds", {})},
        "derive": {name: {"params": SHORT} for name in long},
        "data": {part: rows for part, rows in parts.items() if part in suite["data"]},
        "batch_size": 8,
        "noise_batch_sizes": [2],
        "timing": {"prefill": "1x16", "decode": "1x16", "training": "1x16", "rounds": 2},
        "max_length": 256,
        "resources": {"mem_mb": 2000},
    }


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hub]:
    with make_hub(tmp_path_factory.mktemp("hub")).serve() as running:
        yield running


@pytest.fixture(scope="module")
def rehearsal(hub: Hub, tmp_path_factory: pytest.TempPathFactory) -> Rehearsal:
    return Rehearsal(tmp_path_factory.mktemp("rehearsal"), hub)


def check_tables(rehearsal: Rehearsal, files: list[str], name: str) -> None:
    """Every row and every task of the suite stands in the tables."""
    suite = read_suite(rehearsal.merged(files))
    here = reason_not_to_run() is None
    tasks = {entry.task for entry in suite.entries if here or not runs_programs(entry)}
    tables = rehearsal.folder / "reports" / name / "tables"
    assert set(pd.read_csv(tables / "retain.csv")["row"]) == {job.row for job in suite.jobs}
    timed = pd.read_csv(tables / "speeds.csv").groupby("row")["mode"].agg(set)
    assert set(timed.index) == {job.row for job in suite.jobs}
    trained = {job.row for job in suite.jobs if job.method.trained}
    for row, modes in timed.items():
        assert modes == {"prefill", "decode", *["training"][: row in trained]}, row
    for _, own in pd.read_csv(tables / "scores.csv").groupby(
        ["row", "target", "seed"], dropna=False
    ):
        assert set(own["task"]) == tasks


def settled(folder: Path, suite: str) -> dict[Path, int]:
    """Records old enough that Snakemake has taken note of them, with their times."""
    found = {file: file.stat() for file in (folder / "results" / suite).rglob("record.json")}
    return {file: at.st_mtime_ns for file, at in found.items() if time.time() - at.st_mtime > 20}


def test_the_core_of_the_8b_suite_from_the_hub_to_its_table(rehearsal: Rehearsal) -> None:
    files = rehearsal.suite("llama31_8b")
    name = "llama31_8b"
    rehearsal.run(files, "prepare")
    fetched = Counter(rehearsal.hub.downloads())
    assert set(fetched.values()) == {1}
    assert not [path for path in fetched if path.endswith(".pth")]
    asked = len(rehearsal.hub.requests)

    # Killed where the first rows are scored, it goes on; what was scored stays as it is.
    process = rehearsal.start(files)
    wait_for(lambda: len(settled(rehearsal.folder, name)) >= 3, process, limit=1800)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    before = settled(rehearsal.folder, name)
    rehearsal.run(files, "--unlock")
    rehearsal.run(files)
    assert {file: file.stat().st_mtime_ns for file in before} == before
    check_tables(rehearsal, files, name)
    assert len(rehearsal.hub.requests) == asked


@pytest.mark.parametrize(
    "overlays",
    [("alpha", "ablation", "memory"), ("literal", "literal_40"), ("split",), ("paper_literal",)],
    ids=" ".join,
)
def test_the_rest_of_the_paper_goes_on_top_of_the_core(
    overlays: Sequence[str], rehearsal: Rehearsal
) -> None:
    """One overlay per table; what the core's results hold is not run again."""
    names = [f"overlays/{name}" for name in overlays]
    rows = ["dense", "hero", "mod-d"] if "split" in overlays else ["dense"]
    files = rehearsal.suite("llama31_8b", *names, rows=rows)
    rehearsal.run(files)
    check_tables(rehearsal, files, "llama31_8b")


def test_a_task_that_is_added_is_fetched_and_scored_alone(rehearsal: Rehearsal) -> None:
    """Nothing that trains is fitted again."""
    name, files = "llama31_8b", rehearsal.suite("llama31_8b")
    logs = {
        file: file.stat().st_mtime_ns
        for file in (rehearsal.folder / "results" / name / "logs").rglob("fit.log")
    }
    overlay = yaml.safe_load((rehearsal.folder / files[-1]).read_text("utf-8"))
    added = {"task": "gsm8k", "limit": 2, "num_fewshot": 1}
    added["config"] = {"generation_kwargs": {"until": ["Question:"], "max_gen_toks": 8}}
    overlay["tasks"].append(added)
    (rehearsal.folder / files[-1]).write_text(yaml.safe_dump(overlay), encoding="utf-8")
    rehearsal.run(files)
    check_tables(rehearsal, files, name)
    jobs = read_suite(rehearsal.merged(files)).jobs
    trained = {job.row for job in jobs if job.method.trained}
    again = [file for file, before in logs.items() if file.stat().st_mtime_ns != before]
    assert not {file.parts[-4] for file in again} & trained


def test_a_base_model_without_a_chat_template(rehearsal: Rehearsal) -> None:
    files = rehearsal.suite("llama2_7b", rows=["dense", "shortgpt", "hero", "lora"])
    rehearsal.run(files)
    check_tables(rehearsal, files, "llama2_7b")


def test_a_gated_model_without_a_token_ends_before_any_fit(rehearsal: Rehearsal) -> None:
    files = rehearsal.suite("llama2_13b", rows=["dense", "shortgpt"])
    rehearsal.hub.models["meta-llama/Llama-2-13b-hf"].gated = True
    process = rehearsal.start(files)
    said, _ = process.communicate(timeout=600)
    assert process.returncode != 0
    assert "meta-llama/Llama-2-13b-hf is gated: accept its licence" in said
    assert not list((rehearsal.folder / "results").glob("llama2_13b/llama2_13b"))
