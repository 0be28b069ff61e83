"""Copies of the checkout, and runs in them, so that no test touches the developer's results."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from methods import discover
from tests import browser, steps
from tests.hub import Hub
from tests.records import code, suite, write_full_suite, write_run, write_suite
from tests.toys.models import make_backbone
from tests.toys.tasks import make_tasks
from tests.toys.texts import make_data
from workflows import ROOT

# The only methods in copies for whole runs: cheap rows, with and without a budget.
CHEAP = {"dense.py", "random_skip.py"}


def checkout_files() -> list[str]:
    """Tracked and new files of this checkout, without those that git ignores."""
    listing = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    if listing.returncode == 0:
        return [name for name in listing.stdout.splitlines() if (ROOT / name).is_file()]
    apart = (".venv", ".snakemake", "results", "reports", ".git")
    files = (f.relative_to(ROOT) for f in ROOT.rglob("*") if f.is_file())
    return [str(f) for f in files if not str(f).startswith(apart)]


def copy_checkout(folder: Path) -> Path:
    """Copy the checkout without its results; a toy replaces a shipped backbone that is missing."""
    for name in checkout_files():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, folder / name)
    if not (folder / "workflows/demo/backbone/config.json").is_file():
        make_backbone(folder / "workflows/demo/backbone")
    return folder


def toy_checkout(folder: Path) -> Path:
    """Copy it with the cheap rows, and write ``toy.yaml``: a toy backbone, two tasks, one text."""
    copy_checkout(folder)
    for name in {row.path.name for row in discover().values()} - CHEAP:
        path = folder / "methods" / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    make_backbone(folder / "toy/backbone")
    make_data(folder / "toy/data")
    make_tasks(folder / "toy/tasks", items=8)
    (folder / "toy/text.txt").write_text("w1 w2 w3 w4 w5 w6 w7 w8", encoding="utf-8")
    suite = {
        "suite": "toy",
        "backbones": {"small": {"path": "toy/backbone"}},
        "rows": "all",
        "budgets": [0.25],
        "seeds": [42],
        "tasks": [
            {"task": "toy_choice", "metric": "acc"},
            {"task": "toy_write", "limit": 4},
            {"task": "perplexity:text", "file": "toy/text.txt"},
        ],
        "retain_tasks": ["toy_choice"],
        "task_folder": "toy/tasks",
        "noise_batch_sizes": [3],
        "timing": {"prefill": "2x8", "decode": "1x8,2x8", "training": "2x8", "rounds": 3},
        "data": {
            "calibration": {"source": "toy/data/calibration.jsonl", "rows": 6},
            "probe": {"source": "toy/data/probe.jsonl"},
        },
    }
    (folder / "toy.yaml").write_text(yaml.safe_dump(suite), encoding="utf-8")
    return folder


def environment() -> dict[str, str]:
    """The variables of a run; PATH finds the tools of this Python first."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    return os.environ | {"PATH": path, "COLUMNS": "200"}


def hub_environment(hub: Hub, home: Path) -> dict[str, str]:
    """The same for a run with this hub only; ``home`` is the folder of the hub's libraries."""
    variables = {k: v for k, v in environment().items() if not k.startswith(("HF_", "HUGGING"))}
    return variables | {"HF_ENDPOINT": hub.address, "HF_HOME": str(home)}


def wait_for(ready: Callable[[], Any], process: subprocess.Popen[str], limit: float = 600) -> Any:
    """Wait until ``ready`` returns something, and return it; the process must still run."""
    until = time.monotonic() + limit
    while not (result := ready()):
        assert process.poll() is None, process.communicate()[0][-4000:]
        assert time.monotonic() < until
        time.sleep(0.2)
    return result


def records(folder: Path, suite: str) -> dict[str, Any]:
    """Path -> record without times and memory, which may differ."""
    contents = {}
    for file in sorted((folder / "results" / suite).rglob("record.json")):
        record = json.loads(file.read_text(encoding="utf-8"))
        for part in ("fit", "evaluation"):
            for volatile in ("seconds", "peak_memory_mb"):
                record[part].pop(volatile, None)
        contents[str(file.relative_to(folder))] = record
    return contents


def snakemake(folder: Path, *arguments: str, timeout: float = 400) -> tuple[int, str]:
    """Exit status and everything printed."""
    done = subprocess.run(
        [sys.executable, "-m", "snakemake", *arguments],
        cwd=folder,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout,
    )
    return done.returncode, done.stdout


@pytest.fixture
def refuse(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> steps.Refuse:
    return steps.Refuse(capfd, tmp_path)


@pytest.fixture(scope="session")
def plain_copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copy_checkout(tmp_path_factory.mktemp("plain") / "checkout")


@pytest.fixture(scope="session")
def run_snakemake() -> Callable[..., tuple[int, str]]:
    return snakemake


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``a``, and ``b``: without LoRA, one item of shortgpt+lora lost, one HeRo seed, other code."""
    folder = tmp_path_factory.mktemp("folders")
    write_suite(folder / "a")
    for run in suite():
        if run["row"] == "lora" or (run["row"] == "hero" and run["seed"] != 42):
            continue
        if run["row"] == "shortgpt+lora":
            entry = run["scores"][0]
            entry["items"][entry["items"].index(1)] = 0.0
            entry["k"], entry["value"] = entry["k"] - 1, float(np.mean(entry["items"]))
        other = {"methods/core": "e"} | ({"methods/hero": "n"} if run["row"] == "hero" else {})
        write_run(folder / "b", run | {"code": code(run["row"], **other)})
    return folder


@pytest.fixture(scope="session")
def both(made: Path) -> Path:
    """Beside ``a`` the same runs by the second protocol alone, and by both."""
    write_suite(made / "split", ("split",))
    return write_suite(made / "both", ("pooled", "split"))


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("page")
    results = write_full_suite(folder / "results")
    steps.call("report", "--results", results, "--out", folder / "reports/made")
    return folder / "reports/made/index.html"


@pytest.fixture(scope="module")
def chromium() -> Iterator[browser.Browser]:
    with browser.chromium() as window:
        yield window


@pytest.fixture
def window(chromium: browser.Browser, page: Path) -> Iterator[browser.Browser]:
    """The page opened anew; afterwards nothing went wrong in it and it asked for nothing."""
    chromium.prefer("light")
    chromium.open(page)
    yield chromium
    assert chromium.errors == []
    assert all(url.startswith(page.as_uri()) for url in chromium.requests)
