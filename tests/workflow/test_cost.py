"""The cost step: what fits of true shapes take."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from methods.core.model import shapes
from tests import steps

TINY = {
    "model_type": "llama", "vocab_size": 64, "hidden_size": 16, "intermediate_size": 32,
    "num_hidden_layers": 4, "num_attention_heads": 2, "num_key_value_heads": 1,
}  # fmt: skip


@pytest.fixture
def shape(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setitem(shapes.SHAPES, "cpu_512", TINY)
    return "cpu_512"


def measure(shape: str, rows: str, folder: Path, budget: float = 0.25) -> dict[str, dict[str, Any]]:
    """The rows of the report."""
    sizes = ["--budget", budget, "--documents", 2, "--length", 8, "--threads", 1, "--device", "cpu"]
    places = ["--workdir", folder / "work", "--out", folder / "cost.json"]
    steps.call("cost", "--shape", shape, "--rows", rows, *sizes, *places)
    found: dict[str, dict[str, Any]] = json.loads((folder / "cost.json").read_text())["rows"]
    return found


def test_a_finished_row_is_not_fitted_again(shape: str, tmp_path: Path) -> None:
    first = measure(shape, "shortgpt", tmp_path)
    assert first["shortgpt"]["threads"] == 1
    assert first["shortgpt"]["peak_memory_mb"] > 50
    models = [p for p in (tmp_path / "work").rglob("*.safetensors") if "backbone" not in str(p)]
    assert not models
    (kept,) = (tmp_path / "work").rglob("shortgpt*.json")
    marked = json.loads(kept.read_text()) | {"seconds": 1234.5}
    kept.write_text(json.dumps(marked))
    del marked["identity"]
    assert measure(shape, "shortgpt", tmp_path) == {"shortgpt": marked}
    kept.write_text(json.dumps(marked | {"identity": {"threads": 2}}))
    assert measure(shape, "shortgpt", tmp_path)["shortgpt"]["seconds"] != 1234.5


def test_a_row_that_does_not_apply_takes_no_other_with_it(shape: str, tmp_path: Path) -> None:
    found = measure(shape, "random-skip,shortgpt", tmp_path, budget=0.6)
    assert "less than the budget" in found["random-skip"]["not_applicable"]
    assert found["shortgpt"]["seconds"] > 0
