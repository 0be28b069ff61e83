"""Fits of every row on toys, one per process and case."""

from __future__ import annotations

import hashlib
import json
import shutil
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from methods import discover, load_method
from methods.base import Request
from methods.core.data import Data
from methods.core.model.card import CARD, read_card
from methods.order import ORDER
from tests import steps
from tests.toys.models import make_model, wrap
from tests.toys.texts import VOCABULARY
from workflows.suite.job import data_parts, data_words

SEED = 3
ROWS = discover()
# Of a toy; a row that cannot meet one gets the next.
BUDGETS = (0.25, 0.04)
# Params that keep the fit of a trained row short.
SHORT = {"updates": 20, "batch_tokens": 256, "learning_rate": 3e-3, "row_length": 64}
QUICK: dict[str, dict[str, Any]] = {row: SHORT for row in ROWS if ROWS[row].trained}
QUICK["slicegpt"] = {"round_to": 1}
IDS = torch.randint(0, 60, (3, 14), generator=torch.Generator().manual_seed(1))


@cache
def budget_of(row: str) -> float | None:
    """The largest of ``BUDGETS`` that a row can meet on a toy; None for a row without a budget."""
    if not ROWS[row].budgeted:
        return None
    method, toy = load_method(row, QUICK.get(row, {})), wrap(make_model())
    for budget in BUDGETS:
        if method.skip_reason(toy, Request(budget, SEED, Path())) is None:
            return budget
    raise ValueError(f"row '{row}' meets none of the budgets {BUDGETS} on a toy")


class Runs:
    """Fits each case once, on the data that a suite gives its row."""

    def __init__(
        self, home: Path, backbones: dict[str, Path], data: dict[str, Path], seed: int = SEED
    ) -> None:
        self.home, self.backbones, self.data, self.seed = home, backbones, data, seed

    def fit(self, row: str, kind: str = "llama") -> Path:
        """The folder of a fit."""
        out = self.home / kind / row
        if not (out / CARD).is_file():
            steps.fit(row, self.backbones[kind], out, *self.arguments(row, kind, self.seed))
        if row not in ORDER and (reason := read_card(out).not_applicable):
            pytest.skip(f"'{row}' does not run on {kind}: {reason}")
        return out

    def fit_again(self, row: str) -> Path:
        """The folder of a second fit; it and its backbone were moved together after the fit.

        A row that is not stochastic gets another seed, which must change nothing.
        """
        place, root = self.home / "moved" / row, self.home / "again"
        if not place.exists():
            backbone = shutil.copytree(self.backbones["llama"], root / "backbone")
            seed = SEED if ROWS[row].stochastic else SEED + 1
            Runs(root, {"llama": backbone}, self.data, seed).fit(row)
            place.parent.mkdir(exist_ok=True)
            root.rename(place)
        return place / "llama" / row

    def files(self, row: str, kind: str = "llama") -> dict[str, Path]:
        """The data of a row's fit: part -> file."""
        # transformers gives any Qwen2 folder a tokenizer that knows no toy word.
        ids = kind == "qwen2"
        return {p: self.data["ids" if ids else p] for p in data_parts(ROWS[row])}

    def texts(self, row: str, tokenizer: Any, kind: str = "llama") -> Data:
        """The same data, read."""
        files = {f"{part}_file": file for part, file in self.files(row, kind).items()}
        return Data(tokenizer, VOCABULARY, 64, **files)

    def arguments(self, row: str, kind: str = "llama", seed: int = SEED) -> list[Any]:
        """Arguments of the fit step."""
        budget = budget_of(row)
        fixed = [
            *([] if budget is None else ["--budget", budget]),
            "--seed",
            seed,
            "--max-length",
            64,
        ]
        params = ["--params", json.dumps(QUICK.get(row, {}))]
        return [*fixed, *params, *data_words(self.files(row, kind))]


@torch.no_grad()
def logits(model: Any, ids: torch.Tensor = IDS, **kwargs: Any) -> torch.Tensor:
    return model(ids, **kwargs).logits


def digests(model: torch.nn.Module) -> set[str]:
    return {hashlib.sha256(t.numpy().tobytes()).hexdigest() for t in model.state_dict().values()}
