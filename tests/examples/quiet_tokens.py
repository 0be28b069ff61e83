"""Quiet tokens: those that attention hardly moved skip an FFN."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from methods.api import (
    Backbone,
    Context,
    Gate,
    RoutedMethod,
    Router,
    Unit,
    ffn_units,
)


class QuietTokens(RoutedMethod):
    """A token skips the FFN of a late layer whose attention hardly moved it.

    Formula: g = |a| / (|a| + |x|), x enters the layer, attention adds a; executes where g reaches
    the threshold.
    """

    title = "Quiet tokens"
    source = "an example"
    kind = "dynamic"
    trained = False
    stochastic = False
    budgeted = True
    causal = True

    def units(self, backbone: Backbone, layers: list[int]) -> list[Unit]:
        """FFNs."""
        return ffn_units(backbone.model, layers)

    def router(self, backbone: Backbone, units: list[Unit], structure: Mapping[str, Any]) -> Router:
        """Nothing to make."""
        return QuietRouter(units)


class QuietRouter(Router):
    """Compares what attention adds with what enters."""

    def __init__(self, units: list[Unit]) -> None:
        super().__init__()
        self.units, self.threshold = units, 0.5

    def gate(
        self,
        index: int,
        block_input: Tensor,
        post_attention: Tensor | None,
        state: Any,
        at: Context,
    ) -> tuple[Gate, Any]:
        """The share of attention in what leaves it."""
        assert post_attention is not None
        size = block_input.float().norm(dim=-1)
        added = (post_attention - block_input).float().norm(dim=-1)
        return Gate(added / (added + size)), state
