"""Linear gates: a trained linear map per layer lets each token skip the FFN."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from methods.api import (
    Backbone,
    Context,
    Gate,
    RoutedMethod,
    Router,
    TrainingParams,
    Unit,
    ffn_units,
    generator,
)


class LinearGates(RoutedMethod):
    """A linear map of what enters a late layer gates its FFN; HeRo's penalty, no adapter.

    Formula: g = sigmoid(w . x + 2); out = x + g FFN where g reaches the threshold, else x.
    """

    title = "Linear gates"
    source = "an example"
    kind = "dynamic"
    trained = True
    stochastic = True
    budgeted = True
    causal = True
    knob = "alpha"

    @dataclass(frozen=True)
    class Params(TrainingParams):
        """See the class."""

        alpha: float | None = None  # weight of the penalty; None: controlled to the budget

    def units(self, backbone: Backbone, layers: list[int]) -> list[Unit]:
        """FFNs."""
        return ffn_units(backbone.model, layers)

    def router(self, backbone: Backbone, units: list[Unit], structure: Mapping[str, Any]) -> Router:
        """A vector per layer."""
        return LinearRouter(units, int(backbone.config.hidden_size), structure["seed"])


class LinearRouter(Router):
    """Reads the layer's input in float32."""

    def __init__(self, units: list[Unit], width: int, seed: int) -> None:
        super().__init__()
        self.units, self.threshold = units, 0.5
        self.maps = nn.ModuleList(nn.Linear(width, 1, bias=False) for _ in units)
        rng = generator(seed, "initial values")
        for weight in (each for each in self.maps.parameters() if not each.is_meta):
            nn.init.normal_(weight, std=0.02, generator=rng)

    def gate(
        self,
        index: int,
        block_input: Tensor,
        post_attention: Tensor | None,
        state: Any,
        at: Context,
    ) -> tuple[Gate, Any]:
        """A gate that also scales the FFN, which is how the loss reaches it."""
        with torch.autocast(block_input.device.type, enabled=False):
            logit = self.maps[index](block_input.float()).squeeze(-1)
        return Gate(torch.sigmoid(logit + 2), "gate"), state
