"""Where the jobs of a suite stand, by made results folders."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.records import half, record, write_run
from workflows.steps.status import outdated_runs, status_lines
from workflows.suite.config import read_configs
from workflows.suite.jobs import Suite, read_suite
from workflows.suite.states import Step, state_of, suite_steps

HERO = "results/demo/logs/demo/hero/b25/s42/fit.log"


@pytest.fixture(scope="module")
def suite() -> Suite:
    changes = {"rows": ["dense", "hero"], "first": [], "params": {}, "keep_models": False}
    changes |= {"noise_batch_sizes": [1]}
    return read_suite(read_configs(["demo"]) | changes)


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def dead_process() -> int:
    """The id of a process that has ended."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def status(step: Step, silent: float = 20, **changes: Any) -> None:
    """A log, a minute old, and a status beside it."""
    now = time.time()
    fields = {
        "status": "running", "host": platform.node(), "pid": os.getpid(),
        "began": now - 600, "beat": now - silent, "progress": "",
    }  # fmt: skip
    step.log.parent.mkdir(parents=True, exist_ok=True)
    step.log.write_text("first\n\ntraining: 40%\n")
    os.utime(step.log, (now - 60, now - 60))
    step.log.with_suffix(".status").write_text(json.dumps(fields | changes))


def steps(suite: Suite) -> dict[str, Step]:
    return {step.name: step for step in suite_steps(suite)}


def test_every_job_of_a_suite_is_told(suite: Suite) -> None:
    names = list(steps(suite))
    parts = ["training", "validation", "calibration", "probe"]
    prepared = [f"data/{part}.jsonl prepared" for part in parts if part in suite.config["data"]]
    assert names[0] == "check of the suite"
    assert set(prepared) | {"tokens/demo/training.tokens prepared"} <= set(names)
    runs = ["dense, seed 42", "hero, 25 %, seed 42"]
    assert {f"{run}: {what}" for run in runs for what in ("fit", "score", "time")} <= set(names)
    assert "dense, seed 42: batch1, score" in names
    assert names[-1] == "report"
    assert steps(suite)["hero, 25 %, seed 42: fit"].log == Path(HERO)


@pytest.mark.parametrize(
    ("changes", "name", "reason"),
    [
        ({}, "running", ""),
        ({"pid": 1}, "running", ""),
        ({"host": "node7", "pid": 0}, "running", ""),
        ({"silent": -9e6, "began": 9e12}, "running", ""),
        ({"silent": 720}, "stalled", "no sign of process OWN on HERE for 12 min"),
        (
            {"silent": 7200, "host": "node7", "pid": 5},
            "stalled",
            "no sign of process 5 on node7 for 120 min",
        ),
        ({"status": "failed", "reason": "the loss is nan"}, "failed", "the loss is nan"),
    ],
)
def test_what_a_status_says(changes: dict[str, Any], name: str, reason: str, suite: Suite) -> None:
    step = steps(suite)["hero, 25 %, seed 42: fit"]
    assert state_of(step).name == "waiting"
    status(step, **changes)
    state = state_of(step)
    # Names of tests must be the same in every process that runs them.
    reason = reason.replace("OWN", str(os.getpid())).replace("HERE", platform.node())
    assert (state.name, state.reason) == (name, reason)
    step.outputs[0].mkdir(parents=True)
    # A job that runs makes anew what is there; a status that is left over says nothing.
    assert state_of(step).name == ("done" if name == "failed" else name)


def test_a_killed_step_has_failed(suite: Suite) -> None:
    step = steps(suite)["hero, 25 %, seed 42: fit"]
    status(step, pid=(pid := dead_process()))
    state = state_of(step)
    assert state.name == "failed"
    assert state.reason == f"process {pid} is gone without a word: killed, or out of memory"


def test_a_log_that_stays_silent_is_a_stall(suite: Suite) -> None:
    step = steps(suite)["hero, 25 %, seed 42: fit"]
    hour = time.time() - 3700
    status(step, began=hour - 50)
    os.utime(step.log, (hour, hour))
    assert state_of(step).reason == "no line in its log for 61 min"
    # A log that an earlier try left is no sign of this one.
    status(step, began=time.time() - 5)
    os.utime(step.log, (hour, hour))
    assert state_of(step).name == "running"


def test_a_model_that_went_once_it_was_scored_is_done(suite: Suite) -> None:
    fit, score = (steps(suite)[f"dense, seed 42: {what}"] for what in ("fit", "score"))
    fit.outputs[0].mkdir(parents=True)
    assert [state_of(step).name for step in (fit, score)] == ["done", "waiting"]
    fit.outputs[0].rmdir()
    score.outputs[0].write_text("{}")
    assert [state_of(step).name for step in (fit, score)] == ["done", "done"]


def test_a_fit_that_failed_is_not_done_by_an_older_record(suite: Suite) -> None:
    step = steps(suite)["hero, 25 %, seed 42: fit"]
    status(step, status="failed", reason="out of memory")
    step.outputs[1].parent.mkdir(parents=True)
    step.outputs[1].write_text("{}")
    state = state_of(step)
    assert (state.name, state.reason) == ("failed", "out of memory")


def test_what_asks_for_a_look_is_told_in_full(suite: Suite) -> None:
    by_name = steps(suite)
    fits = [by_name[f"{run}: fit"] for run in ("dense, seed 42", "hero, 25 %, seed 42")]
    status(fits[0])
    status(fits[1], status="failed", reason="disk full")
    fits[0].log.with_suffix(".tsv").write_text("s\th:m:s\n900\t0:15:00\n")
    lines = list(status_lines(suite, [state_of(step) for step in fits], 2))
    assert lines == [
        "Suite demo: 0 done, 1 running, 0 stalled, 1 failed, 0 waiting; "
        "left: about 5 min and 1 jobs unlike any before, 1 at once",
        "\nrunning for about 10 min: dense, seed 42: fit",
        "    log results/demo/logs/demo/dense/b0/s42/fit.log",
        "    training: 40%",
        "\nfailed: hero, 25 %, seed 42: fit: disk full",
        f"    log {HERO}",
        "    first",
        "    training: 40%",
    ]


def test_runs_of_other_params_than_the_suite_has_are_named(suite: Suite) -> None:
    (job,) = [job for job in suite.jobs if job.row == "hero" and job.seed == 42]
    own = {"match": "pooled", "backbone": record("hero", 0.25)["backbone"] | {"name": "demo"}}
    for params, named in (
        (job.params, []),
        ({**job.params, "batch_tokens": 7}, ["/".join(job.key)]),
    ):
        write_run(Path("results/demo"), record("hero", 0.25, *half(), params=params, **own))
        assert outdated_runs(suite) == named
