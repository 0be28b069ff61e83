"""What may start from a compressed model: LoRA heals every static row, the rest is refused.

One row alone: ``pytest -n0 tests/contract -k my-row``.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from methods.core.model.checkpoint import load
from methods.core.model.ledger import Tally
from tests import steps
from tests.contract.fits import ROWS, SHORT, Runs, budget_of, digests, logits
from workflows.records.card import removed_layers
from workflows.suite.job import data_words

STATIC = [row for row in ROWS if ROWS[row].kind == "static"]
PARAMETERS = 6000
HEAL = json.dumps(SHORT | {"modules": "all", "parameters": PARAMETERS, "updates": 5})


@pytest.mark.parametrize("row", STATIC)
def test_lora_heals_a_static_row(row: str, runs: Runs, tmp_path: Path) -> None:
    home = tmp_path / "here"
    start = shutil.copytree(runs.fit(row), home / "start")
    before = {file: file.read_bytes() for file in start.iterdir()}
    arguments = ["--params", HEAL, "--max-length", 64, *data_words(runs.files("lora"))]
    steps.fit("lora", start, home / "healed", *arguments)
    assert {file: file.read_bytes() for file in start.iterdir()} == before
    first = load(start)
    # Both folders may move together.
    home.rename(tmp_path / "there")
    healed = load(tmp_path / "there" / "healed")
    assert digests(first.model) <= digests(healed.model)
    assert (logits(healed.model) - logits(first.model)).abs().max() > 1e-4
    assert healed.card.budget == budget_of(row)
    trained = [p.numel() for n, p in healed.model.named_parameters() if "lora_" in n]
    assert sum(trained) == pytest.approx(PARAMETERS, rel=0.02)
    assert healed.card.start is not None
    assert healed.card.start.row == row
    assert removed_layers(healed.card) == removed_layers(first.card)
    rates = []
    for loaded in (first, healed):
        tally = Tally(loaded.ledger)
        tally.add(None, 1)
        rates.append(tally.rates())
    assert rates[1].skip == rates[0].skip
    assert rates[1].skip_net < rates[1].skip


@pytest.mark.parametrize(
    ("row", "start", "message"),
    [
        ("lora", "hero", "only a static row can be built on"),
        ("hero", "slicegpt", "only a trained row without a budget can start from one, not 'hero'"),
        ("shortgpt", "shortgpt", "only a trained row without a budget"),
    ],
)
def test_what_cannot_start_from_a_compressed_model(
    row: str, start: str, message: str, runs: Runs, tmp_path: Path, capsys: Any
) -> None:
    arguments = ["--budget", 0.1, "--train", runs.data["training"]]
    with pytest.raises(SystemExit):
        steps.fit(row, runs.fit(start), tmp_path / "out", *arguments)
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
