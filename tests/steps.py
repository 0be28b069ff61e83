"""Call the steps of the pipeline, in this process or in a new one."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from workflows import ROOT
from workflows.runtime.program import run


def call(step: str, *arguments: Any) -> None:
    """Run the step's main in this process, as ``python -m`` would; torch keeps its threads."""
    module = importlib.import_module(f"workflows.steps.{step}")
    threads = torch.get_num_threads()
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "argv", [step, *map(str, arguments)])
            run(module.main)
    finally:
        torch.set_num_threads(threads)


def report_tables(results: Path, out: Path) -> None:
    """The report step without its figures, which take most of its time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("workflows.steps.report.draw_all", lambda *args, **more: None)
        call("report", "--results", results, "--out", out)


def fit(row: str, backbone: Path, out: Path, *more: Any) -> Path:
    """Fit a row with the threads of this test session; returns ``out``."""
    fixed = ["--method", row, "--backbone", backbone, "--out", out, "--device", "cpu"]
    call("fit", *fixed, "--threads", torch.get_num_threads(), *more)
    return out


def python(
    *arguments: Any, cwd: Path = ROOT, timeout: float = 120
) -> subprocess.CompletedProcess[str]:
    """Run a new interpreter in a checkout."""
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        cwd=cwd,
        env=os.environ | {"PYTHONPATH": str(cwd)},
        capture_output=True,
        text=True,
        timeout=timeout,
    )


class Refuse:
    """Runs a step that must refuse; returns its sentence."""

    def __init__(self, capfd: pytest.CaptureFixture[str], folder: Path) -> None:
        self.capfd, self.folder = capfd, folder

    def __call__(self, step: str, *arguments: Any) -> str:
        before = sorted(self.folder.rglob("*"))
        self.capfd.readouterr()
        with pytest.raises(SystemExit) as end:
            call(step, *arguments)
        assert end.value.code == 2
        assert sorted(self.folder.rglob("*")) == before
        return sentence(self.capfd.readouterr().err)


def sentence(stderr: str) -> str:
    """The sentence of a refusal: the last line that was printed."""
    assert "Traceback" not in stderr
    lines = [line for line in stderr.splitlines() if line.strip()]
    assert [line.startswith("error: ") for line in lines].count(True) == 1
    assert lines[-1].startswith("error: ")
    return lines[-1].removeprefix("error: ")
