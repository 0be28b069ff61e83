"""HeRo's gates for whole layers: attention and FFN of a layer share one, decided at its input."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from methods.api import Context, Gate, Router, Tokens, Unit
from methods.hero.branch import Adapter
from methods.hero.reading import PathState
from methods.hero.router import HeroRouter


class LayerState(NamedTuple):
    """HeRo's state, the last layer's input (B, T, D), and the gate of the layer at hand (B, T)."""

    path: PathState
    before: Tensor
    gate: Tensor | None


class BlockRouter(Router):
    """Reads the residual stream at a layer's input where HeRo reads it behind attention.

    Formula: as FlexiDepth's, attention is not scaled, and keys and values are made for every token:
        executed: x = h + Attention(LN1(h)),  out = x + g FFN(LN2(x))
        bypassed: out = h + (1 - g) Adapter(LN2(h))

    Args:
        gates: HeRo's router with as many blocks.
        units: Attention and FFN of its layers in turn.
    """

    shared = True

    def __init__(self, gates: HeroRouter, units: list[Unit]) -> None:
        super().__init__()
        self.gates, self.units = gates, units

    @property
    def threshold(self) -> float:
        """Of HeRo's gates."""
        return self.gates.threshold

    @threshold.setter
    def threshold(self, value: float) -> None:
        self.gates.threshold = value

    def start(self, tokens: Tokens, hidden: Tensor, at: Context) -> LayerState:
        """An empty memory; the first routed layer's change is counted from the embeddings."""
        return LayerState(self.gates.empty(hidden), hidden, None)

    def gate(
        self,
        index: int,
        block_input: Tensor,
        post_attention: Tensor | None,
        state: LayerState,
        at: Context,
    ) -> tuple[Gate, LayerState]:
        """Of attention: a gate, which the FFN behind it takes as well."""
        block, second = divmod(index, 2)
        if not second:
            read = self.gates.read(state.before, block_input)
            trace, path = self.gates.step(block, read, state.path)
            state = LayerState(path, block_input, trace.gate)
        return Gate(state.gate, "gate" if second else "none"), state

    def alternative(self, index: int) -> Adapter | None:
        """The adapter of the layer, for its FFN."""
        return self.gates.alternative(index // 2) if index % 2 else None
