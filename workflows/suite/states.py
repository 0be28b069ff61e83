"""Where the jobs of a suite stand, by the files in its results folder."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workflows.runtime.heartbeat import read_status
from workflows.suite.jobs import Suite
from workflows.suite.progress import RunNames

# A running job has stalled after so many seconds without a heartbeat (one comes every 30 s), or
# without a line in its log (progress bars write one every 30 s).
NO_BEAT, NO_LINE = 300, 3600


@dataclass(frozen=True)
class Step:
    """A job of Snakemake.

    Args:
        name: In words.
        log: Where it says what it does.
        outputs: What it writes, then what is made from that: a model may be deleted once it is
            scored.
    """

    name: str
    log: Path
    outputs: tuple[Path, ...]


@dataclass(frozen=True)
class State:
    """Where a step stands.

    Args:
        step: Which.
        name: ``"done"``, ``"running"``, ``"stalled"``, ``"failed"`` or ``"waiting"``.
        reason: Why it stalled or failed.
        seconds: Since a running or stalled step began.
    """

    step: Step
    name: str
    reason: str = ""
    seconds: float = 0.0


def suite_steps(suite: Suite) -> Iterator[Step]:
    """The jobs of a suite, first those that prepare; paths are those of the rules."""
    root, logs = Path("results") / suite.name, Path("results") / suite.name / "logs"
    for name in suite.config["backbones"]:
        folder = Path(suite.backbone_folder(name))
        rule = {"backbones": "fetch_backbone", "trained": "train_backbone"}.get(folder.parent.name)
        if rule and folder.is_relative_to("results"):
            log = Path("results/logs", rule, f"{folder.name}.log")
            yield Step(f"backbone {name}", log, (folder,))
    yield Step("check of the suite", logs / "check.log", (root / "suite.json",))
    for file in map(Path, suite.prepared_files()):
        place = file.relative_to(root)
        log = logs / (place.parent if place.parts[0] == "tokens" else place.with_suffix(""))
        yield Step(f"{place} prepared", log.with_name(f"{log.name}.log"), (file,))
    yield from _run_steps(suite, root, logs)
    page = Path("reports") / suite.name / "index.html"
    yield Step("report", logs / "report.log", (page,))


def _run_steps(suite: Suite, root: Path, logs: Path) -> Iterator[Step]:
    """Fits and scores of all runs, then the noise floor and the timings."""
    names = RunNames(suite)
    for job in suite.jobs:
        key = "/".join(job.key)
        record = Path(job.folder) / "record.json"
        yield Step(f"{names:{key}}: fit", logs / key / "fit.log", (Path(job.model), record))
        yield Step(f"{names:{key}}: score", logs / key / "score.log", (record,))
    for record in map(Path, suite.noise_files()):
        run, log = record.parents[1].relative_to(root), logs / record.relative_to(root)
        yield Step(f"{names:{run}}: {record.stem}, score", log.with_suffix(".log"), (record,))
    for speed in map(Path, suite.speed_files()):
        run = speed.parent.relative_to(root)
        yield Step(f"{names:{run}}: time", logs / run / "time.log", (speed,))


def state_of(step: Step) -> State:
    """Where a step stands now."""
    status = read_status(step.log)
    if status is not None and status["status"] == "running" and _lives(status):
        reason, seconds = _silence(step, status), max(0.0, time.time() - status["began"])
        return State(step, "stalled" if reason else "running", reason, seconds)
    failed = status is not None and status["status"] == "failed"
    own, *later = step.outputs
    # What an earlier model led to says nothing of one that failed.
    if own.exists() or (not failed and any(output.exists() for output in later)):
        return State(step, "done")
    if status is None:
        return State(step, "waiting")
    killed = f"process {status['pid']} is gone without a word: killed, or out of memory"
    return State(step, "failed", status.get("reason", killed))


def _lives(status: dict[str, Any]) -> bool:
    """Whether the process is there; of one on another machine only the heartbeat is known."""
    if status["host"] != platform.node():
        return True
    try:
        os.kill(status["pid"], 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _silence(step: Step, status: dict[str, Any]) -> str:
    """Why a running step has stalled; empty if it has not."""
    now = time.time()
    if now - status["beat"] > NO_BEAT:
        minutes = int((now - status["beat"]) / 60)
        return f"no sign of process {status['pid']} on {status['host']} for {minutes} min"
    try:
        quiet = now - max(step.log.stat().st_mtime, status["began"])
    except OSError:
        return ""
    return f"no line in its log for {int(quiet / 60)} min" if quiet > NO_LINE else ""
