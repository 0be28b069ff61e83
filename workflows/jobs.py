"""A suite and the discovered rows become a list of jobs with their paths; no torch here.

The job list follows from the config alone, so Snakemake needs no checkpoint and `-n` shows all.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonschema
import yaml

from methods import Row, discover
from workflows.evaluation.tasklist import OWN_TASKS, TaskEntry, check_names, read_entries

ROOT = Path(__file__).resolve().parents[1]
SCHEMA = ROOT / "workflows" / "schemas" / "config.schema.yaml"
CODE = {".py", ".yaml"}
DATA_PARTS = ("training", "validation", "probe", "calibration")


@dataclass(frozen=True)
class Job:
    """One run: a row on a backbone at a budget under a seed.

    ``row`` is the name in the table, ``method`` the discovered row behind it; ``params`` stand
    over that row's own. ``budget`` is None where none applies or params are pinned.
    """

    suite: str
    backbone: str
    row: str
    method: Row
    params: Mapping[str, Any]
    budget: float | None
    seed: int

    @property
    def label(self) -> str:
        """The folder of the budget: b25, b12.5, b0 without a budget, bfree with pinned params."""
        if not self.method.budgeted:
            return "b0"
        return "bfree" if self.budget is None else f"b{self.budget * 100:g}"

    @property
    def key(self) -> tuple[str, str, str, str]:
        """What tells jobs of a suite apart, as in their paths."""
        return self.backbone, self.row, self.label, f"s{self.seed}"

    @property
    def folder(self) -> str:
        """Where the run lives, relative to the checkout."""
        return "/".join(("results", self.suite, *self.key))

    def code(self) -> list[str]:
        """The files whose change makes the fit run again: the method's and the core."""
        own = [self.method.path]
        if self.method.path.is_dir():
            own = sorted(self.method.path.rglob("*.py"))
        core = sorted((ROOT / "methods" / "core").glob("*.py"))
        return _relative([*own, ROOT / "methods" / "base.py", *core])


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
        """The task entries for the evaluate step, one line."""
        return json.dumps(self.config["tasks"], sort_keys=True)

    def find(self, backbone: str, row: str, label: str, seed: str) -> Job:
        """The job of a path.

        Raises:
            KeyError: The suite has no such job.
        """
        return {job.key: job for job in self.jobs}[(backbone, row, label, seed)]

    def backbone_folder(self, name: str) -> str:
        """Where a backbone lies: its own path, or where the fetch rule puts it."""
        path = str(self.config["backbones"][name]["path"])
        return path if is_local(path) else f"results/backbones/{name}"

    def backbone_input(self, name: str) -> str:
        """What rules wait for: the config of a local backbone, the folder that is fetched."""
        folder = self.backbone_folder(name)
        local = is_local(str(self.config["backbones"][name]["path"]))
        return f"{folder}/config.json" if local else folder

    def hub_source(self, name: str) -> str:
        """What the fetch rule downloads, as JSON."""
        return json.dumps(self.config["backbones"][name], sort_keys=True)

    def data_source(self, part: str) -> str:
        """What the data rule prepares, as JSON."""
        return json.dumps(self.config["data"][part], sort_keys=True)

    def data_files(self, method: Row) -> dict[str, str]:
        """Part -> file of the data a method may need: only trained ones read training data."""
        parts = [part for part in DATA_PARTS if part in self.config["data"]]
        if not method.budgeted and not method.trained:
            return {}
        if not method.trained:
            parts = [part for part in parts if part == "calibration"]
        files = {}
        for part in parts:
            source = self.config["data"][part]["source"]
            ready = source.endswith(".npy")
            files[part] = source if ready else f"results/{self.name}/data/{part}.jsonl"
        return files

    def compress_arguments(self, job: Job) -> str:
        """Arguments of the compress step that change numbers."""
        backbone = self.config["backbones"][job.backbone]
        words = ["--method", job.method.name, "--params", json.dumps(job.params, sort_keys=True)]
        words += ["--seed", str(job.seed), "--dtype", backbone["dtype"]]
        words += ["--max-length", str(self.config["max_length"])]
        if job.budget is not None:
            words += ["--budget", str(job.budget)]
        if "revision" in backbone:
            words += ["--revision", backbone["revision"]]
        return shlex.join(words)

    def evaluate_arguments(self, job: Job, batch_size: int | None = None) -> str:
        """Arguments of the evaluate step beside model and tasks; the suite's own batch size."""
        words = ["--suite", self.name, "--backbone-name", job.backbone, "--row", job.row]
        words += ["--batch-size", str(batch_size or self.config["batch_size"])]
        length = self.config["backbones"][job.backbone].get("max_length")
        for flag, value in (("--max-length", length), ("--limit", self.config.get("limit"))):
            words += [flag, str(value)] if value is not None else []
        if "task_folder" in self.config:
            words += ["--task-dir", self.config["task_folder"]]
        return shlex.join(words)

    def noise_files(self) -> list[str]:
        """Records of the reference at other batch sizes, beside its own."""
        first: dict[str, str] = {}
        for job in self.jobs:
            if job.row == self.config["reference_row"]:
                first.setdefault(job.backbone, job.folder)
        sizes = self.config["noise_batch_sizes"]
        return [f"{folder}/noise/batch{size}.json" for folder in first.values() for size in sizes]

    def evaluation_code(self) -> list[str]:
        """The files whose change makes every evaluation run again."""
        folders = [ROOT / "workflows" / "evaluation", ROOT / "workflows" / "demo"]
        files = [f for folder in folders for f in folder.rglob("*") if f.suffix in CODE]
        return _relative(sorted(files))

    def report_code(self) -> list[str]:
        """The files whose change makes the report again."""
        stats = sorted((ROOT / "workflows" / "stats").glob("*.py"))
        pages = sorted((ROOT / "workflows" / "report").glob("*.html"))
        steps = sorted((ROOT / "workflows" / "steps").glob("report*.py"))
        return _relative([*stats, *pages, *steps])

    def text_files(self) -> list[str]:
        """Texts of the perplexity entries."""
        return [str(entry.file) for entry in self.entries if entry.is_perplexity]


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
    table = _table(complete, rows, root)
    entries = read_entries(complete["tasks"])
    folder = complete.get("task_folder")
    if folder is not None and not (root / folder).is_dir():
        raise ValueError(f"task_folder '{folder}' is no folder")
    check_names(entries, [OWN_TASKS, *([root / folder] if folder else [])])
    _check_retain(complete, entries, table)
    _check_paths(complete, root)
    jobs = [
        Job(complete["suite"], backbone, name, row, params, budget, seed)
        for backbone in complete["backbones"]
        for name, (row, params, budgets) in table.items()
        for budget in budgets
        for seed in (complete["seeds"] if row.stochastic else complete["seeds"][:1])
    ]
    return Suite(complete, entries, jobs)


def with_defaults(config: Mapping[str, Any]) -> dict[str, Any]:
    """The config with the schema's defaults filled in.

    Raises:
        ValueError: The config breaks the schema; the message names the key and what is allowed.
    """
    schema = yaml.safe_load(SCHEMA.read_text(encoding="utf-8"))
    complete = json.loads(json.dumps(config))
    _fill(complete, schema, schema)
    errors = jsonschema.Draft202012Validator(schema).iter_errors(complete)
    error = next(iter(sorted(errors, key=lambda e: list(map(str, e.absolute_path)))), None)
    if error is not None:
        key = ".".join(map(str, error.absolute_path)) or "top level"
        allowed = ""
        if error.validator == "additionalProperties":
            allowed = f" (allowed: {', '.join(error.schema['properties'])})"
        raise ValueError(f"suite config, {key}: {error.message}{allowed}")
    for budget in complete["budgets"]:
        _check_budget("budgets", budget)
    return complete


def _fill(value: Any, schema: Mapping[str, Any], top: Mapping[str, Any]) -> None:
    """Insert defaults, in place, wherever the schema states one."""
    if "$ref" in schema:
        schema = top["$defs"][schema["$ref"].rsplit("/", 1)[1]]
    if not isinstance(value, dict):
        return
    properties = schema.get("properties", {})
    for key, sub in properties.items():
        if "default" in sub:
            value.setdefault(key, json.loads(json.dumps(sub["default"])))
    other = schema.get("additionalProperties")
    for key, item in value.items():
        sub = properties.get(key, other if isinstance(other, dict) else None)
        if sub is not None:
            _fill(item, sub, top)


def _check_budget(key: str, budget: float | None) -> None:
    if budget is not None and not 0 < budget < 1:
        raise ValueError(f"suite config, {key}: {budget} must lie between 0 and 1, such as 0.25")


def _table(
    config: Mapping[str, Any], rows: Mapping[str, Row], root: Path
) -> dict[str, tuple[Row, dict[str, Any], list[float | None]]]:
    """Name -> (method, params over the row's own, budgets) of every line of the suite's table."""
    names = list(rows) if config["rows"] == "all" else config["rows"]
    base = _base_params(config, rows, root)
    table: dict[str, tuple[Row, dict[str, Any], list[float | None]]] = {}
    for name in names:
        row = _find(rows, name, "rows")
        table[name] = (row, base[name], list(config["budgets"]) if row.budgeted else [None])
    for name, spec in config["derive"].items():
        row = _find(rows, spec["from"], f"derive.{name}.from")
        if name in rows:
            raise ValueError(f"suite config, derive.{name}: a row has this name already")
        budgets = spec.get("budgets", config["budgets"]) if row.budgeted else [None]
        for budget in budgets:
            _check_budget(f"derive.{name}.budgets", budget)
        table[name] = (row, {**base[row.name], **spec["params"]}, list(budgets))
    return table


def _base_params(
    config: Mapping[str, Any], rows: Mapping[str, Row], root: Path
) -> dict[str, dict[str, Any]]:
    """Row -> params a suite gives it: shared training params, then tuned ones, then its own."""
    tuned: Mapping[str, Any] = {}
    if "tuned" in config:
        file = root / config["tuned"]
        if not file.is_file():
            raise ValueError(f"suite config, tuned: file {config['tuned']} does not exist")
        tuned = yaml.safe_load(file.read_text(encoding="utf-8"))["params"]
    for name in config["params"]:
        _find(rows, name, "params")
    return {
        name: {
            **(config["training"] if row.trained else {}),
            **tuned.get(name, {}),
            **config["params"].get(name, {}),
        }
        for name, row in rows.items()
    }


def _find(rows: Mapping[str, Row], name: str, key: str) -> Row:
    if name not in rows:
        raise ValueError(f"suite config, {key}: unknown row '{name}' (rows: {', '.join(rows)})")
    return rows[name]


def _check_retain(
    config: dict[str, Any], entries: Sequence[TaskEntry], table: Mapping[str, Any]
) -> None:
    """Tasks of the Retain and the row it refers to must be in the suite; perplexity never is."""
    scored = [entry.task for entry in entries if not entry.is_perplexity]
    config.setdefault("retain_tasks", scored)
    for task in config["retain_tasks"]:
        if task not in scored:
            raise ValueError(
                f"suite config, retain_tasks: '{task}' is not scored (tasks: {', '.join(scored)})"
            )
    if config["reference_row"] not in table:
        raise ValueError(
            f"suite config, reference_row: '{config['reference_row']}' is not among the rows"
        )


def _check_paths(config: Mapping[str, Any], root: Path) -> None:
    """Local backbones and data files must exist; names of the hub are left to the prepare rules."""
    for place in (p for top in ("results", "reports") for p in (top, f"{top}/{config['suite']}")):
        if (root / place).exists() and not (root / place).is_dir():
            raise ValueError(f"{place} is a file, a folder is needed there")
    for name, backbone in config["backbones"].items():
        path = backbone["path"]
        local = is_local(path)
        if local and not (root / path / "config.json").is_file():
            missing = "does not exist" if not (root / path).is_dir() else "has no config.json"
            raise ValueError(f"suite config, backbones.{name}: folder {path} {missing}")
    for part, spec in config["data"].items():
        source = spec["source"]
        if source != "demo" and not source.startswith("hub:") and not (root / source).is_file():
            raise ValueError(f"suite config, data.{part}: file {source} does not exist")


def is_local(path: str) -> bool:
    """Whether a backbone's path is a folder rather than a name on the hub (``hub:owner/name``)."""
    return not path.startswith("hub:")


def _relative(paths: Sequence[Path]) -> list[str]:
    return [str(path.relative_to(ROOT)) for path in paths]
