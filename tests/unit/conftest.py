"""A suite of two budgets and seeds, and the checkout it stands in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A checkout with one backbone and one text."""
    (tmp_path / "toy").mkdir()
    (tmp_path / "toy" / "config.json").write_text("{}")
    (tmp_path / "text.txt").write_text("w1")
    (tmp_path / "ids.npy").write_text("")
    return tmp_path


def config(**changes: Any) -> dict[str, Any]:
    base = {
        "suite": "tiny",
        "backbones": {"toy": {"path": "toy"}},
        "rows": ["dense", "random-skip", "shortgpt"],
        "budgets": [0.25, 0.4],
        "seeds": [42, 43],
        "tasks": ["piqa", "boolq"],
    }
    return {k: v for k, v in (base | changes).items() if v is not ...}
