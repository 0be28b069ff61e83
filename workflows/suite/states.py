"""Where the jobs of a suite stand, by what lies in its results folder."""

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

# A job that runs has stalled when it gave no sign of life for so many seconds, ten beats, or its
# log no line, where bars write one every half minute.
NO_BEAT, NO_LINE = 300, 3600


@dataclass(frozen=True)
class Step:
    """A job of Snakemake.

    Args:
        name: In words.
        log: Where it says what it does.
        made: What it writes, then what comes of that: a model may go once it is scored.
    """

    name: str
    log: Path
    made: tuple[Path, ...]


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
    """The jobs of a suite, those that prepare first; paths as the rules have them."""
    root, logs = Path("results") / suite.name, Path("results") / suite.name / "logs"
    for name in suite.config["backbones"]:
        folder = Path(suite.backbone_folder(name))
        rule = {"backbones": "fetch_backbone", "trained": "train_backbone"}.get(folder.parent.name)
        if rule and folder.is_relative_to("results"):
            log = Path("results/logs", rule, f"{folder.name}.log")
            yield Step(f"backbone {name}", log, (folder,))
    yield Step("check of the suite", logs / "check.log", (root / "suite.json",))
    for made in map(Path, suite.prepared_files()):
        place = made.relative_to(root)
        log = logs / (place.parent if place.parts[0] == "tokens" else place.with_suffix(""))
        yield Step(f"{place} prepared", log.with_name(f"{log.name}.log"), (made,))
    yield from _run_steps(suite, root, logs)
    page = Path("reports") / suite.name / "index.html"
    yield Step("report", logs / "report.log", (page,))


def _run_steps(suite: Suite, root: Path, logs: Path) -> Iterator[Step]:
    """Fits and scores of all runs, then what is measured again and what is timed."""
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
    told = read_status(step.log)
    if told is not None and told["status"] == "running" and _lives(told):
        reason, seconds = _silence(step, told), max(0.0, time.time() - told["began"])
        return State(step, "stalled" if reason else "running", reason, seconds)
    if any(made.exists() for made in step.made):
        return State(step, "done")
    if told is None:
        return State(step, "waiting")
    gone = f"process {told['pid']} is gone without a word: killed, or out of memory"
    return State(step, "failed", told.get("reason", gone))


def _lives(told: dict[str, Any]) -> bool:
    """Whether the process is there; of another machine nothing but its beat is known."""
    if told["host"] != platform.node():
        return True
    try:
        os.kill(told["pid"], 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _silence(step: Step, told: dict[str, Any]) -> str:
    """Why a step that should run has stalled; empty if it has not."""
    now = time.time()
    if now - told["beat"] > NO_BEAT:
        since = int((now - told["beat"]) / 60)
        return f"no sign of process {told['pid']} on {told['host']} for {since} min"
    try:
        quiet = now - max(step.log.stat().st_mtime, told["began"])
    except OSError:
        return ""
    return f"no line in its log for {int(quiet / 60)} min" if quiet > NO_LINE else ""
