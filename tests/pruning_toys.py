"""Toys for LLM-Pruner: small models, documents of uneven length, fits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from methods import load_method
from methods.base import Fitted, Request
from methods.core.model.backbone import Backbone, count, layers
from tests import toy


def documents(lengths: list[int], seed: int = 0) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    return [rng.integers(0, 60, length).tolist() for length in lengths]


TEXTS = documents([7, 12, 3, 9])


def make(kind: str = "llama", **changes: Any) -> torch.nn.Module:
    """Four layers; ``mha``: as many key/value heads as query heads."""
    changes = {"num_hidden_layers": 4} | changes
    if kind == "mha":
        return toy.make_model("llama", num_key_value_heads=4, **changes)
    return toy.make_model(kind, **changes)


def fit(
    model: torch.nn.Module,
    texts: list[list[int]] = TEXTS,
    budget: float | None = None,
    **params: Any,
) -> Fitted:
    backbone = Backbone(model, None, Path(), None, "", count(model))
    given = {"ratio": 0.5, "start": 0, "end": len(layers(model))} if budget is None else {}
    method = load_method("llm-pruner", given | params)
    return method.fit(backbone, toy.calibration(texts), Request(budget, 0, Path()))


def scores_of(decisions: dict[str, Any]) -> np.ndarray:
    pairs = zip(decisions["head_importance"], decisions["channel_importance"], strict=True)
    return np.concatenate([np.array(values) for pair in pairs for values in pair])
