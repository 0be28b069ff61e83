"""Fits of static rows on toys, and what tests compare of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from methods import load_method
from methods.base import Fitted, Request
from methods.core.model.backbone import layers
from tests.toys.models import wrap
from tests.toys.texts import PaddedTexts, calibration_data, ids_of

IDS = torch.randint(0, 60, (3, 20), generator=torch.Generator().manual_seed(2))
PRUNED_BY = ids_of([7, 12, 3, 9])


def fit(
    row: str,
    model: Any,
    texts: list[list[int]],
    budget: float | None = None,
    seed: int = 0,
    **params: Any,
) -> Fitted:
    """A fit of ``row`` on calibration documents ``texts``."""
    request = Request(budget, seed, Path())
    return load_method(row, params).fit(wrap(model), calibration_data(texts), request)


def fit_llm_pruner(
    model: Any,
    texts: list[list[int]] = PRUNED_BY,
    budget: float | None = None,
    **params: Any,
) -> Fitted:
    """Without a budget, half of every layer goes."""
    half = {"ratio": 0.5, "start": 0, "end": len(layers(model))} if budget is None else {}
    return fit("llm-pruner", model, texts, budget, **(half | params))


def slicing_texts(batch_size: int = 4, pad: int = 0) -> PaddedTexts:
    """What SliceGPT is calibrated on here."""
    return PaddedTexts(ids_of([9, 21, 4, 30, 13, 17]), batch_size, pad)


def fit_slicegpt(
    model: Any,
    fraction: float | None = 0.25,
    budget: float | None = None,
    seed: int = 0,
    data: PaddedTexts | None = None,
    **params: Any,
) -> Fitted:
    """Any width may come out, unless ``round_to`` is among ``params``."""
    method = load_method("slicegpt", {"slice_fraction": fraction, "round_to": 1, **params})
    return method.fit(wrap(model), data or slicing_texts(), Request(budget, seed, Path()))


def silence(model: PreTrainedModel, *numbers: int) -> PreTrainedModel:
    """Layers that add nothing."""
    for number in numbers:
        for name in ("self_attn.o_proj", "mlp.down_proj"):
            torch.nn.init.zeros_(layers(model)[number].get_submodule(name).weight)
    return model


@torch.no_grad()
def logits(model: Any, ids: Tensor = IDS) -> Tensor:
    return model(ids).logits


def furthest(first: Tensor, second: Tensor) -> float:
    """The largest distance between two values at the same place."""
    return float((first - second).detach().abs().max())
