"""HeRo's gates for whole layers: attention and FFN of a layer share one, decided at its input."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from methods.core.routing.router import Context, Decision, Router, Tokens, Unit
from methods.hero.branch import Adapter
from methods.hero.router import HeroRouter, PathState


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
    ) -> tuple[Decision, LayerState]:
        """Of attention: a gate, which the FFN behind it takes as well."""
        block, second = divmod(index, 2)
        if not second:
            read = self.gates.read(state.before, block_input)
            trace, path = self.gates.step(block, read, state.path)
            state = LayerState(path, block_input, trace.gate)
        assert state.gate is not None
        execute = at.settle(index, state.gate >= self.threshold)
        scale = torch.where(execute, state.gate, 1 - state.gate) if second else None
        return Decision(execute, scale, state.gate), state

    def bare(self, state: LayerState) -> LayerState:
        """Without what follows from the path's streams."""
        return state._replace(path=self.gates.bare(state.path))

    def otherwise(self, index: int) -> Adapter | None:
        """The adapter of the layer, for its FFN."""
        return self.gates.otherwise(index // 2) if index % 2 else None
