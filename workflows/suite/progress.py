"""What a running suite says: which run a job belongs to, and how long jobs like it took before.

Both are objects that a rule's `message:` formats by a path, when the job starts.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Any

from workflows.suite.jobs import Suite

FIT, SCORE, TIME = "fit", "score", "time"


class RunNames:
    """Formatted by BACKBONE/ROW/BUDGET/SEED: "hero, 25 %, seed 42"."""

    def __init__(self, suite: Suite) -> None:
        self.suite, self.several = suite, len(suite.config["backbones"]) > 1

    def __format__(self, path: str) -> str:
        job = self.suite.find(*path.split("/"))
        words = [f"{job.row} on {job.backbone}" if self.several else job.row]
        if job.budget is not None:
            each = " on prompts and on answer tokens" if job.match == "split" else ""
            words.append(f"{100 * job.budget:g} %{each}")
        return ", ".join([*words, f"seed {job.seed}"])


class Costs:
    """How long jobs take, by those that ended.

    A job takes the median of what lies nearest: itself in an earlier run, the same step of its row,
    the same step of rows that train or do not, as it does.

    Args:
        suite: Whose benchmark files, beside the logs, hold the seconds.
    """

    def __init__(self, suite: Suite) -> None:
        self.logs = Path("results") / suite.name / "logs"
        self.trained = {job.row: job.method.trained for job in suite.jobs}
        self.known = self._measured()

    def expected(self, file: Path) -> float | None:
        """Seconds of the job with a log or benchmark file; None if no job like it ended."""
        keys = (key for key in self._keys(file) if key in self.known)
        return next((median(self.known[key]) for key in keys), None)

    def _measured(self) -> dict[tuple[Any, ...], list[float]]:
        """Seconds of the jobs that ended, by each of their keys."""
        found: dict[tuple[Any, ...], list[float]] = {}
        for file in self.logs.rglob("*.tsv"):
            # A file may be going away, or be empty after a job that failed.
            with suppress(OSError, StopIteration, KeyError, ValueError), file.open() as stream:
                seconds = float(next(csv.DictReader(stream, delimiter="\t"))["s"])
                for key in self._keys(file):
                    found.setdefault(key, []).append(seconds)
        return found

    def _keys(self, file: Path) -> Iterator[tuple[Any, ...]]:
        """What jobs are looked up by, the nearest first; none where the file is no run's."""
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
        left: The jobs of Snakemake that have not ended; those with a benchmark file count.
        at_once: Jobs side by side.
    """

    def __init__(self, suite: Suite, left: Callable[[], Iterable[Any]], at_once: int) -> None:
        self.suite, self.left, self.at_once = suite, left, at_once

    def __format__(self, log: str) -> str:
        costs = Costs(self.suite)
        own = costs.expected(Path(log))
        if own is None:
            return "no job like it has run before"
        files = [Path(str(job.benchmark)) for job in self.left() if job.benchmark]
        left = sum_in_words([costs.expected(file) for file in files], self.at_once)
        return f"takes {in_words(own)}; left: {left}"


def sum_in_words(seconds: Iterable[float | None], at_once: int) -> str:
    """What jobs take together, so many side by side; unknown ones (None) are counted."""
    each = list(seconds)
    found = [one for one in each if one is not None]
    more = len(each) - len(found)
    told = f" and {more} jobs unlike any before" if more else ""
    return f"{in_words(sum(found) / at_once)}{told}"


def at_once(resources: Mapping[str, Any], suite: Suite) -> int:
    """Jobs side by side.

    Args:
        resources: Snakemake's own, by name: what a run has of cores, jobs of a cluster and GPUs.
        suite: Whose jobs take so many of them.
    """
    held = {
        name: resources[name].value for name in ("_nodes", "_cores", "gpu") if name in resources
    }
    if held.get("_nodes"):
        return int(held["_nodes"])
    gpus, wanted = held.get("gpu"), suite.config["resources"]["gpu"]
    bounds = [(held.get("_cores") or 1) // suite.processes]
    bounds += [gpus // wanted] if gpus and wanted else []
    return max(1, min(bounds))


def in_words(seconds: float) -> str:
    """As in "about 40 s", "about 12 min", "about 3 h 20 min"."""
    if seconds < 90:
        return f"about {max(1, round(seconds))} s"
    minutes = round(seconds / 60)
    if minutes < 90:
        return f"about {minutes} min"
    return f"about {minutes // 60} h {minutes % 60} min"
