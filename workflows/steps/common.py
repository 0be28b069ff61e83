"""What every step shares: errors as one sentence, files that appear whole, identity of the code."""

from __future__ import annotations

import argparse
import gc
import hashlib
import json
import os
import platform
import resource
import shutil
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("torch", "transformers", "lm_eval", "datasets", "numpy", "tokenizers")
CODE_FOLDERS = ("methods", "workflows")


def run(main: Callable[[], None]) -> None:
    """Run a step; bad input ends in one sentence and exit status 2.

    ``SKIPBENCH_DEBUG=1`` shows the traceback as well.
    """
    if not gc.isenabled():
        gc.freeze()
        gc.enable()
    try:
        main()
    except (ValueError, OSError, SafetensorError) as error:
        # safetensors reports a full disk as an error of its own.
        if os.environ.get("SKIPBENCH_DEBUG"):
            traceback.print_exc()
        print(f"error: {sentence(error)}", file=sys.stderr)
        raise SystemExit(2) from None
    except KeyboardInterrupt:
        print("interrupted; nothing half-written is left", file=sys.stderr)
        raise SystemExit(130) from None


def sentence(error: BaseException) -> str:
    """The message of an error on one line."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}: {error.filename}" if error.filename else error.strerror
    return " ".join(str(error).split())


@contextmanager
def whole_folder(folder: Path) -> Iterator[Path]:
    """A temporary sibling that becomes ``folder`` when the block ends well, else vanishes.

    Raises:
        ValueError: ``folder`` exists already, or its parent is a file.
    """
    if folder.exists():
        raise ValueError(f"{folder} exists already; remove it or name another folder")
    temporary = _sibling(folder)
    temporary.mkdir()
    try:
        yield temporary
        temporary.rename(folder)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


@contextmanager
def whole_file(file: Path) -> Iterator[Path]:
    """A temporary sibling that replaces ``file`` when the block ends well, else vanishes.

    Raises:
        ValueError: ``file`` is a folder, or its parent is a file.
    """
    check_place(file)
    temporary = _sibling(file)
    try:
        yield temporary
        temporary.replace(file)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_text(file: Path, text: str) -> None:
    """Replace a text file whole."""
    with whole_file(file) as temporary:
        temporary.write_text(text, encoding="utf-8")


def check_place(file: Path) -> None:
    """Refuse a place where no file can be written, before long work begins.

    Raises:
        ValueError: ``file`` is a folder, or one of its parents is a file.
    """
    if file.is_dir():
        raise ValueError(f"{file} is a folder, a file is to be written there")
    _check_parents(file)


def _check_parents(path: Path) -> None:
    for parent in reversed(path.absolute().parents):
        if parent.exists() and not parent.is_dir():
            raise ValueError(f"{parent} is a file, a folder is needed there")


def _sibling(path: Path) -> Path:
    """A hidden name beside ``path``, in the same file system; the parent is made.

    The name is fixed: what a killed run left there is cleared by the next one.
    """
    _check_parents(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    sibling = path.parent / f".{path.name}.part"
    if sibling.is_dir():
        shutil.rmtree(sibling)
    sibling.unlink(missing_ok=True)
    return sibling


def json_argument(text: str, name: str) -> Any:
    """A command line value as JSON.

    Raises:
        ValueError: It is not JSON.
    """
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"{name} is not valid JSON ({error}): {text}") from error


def add_machine_arguments(parser: argparse.ArgumentParser) -> None:
    """The options that choose hardware and never change what is computed."""
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads of torch")


def set_up_torch(threads: int) -> None:
    """Fix the number of threads, so that the cores given to Snakemake never change a number."""
    import torch

    if threads < 1:
        raise ValueError(f"--threads is {threads}, must be at least 1")
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(True, warn_only=True)
    # No code here reads memory before it is written; filling it first is time alone.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


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


def reset_peak_memory() -> None:
    """Let :func:`peak_memory_mb` look back no further than now, where the kernel allows it."""
    import torch

    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()


def peak_memory_mb() -> float:
    """Peak memory of this process in MB: resident set, plus CUDA allocations."""
    import torch

    resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    cuda = torch.cuda.max_memory_allocated() / 2**20 if torch.cuda.is_available() else 0.0
    return round(resident + cuda, 1)


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


def _accelerator() -> str | None:
    import torch

    return torch.cuda.get_device_name() if torch.cuda.is_available() else None
