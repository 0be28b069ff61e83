"""A suite and the discovered rows become a list of jobs with their paths; no torch here.

The job list depends on the config alone: Snakemake needs no checkpoint rule, `-n` shows every job.
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
from workflows.evaluation.tasklist import TaskEntry, read_entries
from workflows.evaluation.tasknames import OWN_TASKS, check_names, hub_task_names, own_task_names
from workflows.records.record import Protocol
from workflows.runtime.provenance import SCORING, code_files
from workflows.suite.checks import (
    FROM_BACKBONE,
    FROM_TASKS,
    WORLD,
    check_fidelity,
    check_first,
    check_focus,
    check_paths,
    check_probe,
    check_retain,
    check_timing,
    is_local,
    origin,
)
from workflows.suite.config import protocols, with_defaults
from workflows.suite.job import FIDELITY, Job, data_parts, relative
from workflows.suite.table import SuiteRow, read_table, seeds_at

PAGES = {".py", ".html", ".css", ".js", ".mplstyle", ".csv", ".yaml"}
# File beside a probe that lists the tasks it was made of.
TASK_NAMES = ".tasks.json"


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
    def device(self) -> str:
        """``gpu``; without a GPU in the suite ``cpu``, for the same bits on a machine with one."""
        return "gpu" if self.config["resources"]["gpu"] else "cpu"

    @property
    def tasks_json(self) -> str:
        """The task entries for the score step, one line."""
        return json.dumps(self.config["tasks"], sort_keys=True)

    @cached_property
    def _by_key(self) -> dict[tuple[str, ...], Job]:
        return {job.key: job for job in self.jobs}

    def find(self, backbone: str, row: str, label: str, seed: str) -> Job:
        """The job of a path; a KeyError if the suite has none."""
        return self._by_key[(backbone, row, label, seed)]

    def backbone_folder(self, name: str) -> str:
        """The folder of a backbone: its own path, or the one that a prepare rule writes."""
        path = str(self.config["backbones"][name]["path"])
        if path.startswith(WORLD):
            return f"results/trained/{path.removeprefix(WORLD)}"
        return path if is_local(path) else f"results/backbones/{name}"

    def start_folder(self, job: Job) -> str:
        """What the fit of a job starts from: another job's model, or the backbone."""
        return self.backbone_folder(job.backbone) if job.start is None else job.start.model

    def hub_source(self, name: str) -> str:
        """What the fetch rule downloads, as JSON, without how it is scored."""
        return json.dumps(self.origins[name], sort_keys=True)

    @cached_property
    def origins(self) -> dict[str, dict[str, Any]]:
        """What is fetched for each backbone; not a revision that came before the suite named it."""
        from methods.core.facts import read_fetched

        origins = {name: origin(spec) for name, spec in self.config["backbones"].items()}
        for name, asked in origins.items():
            note = read_fetched(Path(self.backbone_folder(name)))
            unnamed = "revision" not in note.get("source", asked)
            if unnamed and asked.get("revision", "") == note.get("commit"):
                del asked["revision"]
        return origins

    def data_source(self, part: str) -> str:
        """What the data rule prepares, as JSON."""
        return json.dumps(self.config["data"][part], sort_keys=True)

    def data_files(self, job: Job) -> dict[str, str]:
        """Part -> file of the data that a fit reads; training texts as tokens."""
        files = {}
        for part in (part for part in data_parts(job.method) if part in self.config["data"]):
            source = self.config["data"][part]["source"]
            files[part] = source if source.endswith(".npy") else self._data_file(part)
        if "training" in files:
            files["training"] = f"results/{self.name}/tokens/{job.backbone}/training.tokens"
        return files

    def prepared_files(self) -> list[str]:
        """What the prepare stage writes: data, tokens of the training texts, data of tasks."""
        sources = {part: data["source"] for part, data in self.config["data"].items()}
        files = [self._data_file(p) for p, name in sources.items() if not name.endswith(".npy")]
        tokens = [self.data_files(job).get("training") for job in self.jobs]
        files += dict.fromkeys(file for file in tokens if file is not None)
        return files + self.task_data_files()

    def _data_file(self, part: str) -> str:
        """The file of a part of the data that the data rule prepares."""
        return f"results/{self.name}/data/{part}.jsonl"

    @property
    def probes_tasks(self) -> bool:
        """Whether the probe is made of the tasks' own training splits."""
        return bool(self.config["data"].get("probe", {}).get("source") == FROM_TASKS)

    @cached_property
    def probe_tasks(self) -> list[Any]:
        """Entries of which the probe was made: a later task or another order fits nothing again."""
        tasks = self.config["tasks"]
        entries = [raw for raw in tasks if isinstance(raw, str) or raw.get("probe", True)]
        probe = ROOT / self._data_file("probe")
        names_file = probe.with_suffix(TASK_NAMES)
        if not (probe.is_file() and names_file.is_file()):
            return entries
        by_name = {raw if isinstance(raw, str) else raw["task"]: raw for raw in entries}
        names = json.loads(names_file.read_text(encoding="utf-8"))
        return [by_name[name] for name in names if name in by_name]

    @property
    def own_parts(self) -> list[str]:
        """Parts of the data that the suite's one backbone writes itself."""
        return [part for part, raw in self.config["data"].items() if raw["source"] == FROM_BACKBONE]

    def noise_files(self) -> list[str]:
        """Records of the reference, at its lowest budget, at other batch sizes; beside its own."""
        first: dict[str, str] = {}
        for job in sorted(self.jobs, key=lambda job: job.budget or 0.0):
            if job.row == self.config["reference_row"]:
                first.setdefault(job.backbone, job.folder)
        own = self.config["batch_size"]
        sizes = [size for size in self.config["noise_batch_sizes"] if size != own]
        return [f"{folder}/noise/batch{size}.json" for folder in first.values() for size in sizes]

    def speed_files(self) -> list[str]:
        """Files with the times of each row at each target, for its first seed."""
        first: dict[tuple[str, ...], str] = {}
        for job in self.jobs if "timing" in self.config else []:
            first.setdefault(job.key[:3], f"{job.folder}/speed.json")
        return list(first.values())

    def fidelity_files(self) -> list[str]:
        """The texts on which rows are compared with the dense model; none if there is no part."""
        return [self._data_file(FIDELITY)] if FIDELITY in self.config["data"] else []

    @property
    def timing_texts(self) -> str:
        """The texts that rows are timed on: those that skip rates are calibrated on."""
        parts = (part for part in ("probe", "validation") if part in self.config["data"])
        return self._data_file(next(parts, "probe"))

    def timing_code(self) -> list[str]:
        """The files whose change makes the timings run again."""
        return relative([*code_files("workflows/timing"), ROOT / "workflows" / "steps" / "time.py"])

    def text_code(self) -> list[str]:
        """The files whose change makes texts, probe and tokens again."""
        core = (f"methods/core/{name}.py" for name in ("chat", "data", "rows", "seeds", "tokens"))
        steps = (f"workflows/steps/{name}.py" for name in ("data", "probe", "texts", "tokens"))
        own = (f"workflows/evaluation/{name}.py" for name in ("chat", "ends", "own_texts", "probe"))
        parts = [*core, *steps, *own, "workflows/demo"]
        return relative([file for part in parts for file in code_files(part)])

    def world_code(self) -> list[str]:
        """The files whose change trains a world's backbone again."""
        return relative(code_files("workflows/demo"))

    def task_data_files(self) -> list[str]:
        """What the prepare stage writes for every task of the hub."""
        return [f"results/{self.name}/tasks/{task}.json" for task in self.hub_tasks]

    def probe_task_files(self) -> list[str]:
        """The same for the tasks that a probe is made of."""
        names = [entry.task for entry in read_entries(self.probe_tasks)]
        return [f"results/{self.name}/tasks/{t}.json" for t in self.hub_tasks if t in names]

    @cached_property
    def hub_tasks(self) -> dict[str, Any]:
        """Task -> entry, for tasks whose data come from the hub: not texts, not local files, not
        tasks of this project that draw their items themselves.
        """
        folders = [ROOT / self.config["task_folder"]] if "task_folder" in self.config else []
        places = [OWN_TASKS, *folders]
        own_tasks = own_task_names(places) - hub_task_names(places)
        return {
            entry.task: raw
            for entry, raw in zip(self.entries, self.config["tasks"], strict=True)
            if not entry.is_perplexity and entry.task not in own_tasks and not entry.is_local
        }

    @property
    def processes(self) -> int:
        """Processes that share the updates of a fit: one per GPU of a job."""
        return max(1, int(self.config["resources"]["gpu"]))

    @property
    def fit_mem_mb(self) -> int:
        """Memory of a trained fit: each of its processes reads the backbone."""
        return self.processes * int(self.config["resources"]["mem_mb"])

    @cached_property
    def groups(self) -> dict[str, str]:
        """Row -> group of its fits. ``"first"`` and ``"trained"`` train; ``"untrained"`` and
        ``"started"``, from which trained rows start, do not.
        """
        trained = {job.row: job.method.trained for job in self.jobs}
        started = {job.start.row for job in self.jobs if job.start is not None}
        still = {row: "started" if row in started else "untrained" for row in trained}
        groups = {row: "trained" if trains else still[row] for row, trains in trained.items()}
        return groups | {row: "first" for row in self.config["first"] if trained.get(row)}

    def rows(self, group: str) -> list[str]:
        """Rows of a group of fits."""
        return [row for row, own in self.groups.items() if own == group]

    def keeps(self, group: str) -> bool:
        """Whether the models of a group stay once they are scored; none stays without its start."""
        choice = self.config["keep_models"]
        return bool(choice) if choice != "trained" else group != "untrained"

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
    check_focus(complete, table)
    trained = {name: row.trained for name, row in rows.items()}
    check_first(complete, trained | {name: line.method.trained for name, line in table.items()})
    check_timing(complete)
    check_probe(complete, entries)
    check_fidelity(complete)
    check_paths(complete, root)
    jobs = [
        job
        for backbone in complete["backbones"]
        for line in table.values()
        for job in _jobs(complete, backbone, line, table)
    ]
    folders: dict[str, Job] = {}
    for job in jobs:
        other = folders.setdefault(job.folder, job)
        if other.budget != job.budget:
            raise ValueError(
                f"suite config, budgets: {other.budget} and {job.budget} share the folder "
                f"{job.folder}; name budgets that differ in their first six digits"
            )
    return Suite(complete, entries, jobs)


def check_again(suite: Suite, root: Path = ROOT) -> None:
    """Check a suite again if its config changed since the last check.

    Raises:
        SystemExit: The config is wrong; the step has printed why.
    """
    checked = root / "results" / suite.name / "suite.json"
    if not checked.is_file():
        return
    try:
        unchanged = json.loads(checked.read_text(encoding="utf-8")) == json.loads(suite.as_json)
    except ValueError:
        unchanged = False
    words = ["--config", suite.as_json, "--out", str(checked)]
    if not unchanged and subprocess.call([sys.executable, "-m", "workflows.steps.check", *words]):
        sys.exit(1)


def _jobs(
    config: Mapping[str, Any], backbone: str, line: SuiteRow, table: Mapping[str, SuiteRow]
) -> list[Job]:
    """The jobs of a line on a backbone, with those they start from or borrow from."""
    all_protocols = protocols(config)

    def make(line: SuiteRow, budget: float | None, seed: int, match: Protocol) -> Job:
        seed = seed if line.method.stochastic else line.seeds[0]
        start = None if line.start is None else make(table[line.start], budget, seed, match)
        lender = None if line.lender is None else make(table[line.lender], budget, seed, match)
        job_match = match if line.method.is_matched(budget) else None
        params = line.params(budget, job_match)
        return Job(
            config["suite"], backbone, line.name, line.method, params, budget, seed, job_match,
            start, lender,
        )  # fmt: skip

    return [
        make(line, budget, seed, match)
        for budget in line.budgets
        for match in (all_protocols if line.method.is_matched(budget) else all_protocols[:1])
        for seed in seeds_at(config, budget, line.seeds)
    ]
