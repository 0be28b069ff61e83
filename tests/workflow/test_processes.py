"""A trained fit in two processes, as a suite with two GPUs starts it; here on the CPU."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import pytest
import yaml

from tests import steps
from tests.toys.models import make_backbone
from tests.toys.texts import make_data
from workflows import ROOT
from workflows.suite import commands
from workflows.suite.jobs import read_suite

PARAMS = {"updates": 4, "batch_tokens": 96, "row_length": 0, "alpha": 0.01}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("two")
    make_backbone(made / "backbone")
    make_data(made / "data")
    return made


def words(folder: Path, out: str, *more: Any, **params: Any) -> list[Any]:
    """The arguments of a fit."""
    data = folder / "data"
    return [
        "-m", "workflows.steps.fit", "--method", "hero", "--backbone", folder / "backbone",
        "--params", json.dumps(PARAMS | params), "--train", data / "training.jsonl",
        "--validation", data / "validation.jsonl", "--probe", data / "probe.jsonl",
        "--device", "cpu", "--out", folder / out, *more,
    ]  # fmt: skip


def fit(folder: Path, out: str, *more: Any) -> Any:
    return steps.python(*words(folder, out, *more))


def losses(folder: Path) -> list[float]:
    log = json.loads((folder / "decisions.json").read_text())["training"]
    return [entry["loss"] for entry in log]


@pytest.mark.long
def test_two_processes_fit_what_one_does(folder: Path) -> None:
    assert fit(folder, "one").returncode == 0
    both = fit(folder, "two", "--processes", 2)
    assert both.returncode == 0, both.stderr[-2000:]
    assert losses(folder / "two") == pytest.approx(losses(folder / "one"), rel=1e-5)
    assert (folder / "two/trained.safetensors").is_file()


@pytest.mark.long
def test_an_interrupt_from_the_terminal_ends_after_the_last_process(folder: Path) -> None:
    """All get the signal; when the first has ended, the snapshot is there and no other runs."""
    command = [sys.executable, *words(folder, "cut", "--processes", 2, updates=100_000)]
    log = folder / "cut.log"
    with log.open("wb") as stream:
        group = subprocess.Popen(
            list(map(str, command)), stderr=stream, start_new_session=True, cwd=ROOT
        )
    deadline = monotonic() + 300
    while b"loss=" not in log.read_bytes():
        assert group.poll() is None and monotonic() < deadline, log.read_text()[-2000:]
        sleep(0.2)
    os.killpg(group.pid, signal.SIGINT)
    assert group.wait(timeout=300) != 0
    with pytest.raises(ProcessLookupError):
        os.killpg(group.pid, 0)
    assert list(folder.glob("cut.checkpoints/*/snapshot.safetensors"))
    assert not (folder / "cut").exists()


def test_only_what_trains_takes_several_processes(folder: Path) -> None:
    given = ["--method", "shortgpt", "--backbone", folder / "backbone", "--budget", 0.25]
    done = steps.python(
        "-m", "workflows.steps.fit", *given, "--processes", 2, "--out", folder / "none"
    )
    assert done.returncode == 2
    said = "--processes is 2; only a trained row takes more than 1"
    assert steps.sentence(done.stderr) == said


def test_a_suite_gives_its_gpus_to_what_trains() -> None:
    config = yaml.safe_load((ROOT / "workflows/suites/demo.yaml").read_text())
    suite = read_suite(config | {"resources": {"gpu": 2}})
    assert suite.processes == 2
    assert suite.fit_mem_mb == 2 * suite.config["resources"]["mem_mb"]
    # Another number of GPUs must not run finished fits again.
    alone = read_suite(config | {"resources": {"gpu": 1}})
    pairs = zip(suite.jobs, alone.jobs, strict=True)
    assert all(commands.fit(suite, job) == commands.fit(alone, one) for job, one in pairs)
