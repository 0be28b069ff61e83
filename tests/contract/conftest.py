"""Fits of every row on toys, each made once in a process."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from methods import discover
from methods.core.model.card import CARD
from tests import steps
from workflows.suite.job import data_parts, data_words

BUDGET, SEED = 0.25, 3
# Attention alone holds less than BUDGET.
BUDGETS = {"mindskip": 0.04}
ROWS = discover()
# Params that keep a trained row's fit short on a toy; rows with other needs get their own line.
SHORT = {"updates": 40, "batch_tokens": 256, "learning_rate": 3e-3, "row_length": 64}
QUICK: dict[str, dict[str, Any]] = {row: SHORT for row in ROWS if ROWS[row].trained}
QUICK["slicegpt"] = {"round_to": 1}
IDS = torch.randint(0, 60, (3, 14), generator=torch.Generator().manual_seed(1))


class Runs:
    """Fits each case once, on the data that a suite gives its row, and keeps its folder."""

    def __init__(self, home: Path, backbones: dict[str, Path], data: dict[str, Path]) -> None:
        self.home, self.backbones, self.data = home, backbones, data

    def fit(self, row: str, kind: str = "llama", name: str = "first", root: Path = Path()) -> Path:
        """The folder of a fit; ``name`` tells repeated fits apart."""
        out = (self.home / root) / kind / name / row
        if not (out / CARD).is_file():
            steps.fit(row, self.backbones[kind], out, *self.arguments(row, kind))
        return out

    def files(self, row: str, kind: str = "llama") -> dict[str, Path]:
        """Part -> file of the data of a row's fit."""
        # transformers gives any Qwen2 folder a tokenizer that knows no toy word.
        ids = kind == "qwen2"
        return {p: self.data["ids" if ids else p] for p in data_parts(ROWS[row])}

    def arguments(self, row: str, kind: str = "llama", seed: int = SEED) -> list[Any]:
        """Of the fit step."""
        fixed = ["--budget", BUDGETS.get(row, BUDGET), "--seed", seed, "--max-length", 64]
        params = ["--params", json.dumps(QUICK.get(row, {}))]
        return [*fixed, *params, *data_words(self.files(row, kind))]


@pytest.fixture(scope="session")
def runs(
    tmp_path_factory: pytest.TempPathFactory,
    backbones: dict[str, Path],
    data_files: dict[str, Path],
) -> Runs:
    return Runs(tmp_path_factory.mktemp("contract"), backbones, data_files)


@torch.no_grad()
def logits(model: Any, ids: torch.Tensor = IDS, **kwargs: Any) -> torch.Tensor:
    return model(ids, **kwargs).logits


def digests(model: torch.nn.Module) -> set[str]:
    return {hashlib.sha256(t.numpy().tobytes()).hexdigest() for t in model.state_dict().values()}
