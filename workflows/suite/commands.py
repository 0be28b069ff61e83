"""The arguments that the rules of a suite give to the steps."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from typing import Any

from workflows.records import IDLE
from workflows.suite.job import Job, data_words
from workflows.suite.jobs import Suite

# Documents per task of a probe that is made of the suite's tasks.
PROBE_ROWS = 32


def fit(suite: Suite, job: Job) -> str:
    """Arguments of the fit step beside data and folders."""
    return _fit(suite, job, job.params)


def numbers_of_fit(suite: Suite, job: Job) -> str:
    """The same without params that change no number."""
    return _fit(suite, job, {name: v for name, v in job.params.items() if name not in IDLE})


def _fit(suite: Suite, job: Job, params: Mapping[str, Any]) -> str:
    backbone = suite.config["backbones"][job.backbone]
    words = ["--method", job.method.name, "--params", json.dumps(params, sort_keys=True)]
    words += ["--seed", str(job.seed), "--dtype", backbone["dtype"]]
    words += ["--max-length", str(suite.config["max_length"])]
    if job.budget is not None and job.start is None:
        words += ["--budget", str(job.budget)]
    if job.match is not None:
        words += ["--match", job.match]
    if job.lender is not None:
        words += ["--lender", job.lender.model]
    if "revision" in (asked := suite.origins[job.backbone]):
        words += ["--revision", asked["revision"]]
    return shlex.join(words)


def data(suite: Suite, job: Job) -> str:
    """The data of a fit as arguments of the fit step."""
    return shlex.join(data_words(suite.data_files(job)))


def score(suite: Suite, job: Job, batch_size: int | None = None) -> str:
    """Arguments of the score step beside model and tasks.

    Args:
        suite: Of the job.
        job: The job.
        batch_size: Sequences per pass; None: as the suite says.
    """
    words = ["--suite", suite.name, "--backbone-name", job.backbone, "--row", job.row]
    words += ["--batch-size", str(batch_size or suite.config["batch_size"])]
    length = suite.config["backbones"][job.backbone].get("max_length")
    words += [] if length is None else ["--max-length", str(length)]
    words += _limit(suite)
    # Scored again for the noise floor, the reference is not compared with itself.
    words += _fidelity(suite, job) if batch_size is None else []
    return shlex.join([*words, *_shared(suite), *_task_dir(suite)])


def _fidelity(suite: Suite, job: Job) -> list[str]:
    """The texts on which a row is compared with the dense model, as arguments of the score step."""
    words = []
    for file in suite.fidelity_files():
        words += ["--fidelity", file, "--fidelity-length", str(suite.config["max_length"])]
        words += ["--reference", suite.backbone_folder(job.backbone)]
    return words


def probe(suite: Suite) -> str:
    """Arguments of the probe step; a chat template is that of the first backbone."""
    source = suite.config["data"]["probe"]
    first = next(iter(suite.config["backbones"]))
    # How a task is scored changes no text of it.
    entries = [_without(raw, "metric", "chance") for raw in suite.probe_tasks]
    tasks = json.dumps(entries, sort_keys=True)
    words = ["--tasks", tasks, "--rows", str(source.get("rows", PROBE_ROWS))]
    words += ["--seed", str(source["seed"]), "--backbone", suite.backbone_folder(first)]
    return shlex.join([*words, *_limit(suite), *_shared(suite), *_task_dir(suite)])


def _without(raw: Any, *keys: str) -> Any:
    """A task entry without some keys."""
    return raw if isinstance(raw, str) else {k: v for k, v in raw.items() if k not in keys}


def texts(suite: Suite, part: str) -> str:
    """Arguments of the step that lets the suite's one backbone write a part of the data."""
    source = suite.config["data"][part]
    words = ["--model", suite.backbone_folder(next(iter(suite.config["backbones"])))]
    words += ["--rows", str(source["rows"]), "--seed", str(source["seed"]), "--part", part]
    return shlex.join([*words, "--max-length", str(suite.config["max_length"])])


def task_data(suite: Suite, task: str) -> str:
    """Arguments of the step that fetches a task's data."""
    words = ["--task", json.dumps(_without(suite.hub_tasks[task], "chance"), sort_keys=True)]
    return shlex.join([*words, *_task_dir(suite)])


def timing(suite: Suite) -> str:
    """Arguments of the time step beside model and texts."""
    cases = suite.config.get("timing", {})
    modes = ",".join(mode for mode in ("prefill", "decode", "training") if mode in cases)
    words = [word for key in cases for word in (f"--{key}", str(cases[key]))]
    return shlex.join(["--modes", modes, *words])


def _limit(suite: Suite) -> list[str]:
    """The most items of a task: an argument of the steps that score, and that weigh tasks."""
    limit = suite.config.get("limit")
    return [] if limit is None else ["--limit", str(limit)]


def _shared(suite: Suite) -> list[str]:
    """Whether a context runs and counts once: an argument of the steps that feed texts."""
    return ["--share-prefix"] if suite.config["share_prefix"] else []


def _task_dir(suite: Suite) -> list[str]:
    """The folder of own lm-eval tasks as an argument of the steps that read tasks."""
    return ["--task-dir", suite.config["task_folder"]] if "task_folder" in suite.config else []
