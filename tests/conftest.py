"""Fixtures that every test may use; libraries read these variables when they are imported."""

from __future__ import annotations

import os

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_DATASETS_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
# Two workers on two cores: threads of one would wait for the other's.
os.environ["OPENBLAS_NUM_THREADS"] = "1"

import tempfile
from pathlib import Path

# Caches of data sets stay out of the home folder and go when the run ends.
_CACHE = tempfile.TemporaryDirectory(prefix="skipbench-cache-")
os.environ["HF_DATASETS_CACHE"] = _CACHE.name

import pytest
import torch

if not torch.cuda.is_available():
    # Triton kernels, where Triton is installed, run on CPU tensors: read when it is imported.
    os.environ["TRITON_INTERPRET"] = "1"

from tests.toys.models import CONFIGS, make_backbone
from tests.toys.tasks import make_tasks
from tests.toys.texts import make_data


@pytest.fixture(scope="session", autouse=True)
def threads() -> None:
    """One thread of torch, or as many as ``SKIPBENCH_TEST_THREADS`` says."""
    torch.set_num_threads(int(os.environ.get("SKIPBENCH_TEST_THREADS", "1")))


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for what a whole test session shares."""
    return tmp_path_factory.mktemp("toys")


@pytest.fixture(scope="session")
def backbones(home: Path) -> dict[str, Path]:
    """Kind of toy backbone -> folder; tests copy what they change."""
    return {kind: make_backbone(home / kind, kind) for kind in CONFIGS}


@pytest.fixture(scope="session")
def llama(backbones: dict[str, Path]) -> Path:
    return backbones["llama"]


@pytest.fixture(scope="session")
def data_files(home: Path) -> dict[str, Path]:
    """``ids`` (.npy) and ``calibration``, ``training``, ``validation``, ``probe`` (.jsonl)."""
    return make_data(home / "data")


@pytest.fixture(scope="session")
def task_folder(home: Path) -> Path:
    """lm-eval tasks ``toy_choice`` and ``toy_write``."""
    return make_tasks(home / "tasks")
