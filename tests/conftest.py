"""The order of the tests, and fixtures for all of them."""

from __future__ import annotations

import os

# Libraries read these when they are imported.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_DATASETS_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
# Two workers use two cores: more threads would wait for each other.
os.environ["OPENBLAS_NUM_THREADS"] = "1"
# What a shell may hold, and what makes a fit one of several processes.
for name in ("SKIPBENCH_DEBUG", "SKIPBENCH_CPU", "RANK", "LOCAL_RANK", "WORLD_SIZE"):
    os.environ.pop(name, None)

import tempfile
from pathlib import Path

# Caches lie outside the home folder and are deleted when the run ends.
_CACHE = tempfile.TemporaryDirectory(prefix="skipbench-cache-")
os.environ["HF_HOME"] = _CACHE.name
os.environ["HF_DATASETS_CACHE"] = str(Path(_CACHE.name) / "datasets")

import pytest
import torch

if not torch.cuda.is_available() and "SKIPBENCH_EMULATE" not in os.environ:
    # Triton reads this when it is imported: its kernels then run on CPU tensors.
    os.environ["TRITON_INTERPRET"] = "1"

from tests.toys.models import CONFIGS, make_backbone
from tests.toys.tasks import make_tasks
from tests.toys.texts import make_data

# The folders whose files take longest.
SLOW = ("contract", "workflow")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Slow files run first: at the end, one worker would wait for the other's last file."""
    items.sort(key=lambda item: item.path.parent.name not in SLOW)


@pytest.fixture(scope="session", autouse=True)
def threads() -> None:
    """One thread of torch, or as many as ``SKIPBENCH_TEST_THREADS`` says."""
    torch.set_num_threads(int(os.environ.get("SKIPBENCH_TEST_THREADS", "1")))


@pytest.fixture(autouse=True)
def torch_seed() -> None:
    """What a test draws without a generator of its own is the same in any order of tests."""
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for files that all tests of a session share."""
    return tmp_path_factory.mktemp("toys")


@pytest.fixture(scope="session")
def backbones(home: Path) -> dict[str, Path]:
    """Kind of toy backbone -> folder. A test that changes one copies it first."""
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
