"""Which code ran, in which versions, on what hardware."""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("torch", "transformers", "lm_eval", "datasets", "numpy", "tokenizers")
CODE_FOLDERS = ("methods", "workflows")


def provenance() -> dict[str, Any]:
    """Versions, commit, state of the code and hardware, for a record."""
    return {
        "versions": {"python": platform.python_version()} | dict(_versions()),
        "commit": git("rev-parse", "HEAD"),
        # Outside git nothing says which code ran, so it counts as not committed.
        "dirty": git("status", "--porcelain", "--untracked-files=no", *CODE_FOLDERS) != "",
        "code_hash": code_hash(),
        "hardware": {
            "machine": platform.machine(),
            "processor": _processor(),
            "cores": os.cpu_count(),
            "cpu_capability": cpu_capability(),
            "accelerator": _accelerator(),
        },
    }


def _versions() -> Iterator[tuple[str, str]]:
    """Versions of what is installed: a machine that only fits has no lm_eval."""
    for package in PACKAGES:
        with suppress(PackageNotFoundError):
            yield package, version(package)


def code_hash(folders: Sequence[str] = CODE_FOLDERS) -> str:
    """sha256 over the Python and YAML files of folders, suites left out; 16 hex digits."""
    digest = hashlib.sha256()
    for folder in folders:
        for file in sorted((ROOT / folder).rglob("*")):
            if file.suffix in {".py", ".yaml"} and "suites" not in file.parts:
                digest.update(str(file.relative_to(ROOT)).encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()[:16]


def git(*arguments: str) -> str | None:
    """What git prints in the checkout; None outside git or where it fails."""
    try:
        done = subprocess.run(
            ["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def cpu_capability() -> str:
    """The instruction set that torch computes with: the CPU's best, or what limits it."""
    import torch

    return torch.backends.cpu.get_cpu_capability()


def _accelerator() -> str | None:
    import torch

    return torch.cuda.get_device_name() if torch.cuda.is_available() else None
