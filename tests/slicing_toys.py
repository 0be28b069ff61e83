"""Toys for SliceGPT: models with weights in their norms, documents of uneven length."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from methods import load_method
from methods.base import Fitted, Request
from methods.core.data import Batch, Document, batches
from methods.core.model.backbone import Backbone, count
from tests import toy

KINDS = sorted(toy.SHAPES)
LENGTHS = [9, 21, 4, 30, 13, 17]
IDS = torch.randint(0, 60, (3, 20), generator=torch.Generator().manual_seed(2))


class Documents:
    """Calibration documents in padded batches; pads hold ``pad``."""

    def __init__(self, batch_size: int = 4, pad: int = 0) -> None:
        rng = np.random.default_rng(0)
        self.documents = [Document(rng.integers(0, 60, n).tolist(), 0) for n in LENGTHS]
        self.batch_size, self.pad = batch_size, pad

    def calibration(self) -> list[Batch]:
        made = batches(self.documents, self.batch_size)
        return [Batch(b.ids.masked_fill(~b.valid, self.pad), b.valid) for b in made]


def dense(kind: str = "llama", dtype: torch.dtype = torch.float32, **changes: Any) -> nn.Module:
    """A toy whose norms have weights and whose matrices have biases where the family allows."""
    model = toy.make_model(kind, **changes)
    for name, parameter in model.named_parameters():
        if "norm" in name or "bias" in name:
            torch.nn.init.uniform_(parameter, 0.5, 1.5, torch.Generator().manual_seed(len(name)))
    return toy.cast(model, dtype)


def wrap(model: nn.Module) -> Backbone:
    return Backbone(model, None, Path(), None, "", count(model))


def fit(
    model: nn.Module,
    fraction: float | None = 0.25,
    budget: float | None = None,
    seed: int = 0,
    data: Documents | None = None,
    **params: Any,
) -> Fitted:
    given = {"slice_fraction": fraction, "round_to": 1, **params}
    request = Request(budget, seed, Path())
    return load_method("slicegpt", given).fit(wrap(model), data or Documents(), request)


@torch.no_grad()
def logits(model: Any, ids: Tensor = IDS) -> Tensor:
    return model(ids).logits


def furthest(first: Tensor, second: Tensor) -> float:
    return float((first - second).detach().abs().max())
