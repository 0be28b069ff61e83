"""Perplexity of one document at a time, by the library's own forward pass."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from transformers import PreTrainedModel


def token_losses(model: PreTrainedModel, ids: list[int]) -> Tensor:
    """Cross-entropy of every token of one document except the first."""
    logits = model(torch.tensor([ids]), use_cache=False).logits[0, :-1]
    return torch.nn.functional.cross_entropy(logits, torch.tensor(ids[1:]), reduction="none")


def slow_perplexity(model: PreTrainedModel, texts: list[list[int]]) -> float:
    """Exponential of the mean over all predicted tokens of all documents."""
    with torch.no_grad():
        losses = torch.cat([token_losses(model, ids) for ids in texts if len(ids) > 1])
    return math.exp(float(losses.double().mean()))
