"""Calling the steps of the pipeline, in this process or in a fresh one."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from workflows.steps.common import ROOT, run


def call(step: str, *arguments: Any) -> None:
    """The step's main in this process, as ``python -m`` would run it."""
    module = importlib.import_module(f"workflows.steps.{step}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", [step, *map(str, arguments)])
        run(module.main)


def compress(row: str, backbone: Path, out: Path, *more: Any) -> Path:
    """One fitted row."""
    fixed = ["--method", row, "--backbone", backbone, "--out", out, "--device", "cpu"]
    call("compress", *fixed, *more)
    return out


def python(
    *arguments: Any, cwd: Path = ROOT, timeout: float = 120
) -> subprocess.CompletedProcess[str]:
    """A fresh interpreter in a checkout."""
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        cwd=cwd,
        env=os.environ | {"PYTHONPATH": str(cwd)},
        capture_output=True,
        text=True,
        timeout=timeout,
    )
