"""Which code ran, with which versions of packages, on what hardware."""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
from collections.abc import Iterable, Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from methods import Row
from workflows import ROOT

PACKAGES = ("torch", "transformers", "lm_eval", "datasets", "numpy", "tokenizers")
FOLDERS = ("methods", "workflows")
# Code that every fit runs in addition to its own method; code that scores a model.
SHARED = (
    "methods/core", "methods/kernels", "methods/api.py", "methods/base.py", "methods/discovery.py",
)  # fmt: skip
SCORING = ("workflows/evaluation", "workflows/demo")
# Endings of names. Files that task files include have no dot in their names.
CODE = (".py", ".yaml", "_yaml")
PROSE = (".md", ".txt")
# With these in a caller's environment, as in a hook, git would name another repository's commit.
GIT_PLACES = (
    "GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_COMMON_DIR", "GIT_OBJECT_DIRECTORY",
    "GIT_NAMESPACE",
)  # fmt: skip


def provenance(parts: Sequence[str]) -> dict[str, Any]:
    """Versions, commit, hashes of the code and hardware, for a record.

    Args:
        parts: Files and folders of the checkout on which the record's results depend.
    """
    return {
        "versions": package_versions(),
        "commit": git("rev-parse", "HEAD"),
        "dirty": dirty(),
        "code": code_hashes(parts),
        "hardware": {
            "machine": platform.machine(),
            "processor": _processor(),
            "cores": os.cpu_count(),
            "cpu_capability": cpu_capability(),
            "accelerator": _accelerator(),
        },
    }


def package_versions() -> dict[str, str]:
    """Versions of Python and installed packages; a machine that only fits has no lm_eval."""
    versions = {"python": platform.python_version()}
    for package in PACKAGES:
        with suppress(PackageNotFoundError):
            versions[package] = version(package)
    return versions


def dirty() -> bool:
    """Whether the code differs from the commit: a tracked file changed, or there is a new one.

    New text files do not count. Outside git the answer is True, because no commit says which code
    ran.
    """
    changed = git("status", "--porcelain", "--untracked-files=no", *FOLDERS) != ""
    new = git("ls-files", "-z", "--others", "--exclude-standard", *FOLDERS) or ""
    return changed or any(name and not name.endswith(PROSE) for name in new.split("\0"))


def fit_parts(*rows: Row) -> list[str]:
    """Files and folders of the checkout on which a fit depends.

    Args:
        rows: The row, and the row of the model from which its fit starts.
    """
    own = [str(row.path.relative_to(ROOT)) for row in rows]
    return sorted({*own, *SHARED})


def code_files(part: str) -> list[Path]:
    """The Python and YAML files of a file or folder of the checkout."""
    place = ROOT / part
    files = place.rglob("*") if place.is_dir() else [place]
    return sorted(file for file in files if file.name.endswith(CODE) and file.is_file())


def code_hash(part: str) -> str:
    """sha256 over names and contents of :func:`code_files`, 16 hex digits."""
    digest = hashlib.sha256()
    for file in code_files(part):
        digest.update(str(file.relative_to(ROOT)).encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()[:16]


def code_hashes(parts: Iterable[str]) -> dict[str, str]:
    """Part -> :func:`code_hash`."""
    return {part: code_hash(part) for part in parts}


def git(*arguments: str) -> str | None:
    """Output of git in the checkout; None outside git or if git fails.

    git does not look in parent folders: an installed copy may lie in another project's repository.
    The checkout may belong to another user, as on a cluster (git 2.38 or newer).
    """
    environment = {key: value for key, value in os.environ.items() if key not in GIT_PLACES}
    environment["GIT_CEILING_DIRECTORIES"] = str(ROOT.parent)
    try:
        result = subprocess.run(
            ["git", "-c", f"safe.directory={ROOT}", *arguments],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return result.stdout.strip()


def _processor() -> str:
    text = ""
    with suppress(OSError):
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    return processor_name(text) or platform.processor() or platform.machine()


def processor_name(cpuinfo: str) -> str:
    """The model of a CPU in the text of ``/proc/cpuinfo``; empty if it has none.

    ARM CPUs have numbers in place of a name, such as "ARM 0x41/0xd0c": implementer and part, of
    each kind of core.
    """
    values: dict[str, list[str]] = {}
    for line in cpuinfo.splitlines():
        key, _, value = line.partition(":")
        values.setdefault(key.strip(), []).append(value.strip())
    if "model name" in values:
        return values["model name"][0]
    cores = zip(values.get("CPU implementer", []), values.get("CPU part", []), strict=False)
    kinds = dict.fromkeys("/".join(core) for core in cores)
    return f"ARM {', '.join(kinds)}" if kinds else ""


def cpu_capability() -> str:
    """The instruction set that torch uses: the CPU's best, unless ATEN_CPU_CAPABILITY limits it."""
    import torch

    return torch.backends.cpu.get_cpu_capability()


def _accelerator() -> str | None:
    import torch

    # A run on the CPU of a machine with a GPU does not use it.
    return torch.cuda.get_device_name() if torch.cuda.is_initialized() else None
