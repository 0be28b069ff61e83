"""A suite and the discovered rows become a list of jobs with their paths; no torch here.

The job list follows from the config alone, so Snakemake needs no checkpoint and `-n` shows all.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from methods import discover
from workflows import ROOT
from workflows.evaluation.tasklist import (
    OWN_TASKS,
    TaskEntry,
    check_names,
    fetched_task_names,
    own_task_names,
    read_entries,
)
from workflows.records.record import Protocol
from workflows.runtime.provenance import SCORING, code_files
from workflows.suite.config import (
    TASKS,
    WORLD,
    check_first,
    check_paths,
    check_retain,
    check_timing,
    is_local,
    protocols,
    with_defaults,
)
from workflows.suite.job import Job, data_parts, relative
from workflows.suite.table import TableLine, read_table

PAGES = {".py", ".html", ".css", ".js", ".mplstyle", ".csv", ".yaml"}
# Names the tasks that a probe is made of, beside it.
MADE_OF = ".tasks.json"


@dataclass(frozen=True)
class Suite:
    """A validated suite: its config with defaults, its task entries, its jobs."""

    config: Mapping[str, Any]
    entries: Sequence[TaskEntry]
    jobs: Sequence[Job]

    @property
    def name(self) -> str:
        """The suite's name."""
        return str(self.config["suite"])

    @property
    def as_json(self) -> str:
        """The complete config, one line."""
        return json.dumps(self.config, sort_keys=True)

    @property
    def tasks_json(self) -> str:
        """The task entries for the score step, one line."""
        return json.dumps(self.config["tasks"], sort_keys=True)

    def find(self, backbone: str, row: str, label: str, seed: str) -> Job:
        """The job of a path.

        Raises:
            KeyError: The suite has no such job.
        """
        return {job.key: job for job in self.jobs}[(backbone, row, label, seed)]

    def backbone_folder(self, name: str) -> str:
        """Where a backbone lies: its own path, or where the rules that prepare it put it."""
        path = str(self.config["backbones"][name]["path"])
        if path.startswith(WORLD):
            return f"results/trained/{path.removeprefix(WORLD)}"
        return path if is_local(path) else f"results/backbones/{name}"

    def start_folder(self, job: Job) -> str:
        """What the fit of a job starts from: another job's model, or the backbone."""
        return self.backbone_folder(job.backbone) if job.start is None else job.start.model

    def hub_source(self, name: str) -> str:
        """What the fetch rule downloads, as JSON."""
        return json.dumps(self.config["backbones"][name], sort_keys=True)

    def data_source(self, part: str) -> str:
        """What the data rule prepares, as JSON."""
        return json.dumps(self.config["data"][part], sort_keys=True)

    def data_files(self, job: Job) -> dict[str, str]:
        """Part -> file of the data that a fit is given; what it trains on as tokens."""
        files = {}
        for part in (part for part in data_parts(job.method) if part in self.config["data"]):
            source = self.config["data"][part]["source"]
            files[part] = source if source.endswith(".npy") else self._made(part)
        if "training" in files:
            files["training"] = f"results/{self.name}/tokens/{job.backbone}/training.tokens"
        return files

    def prepared_files(self) -> list[str]:
        """What the prepare stage leaves: data, tokens of the training texts, data of tasks."""
        parts = {part: source["source"] for part, source in self.config["data"].items()}
        made = [part for part, source in parts.items() if not source.endswith(".npy")]
        files = [self._made(part) for part in made]
        given = [self.data_files(job).get("training") for job in self.jobs]
        files += dict.fromkeys(file for file in given if file is not None)
        return files + self.task_data_files()

    def _made(self, part: str) -> str:
        """The file of a part of the data that the data rule prepares."""
        return f"results/{self.name}/data/{part}.jsonl"

    @property
    def probes_tasks(self) -> bool:
        """Whether the probe is made of the tasks' own training splits."""
        return bool(self.config["data"].get("probe", {}).get("source") == TASKS)

    @cached_property
    def probed(self) -> list[Any]:
        """Entries that the probe is made of: those of the suite when it was made.

        A task that is added later must not calibrate anew what was fitted before.
        """
        tasks = self.config["tasks"]
        entries = [raw for raw in tasks if isinstance(raw, str) or raw.get("probe", True)]
        probe = ROOT / self._made("probe")
        told = probe.with_suffix(MADE_OF)
        if not (probe.is_file() and told.is_file()):
            return entries
        known = json.loads(told.read_text(encoding="utf-8"))
        return [raw for raw in entries if (raw if isinstance(raw, str) else raw["task"]) in known]

    def noise_files(self) -> list[str]:
        """Records of the reference at other batch sizes, beside its own."""
        first: dict[str, str] = {}
        for job in self.jobs:
            if job.row == self.config["reference_row"]:
                first.setdefault(job.backbone, job.folder)
        sizes = self.config["noise_batch_sizes"]
        return [f"{folder}/noise/batch{size}.json" for folder in first.values() for size in sizes]

    def speed_files(self) -> list[str]:
        """Times of each row at each target, of its first seed."""
        first: dict[tuple[str, ...], str] = {}
        for job in self.jobs if "timing" in self.config else []:
            first.setdefault(job.key[:3], f"{job.folder}/speed.json")
        return list(first.values())

    @property
    def timed_texts(self) -> str:
        """The texts that rows are timed on: those that skip rates are calibrated on."""
        parts = (part for part in ("probe", "validation") if part in self.config["data"])
        return self._made(next(parts, "probe"))

    def timing_code(self) -> list[str]:
        """The files whose change makes rows be timed again."""
        step = ROOT / "workflows" / "steps" / "time.py"
        return relative([*code_files("workflows/timing"), step])

    def task_data_files(self) -> list[str]:
        """What the prepare stage leaves of every task whose data are fetched."""
        return [f"results/{self.name}/tasks/{task}.json" for task in self.fetched_tasks]

    def probed_files(self) -> list[str]:
        """Those of the tasks that a probe is made of."""
        probed = [entry.task for entry in read_entries(self.probed)]
        return [f"results/{self.name}/tasks/{t}.json" for t in self.fetched_tasks if t in probed]

    @cached_property
    def fetched_tasks(self) -> dict[str, Any]:
        """Entries by task; texts, local files and what tasks here draw themselves are none."""
        folders = [ROOT / self.config["task_folder"]] if "task_folder" in self.config else []
        own = own_task_names([OWN_TASKS, *folders]) - fetched_task_names([OWN_TASKS, *folders])
        return {
            entry.task: raw
            for entry, raw in zip(self.entries, self.config["tasks"], strict=True)
            if not entry.is_perplexity and entry.task not in own and not entry.is_local
        }

    @property
    def processes(self) -> int:
        """Processes that share the updates of a fit: one per GPU that the suite gives a job."""
        return max(1, int(self.config["resources"]["gpu"]))

    def rows(self, group: str) -> list[str]:
        """Rows of a group of fits: ``"first"`` and ``"trained"`` train, ``"untrained"`` do not."""
        trained = {job.row: job.method.trained for job in self.jobs}
        first = [row for row in self.config["first"] if trained.get(row)]
        later = [row for row, trains in trained.items() if trains and row not in first]
        still = [row for row, trains in trained.items() if not trains]
        return {"first": first, "trained": later, "untrained": still}[group]

    def keeps(self, group: str) -> bool:
        """Whether the models of a group stay once they are scored."""
        kept = self.config["keep_models"]
        return bool(kept) if kept != "trained" else group != "untrained"

    def evaluation_code(self) -> list[str]:
        """The files whose change makes every evaluation run again."""
        return relative([file for part in SCORING for file in code_files(part)])

    def report_code(self) -> list[str]:
        """The files whose change makes the report again."""
        stats = sorted((ROOT / "workflows" / "stats").glob("*.py"))
        pages = [f for f in (ROOT / "workflows" / "report").rglob("*") if f.suffix in PAGES]
        return relative([*stats, *sorted(pages), ROOT / "workflows" / "steps" / "report.py"])


def read_suite(config: Mapping[str, Any], root: Path = ROOT) -> Suite:
    """Check a suite and list its jobs.

    Args:
        config: As read from YAML.
        root: Checkout in which relative paths are looked up.

    Raises:
        ValueError: A key, value, row, task or path is wrong; one sentence names it.
    """
    complete = with_defaults(config)
    rows = discover()
    table = read_table(complete, rows, root)
    entries = read_entries(complete["tasks"])
    folder = complete.get("task_folder")
    if folder is not None and not (root / folder).is_dir():
        raise ValueError(f"task_folder '{folder}' is no folder")
    check_names(entries, [OWN_TASKS, *([root / folder] if folder else [])])
    check_retain(complete, entries, table)
    check_first(complete, {**rows, **table})
    check_timing(complete)
    check_paths(complete, root)
    jobs = [
        job
        for backbone in complete["backbones"]
        for line in table.values()
        for job in _jobs(complete, backbone, line, table)
    ]
    return Suite(complete, entries, jobs)


def check_again(suite: Suite, root: Path = ROOT) -> None:
    """Check a suite whose config is another than the one that was checked last, if any was.

    Raises:
        SystemExit: It is wrong; the step's sentence was printed.
    """
    checked = root / "results" / suite.name / "suite.json"
    if not checked.is_file():
        return
    try:
        same = json.loads(checked.read_text(encoding="utf-8")) == json.loads(suite.as_json)
    except ValueError:
        same = False
    words = ["--config", suite.as_json, "--out", str(checked)]
    if not same and subprocess.call([sys.executable, "-m", "workflows.steps.check", *words]):
        sys.exit(1)


def _jobs(
    config: Mapping[str, Any], backbone: str, line: TableLine, table: Mapping[str, TableLine]
) -> list[Job]:
    """The jobs of a line on a backbone, with those they start from or borrow from."""
    known = protocols(config)

    def make(line: TableLine, budget: float | None, seed: int, match: Protocol) -> Job:
        seed = seed if line.method.stochastic else line.seeds[0]
        start = None if line.start is None else make(table[line.start], budget, seed, match)
        lender = None if line.lender is None else make(table[line.lender], budget, seed, match)
        own = match if line.method.is_matched(budget) else None
        return Job(
            config["suite"], backbone, line.name, line.method, line.params, budget, seed, own,
            start, lender,
        )  # fmt: skip

    return [
        make(line, budget, seed, match)
        for budget in line.budgets
        for match in (known if line.method.is_matched(budget) else known[:1])
        for seed in seeds_at(config, budget, line.seeds)
    ]


def seeds_at(
    config: Mapping[str, Any], budget: float | None, seeds: Sequence[int]
) -> Sequence[int]:
    """Those of a line's seeds that run at a budget: all, or the first few by ``budget_seeds``."""
    few = {float(key): number for key, number in config["budget_seeds"].items()}
    return seeds if budget is None else seeds[: few.get(budget)]
