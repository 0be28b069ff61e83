"""Mean and variation of the inputs of a projection."""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import PreTrainedModel

from methods.api import WRITERS, Data, layers, observe, projections

# So many tokens at a time are in float64.
CHUNK = 2048


class Statistics:
    """Mean, fluctuation and energy of each channel, in float64.

    Attributes:
        mean: (C,), over tokens or over documents.
        fluctuation: (C,), up to a factor that is the same for all channels.
        energy: (C,), sum of squares over all tokens.
    """

    mean: Tensor
    fluctuation: Tensor
    energy: Tensor

    def __init__(self) -> None:
        self.count = 0
        self.mean = self.fluctuation = self.energy = torch.zeros((), dtype=torch.float64)

    def add(self, rows: Tensor) -> None:
        """Add the tokens (n, C) of one document."""
        raise NotImplementedError


class Pooled(Statistics):
    """Every token has the same weight; ``fluctuation`` is the sum of squared deviations."""

    def add(self, rows: Tensor) -> None:
        """Merge means and deviations, in parts; the order of documents does not matter."""
        for part in rows.split(CHUNK):
            exact = part.double()
            mean, total = exact.mean(0), self.count + len(part)
            shift = mean - self.mean
            between = shift**2 * (self.count * len(part) / total)
            self.fluctuation = self.fluctuation + (exact - mean).square().sum(0) + between
            self.mean = self.mean + shift * (len(part) / total)
            self.energy = self.energy + exact.square().sum(0)
            self.count = total


class Released(Statistics):
    """As in the released code: one document at a time, against the mean of those so far."""

    def add(self, rows: Tensor) -> None:
        """Add a document; the first one only sets the mean."""
        exact = rows.double()
        before, self.count = self.count, self.count + 1
        self.mean = (self.mean * before + exact.mean(0)) / self.count
        squares = (exact - self.mean).square().sum(0)
        self.fluctuation = self.fluctuation + squares * (before / self.count)
        self.energy = self.energy + exact.square().sum(0)


def fluctuations(model: PreTrainedModel, data: Data, kind: str) -> list[dict[str, Statistics]]:
    """Statistics of the inputs of o_proj and down_proj in each layer, over all real tokens.

    Args:
        model: Dense model.
        data: Gives ``calibration()``.
        kind: ``"variance"`` or ``"released"``.

    Raises:
        ValueError: One token, or one document if ``"released"``, has no variation.
    """
    pooled = kind == "variance"
    statistics: list[dict[str, Statistics]] = [
        {name: Pooled() if pooled else Released() for name in WRITERS} for _ in layers(model)
    ]
    modules = [projections(layer)[name] for layer in layers(model) for name in WRITERS]
    parts = [by_name[name] for by_name in statistics for name in WRITERS]
    for batch in data.calibration(16 if pooled else 1):
        observe(model, batch, modules, lambda number, inputs, _: parts[number].add(inputs))
    if parts[0].count < 2:
        least = "tokens" if pooled else "documents"
        raise ValueError(f"param 'fluctuation' is '{kind}', which needs two calibration {least}")
    return statistics
