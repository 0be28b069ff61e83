"""How much what enters a projection varies, and around which mean."""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import PreTrainedModel

from methods.api import WRITERS, Data, layers, observe, projections

# Tokens whose activations are held in float64 at a time.
CHUNK = 2048


class Statistics:
    """Mean, fluctuation and energy of channels, in float64.

    Attributes:
        mean: (C,), over tokens or over documents.
        fluctuation: (C,), up to a factor that all channels share.
        energy: (C,), sum of squares over all tokens.
    """

    mean: Tensor
    fluctuation: Tensor
    energy: Tensor

    def __init__(self) -> None:
        self.seen = 0
        self.mean = self.fluctuation = self.energy = torch.zeros((), dtype=torch.float64)

    def add(self, rows: Tensor) -> None:
        """Count the tokens (n, C) of one document."""
        raise NotImplementedError


class Pooled(Statistics):
    """Every token counts the same; ``fluctuation`` is the sum of squared deviations."""

    def add(self, rows: Tensor) -> None:
        """Merge means and deviations; documents may come in any order and in parts."""
        for part in rows.split(CHUNK):
            exact = part.double()
            mean, total = exact.mean(0), self.seen + len(part)
            shift = mean - self.mean
            between = shift**2 * (self.seen * len(part) / total)
            self.fluctuation = self.fluctuation + (exact - mean).square().sum(0) + between
            self.mean = self.mean + shift * (len(part) / total)
            self.energy = self.energy + exact.square().sum(0)
            self.seen = total


class Released(Statistics):
    """As the released code counts: documents one by one, each against the mean so far."""

    def add(self, rows: Tensor) -> None:
        """The first document only moves the mean."""
        exact = rows.double()
        before, self.seen = self.seen, self.seen + 1
        self.mean = (self.mean * before + exact.mean(0)) / self.seen
        apart = (exact - self.mean).square().sum(0)
        self.fluctuation = self.fluctuation + apart * (before / self.seen)
        self.energy = self.energy + exact.square().sum(0)


def fluctuations(model: PreTrainedModel, data: Data, kind: str) -> list[dict[str, Statistics]]:
    """Statistics of what enters o_proj and down_proj of each layer, over all real tokens.

    Args:
        model: Dense model.
        data: Gives ``calibration()``.
        kind: ``"variance"`` or ``"released"``.

    Raises:
        ValueError: There is nothing to vary over: one token, or one document as released.
    """
    pooled = kind == "variance"
    found: list[dict[str, Statistics]] = [
        {name: Pooled() if pooled else Released() for name in WRITERS} for _ in layers(model)
    ]
    modules = [projections(layer)[name] for layer in layers(model) for name in WRITERS]
    parts = [part[name] for part in found for name in WRITERS]
    for batch in data.calibration(16 if pooled else 1):
        observe(model, batch, modules, lambda number, given, _: parts[number].add(given))
    if parts[0].seen < 2:
        least = "tokens" if pooled else "documents"
        raise ValueError(f"param 'fluctuation' is '{kind}', which needs two calibration {least}")
    return found
