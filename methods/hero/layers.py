"""HeRo's gates for whole layers: attention and FFN share one, decided at the layer's input."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from methods.api import Context, Gate, Router, Tokens, Unit
from methods.hero.branch import Adapter
from methods.hero.reading import PathState
from methods.hero.router import HeroRouter


class LayerState(NamedTuple):
    """HeRo's state; the input of the last layer (B, T, D); the gate of this layer (B, T)."""

    path: PathState
    before: Tensor
    gate: Tensor | None


class LayerGates(Router):
    """Reads the residual stream at a layer's input; HeRo reads it after attention.

    Formula: as in FlexiDepth, attention is not scaled, and every token has its key and value:
        run:  x = h + Attention(LN1(h)),  out = x + g FFN(LN2(x))
        skip: out = h + (1 - g) Adapter(LN2(h))

    Args:
        gates: HeRo's router, with one FFN per layer.
        units: Attention and FFN of each layer, in turn.
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
        """Set it for HeRo's gates."""
        self.gates.threshold = value

    def start(self, tokens: Tokens, hidden: Tensor, at: Context) -> LayerState:
        """An empty memory; the first change is measured from the embeddings on."""
        return LayerState(self.gates.empty(hidden), hidden, None)

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
        if not second:
            stream = self.gates.read(state.before, block_input)
            trace, path = self.gates.step(layer, stream, state.path)
            state = LayerState(path, block_input, trace.gate)
        return Gate(state.gate, "gate" if second else "none"), state

    def alternative(self, index: int) -> Adapter | None:
        """The adapter of the layer, for its FFN."""
        return self.gates.alternative(index // 2) if index % 2 else None
