"""HeRo's gates for whole layers: attention and FFN share one, decided at the layer's input."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor

from methods.api import Context, Gate, Router, Tokens, Unit
from methods.hero.adapter import Adapter
from methods.hero.router import HeroRouter


class LayerState(NamedTuple):
    """HeRo's state; the input of the last layer (B, T, D); the gate of this layer."""

    path: Any
    before: Tensor
    gate: Gate


class LayerGates(Router):
    """Reads the residual stream at a layer's input; HeRo reads it after attention.

    Formula: as in FlexiDepth, attention is not scaled, and every token has its key and value:
        run:  x = h + Attention(LN1(h)),  out = x + g FFN(LN2(x))
        skip: out = h + (1 - g) Adapter(LN2(h))

    Args:
        gates: HeRo's router, with one FFN per layer.
        units: Attention and FFN of each layer, in turn.
    """

    heavy, shared = True, True

    def __init__(self, gates: HeroRouter, units: list[Unit]) -> None:
        super().__init__()
        self.gates, self.units = gates, units

    @property
    def threshold(self) -> float:
        """Of HeRo's gates."""
        return self.gates.threshold

    @threshold.setter
    def threshold(self, value: float) -> None:
        """Set it for HeRo's gates."""
        self.gates.threshold = value

    @property
    def by_kernels(self) -> bool:
        """As HeRo's gates are."""
        return self.gates.by_kernels

    def start(self, tokens: Tokens, hidden: Tensor, at: Context) -> LayerState:
        """An empty memory; the first change is measured from the embeddings on."""
        return LayerState(self.gates.start(tokens, hidden, at), hidden, Gate())

    def gate(
        self,
        index: int,
        block_input: Tensor,
        post_attention: Tensor | None,
        state: LayerState,
        at: Context,
    ) -> tuple[Gate, LayerState]:
        """Decide at the attention; the FFN after it takes the same gate."""
        layer, second = divmod(index, 2)
        if second:
            return state.gate, state
        gate, path = self.gates.gate(layer, state.before, block_input, state.path, at)
        return gate._replace(scale="none"), LayerState(path, block_input, gate)

    def alternative(self, index: int) -> Adapter | None:
        """The adapter of the layer, for its FFN."""
        return self.gates.alternative(index // 2) if index % 2 else None
