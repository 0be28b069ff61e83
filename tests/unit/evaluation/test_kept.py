"""Scores of single tasks on disk: taken again only for the very same evaluation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

from methods.core.ledger import Ledger, Tally
from methods.core.routing.router import Unit
from workflows.evaluation.kept import KeptTasks
from workflows.evaluation.tasklist import TaskEntry

ENTRY = TaskEntry("toy_choice", metric="acc", limit=2)


@pytest.fixture
def ledger() -> Ledger:
    units = [Unit(1, "ffn", 30), Unit(2, "ffn", 30)]
    return Ledger(100, 100, units, always=2, instead=(1, 1), layers=3, dense_layers=3)


def scored(ledger: Ledger) -> tuple[list[dict[str, Any]], pd.DataFrame, dict[str, Tally]]:
    tally = Tally(ledger)
    tally.add(torch.rand(2, 7, generator=torch.Generator().manual_seed(0)) < 0.5, 7)
    items = pd.DataFrame({"task": ["toy_choice"] * 2, "item": [0, 1], "value": [1.0, 0.0]})
    return [{"task": "toy_choice", "value": 1 / 3}], items, {"prompt": tally}


def test_what_was_kept_is_read_back_to_the_bit(ledger: Ledger, tmp_path: Path) -> None:
    kept = KeptTasks(tmp_path / "tasks", ledger, {"batch_size": 4})
    assert kept.read(ENTRY) is None
    scores, items, tallies = scored(ledger)
    kept.write(ENTRY, scores, items, tallies)
    found = kept.read(ENTRY)
    assert found is not None
    assert found[0] == scores
    pd.testing.assert_frame_equal(found[1], items)
    assert found[2]["prompt"].tokens == 7
    assert found[2]["prompt"].rates() == tallies["prompt"].rates()


@pytest.mark.parametrize(
    ("identity", "entry"),
    [
        ({"batch_size": 8}, ENTRY),
        ({"batch_size": 4}, TaskEntry("toy_choice", metric="acc", limit=3)),
        ({"batch_size": 4}, TaskEntry("toy_choice", metric="acc", limit=2, num_fewshot=1)),
    ],
)
def test_another_evaluation_is_not_taken_for_it(
    identity: dict[str, Any], entry: TaskEntry, ledger: Ledger, tmp_path: Path
) -> None:
    KeptTasks(tmp_path, ledger, {"batch_size": 4}).write(ENTRY, *scored(ledger))
    assert KeptTasks(tmp_path, ledger, identity).read(entry) is None


def test_without_its_items_a_task_is_scored_again(ledger: Ledger, tmp_path: Path) -> None:
    kept = KeptTasks(tmp_path, ledger, {})
    kept.write(ENTRY, *scored(ledger))
    (tmp_path / "toy_choice.parquet").unlink()
    assert kept.read(ENTRY) is None
