"""What a running suite says of a job: its run in words, and how long such jobs took before.

A rule's `message:` formats both objects with a path when the job starts.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from statistics import median
from time import monotonic
from typing import Any

from workflows.suite.jobs import Suite

FIT, SCORE, TIME = "fit", "score", "time"
# Seconds after which benchmark files are read again.
FRESH = 10


class RunNames:
    """Formatted by BACKBONE/ROW/BUDGET/SEED: "hero, 25 %, seed 42"."""

    def __init__(self, suite: Suite) -> None:
        self.suite, self.several = suite, len(suite.config["backbones"]) > 1

    def __format__(self, path: str) -> str:
        job = self.suite.find(*path.split("/"))
        words = [f"{job.row} on {job.backbone}" if self.several else job.row]
        if job.budget is not None:
            protocol = " on prompts and on answer tokens" if job.match == "split" else ""
            words.append(f"{100 * job.budget:g} %{protocol}")
        return ", ".join([*words, f"seed {job.seed}"])


class PastTimes:
    """How long jobs take, estimated from jobs that ended.

    The estimate is the median over the most similar jobs: the same job in an earlier run, else the
    same step of its row, else the same step of all rows that train (or of all that do not).

    Args:
        suite: Its benchmark files, beside the logs, hold the seconds.
    """

    def __init__(self, suite: Suite) -> None:
        self.logs = Path("results") / suite.name / "logs"
        self.trained = {job.row: job.method.trained for job in suite.jobs}
        self.seconds = self._past_seconds()

    def expected(self, file: Path) -> float | None:
        """Seconds of the job with a log or benchmark file; None if no job like it ended."""
        keys = (key for key in self._keys(file) if key in self.seconds)
        return next((median(self.seconds[key]) for key in keys), None)

    def _past_seconds(self) -> dict[tuple[Any, ...], list[float]]:
        """Seconds of the jobs that ended, by each of their keys."""
        seconds_by_key: dict[tuple[Any, ...], list[float]] = {}
        for file in self.logs.rglob("*.tsv"):
            # Snakemake may delete a file while it is read; a failed job leaves an empty one.
            with suppress(OSError, StopIteration, KeyError, ValueError), file.open() as stream:
                seconds = float(next(csv.DictReader(stream, delimiter="\t"))["s"])
                for key in self._keys(file):
                    seconds_by_key.setdefault(key, []).append(seconds)
        return seconds_by_key

    def _keys(self, file: Path) -> Iterator[tuple[Any, ...]]:
        """Keys to look a job up by, the most similar first; none if the file is not of a run."""
        if not file.is_relative_to(self.logs):
            return
        places = file.relative_to(self.logs).with_suffix("").parts
        if len(places) < 5 or places[1] not in self.trained:
            return
        backbone, row, name = places[0], places[1], places[-1]
        step = next((step for step in (FIT, TIME) if name.startswith(step)), SCORE)
        yield places
        yield backbone, row, step
        yield backbone, self.trained[row], step


class TimeLeft:
    """Formatted by the log of a job: how long it takes and what is left, by earlier jobs.

    Args:
        suite: Whose jobs they are.
        open_jobs: Gives Snakemake's jobs that have not ended; those with a benchmark file count.
        at_once: Jobs side by side.
    """

    def __init__(self, suite: Suite, open_jobs: Callable[[], Iterable[Any]], at_once: int) -> None:
        self.suite, self.open_jobs, self.at_once = suite, open_jobs, at_once
        self.past: PastTimes | None = None
        self.read_at = 0.0

    def __format__(self, log: str) -> str:
        if self.past is None or monotonic() > self.read_at + FRESH:
            self.past, self.read_at = PastTimes(self.suite), monotonic()
        past = self.past
        seconds = past.expected(Path(log))
        if seconds is None:
            return "no job like it has run before"
        files = [Path(str(job.benchmark)) for job in self.open_jobs() if job.benchmark]
        rest = sum_in_words([past.expected(file) for file in files], self.at_once)
        return f"takes {in_words(seconds)}; left: {rest}"


def sum_in_words(seconds: Iterable[float | None], at_once: int) -> str:
    """What jobs take together, ``at_once`` side by side; unknown times (None) are counted."""
    all_seconds = list(seconds)
    numbers = [number for number in all_seconds if number is not None]
    unknown = len(all_seconds) - len(numbers)
    ending = f" and {unknown} jobs unlike any before" if unknown else ""
    return f"{in_words(sum(numbers) / at_once)}{ending}"


def at_once(resources: Mapping[str, Any], suite: Suite) -> int:
    """Jobs side by side.

    Args:
        resources: Snakemake's own, by name: cores, jobs of a cluster and GPUs of this run.
        suite: Says how many of them a job takes.
    """
    limits = {
        name: resources[name].value for name in ("_nodes", "_cores", "gpu") if name in resources
    }
    if limits.get("_nodes"):
        return int(limits["_nodes"])
    gpus, gpus_per_job = limits.get("gpu"), suite.config["resources"]["gpu"]
    bounds = [(limits.get("_cores") or 1) // suite.processes]
    bounds += [gpus // gpus_per_job] if gpus and gpus_per_job else []
    return max(1, min(bounds))


def in_words(seconds: float) -> str:
    """As in "about 40 s", "about 12 min", "about 3 h 20 min"."""
    if seconds < 90:
        return f"about {max(1, round(seconds))} s"
    minutes = round(seconds / 60)
    if minutes < 90:
        return f"about {minutes} min"
    return f"about {minutes // 60} h {minutes % 60} min"
