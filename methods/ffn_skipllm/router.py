"""Skips the next FFNs of a token once one of them hardly turned its hidden states."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from methods.api import (
    Backbone,
    Batch,
    Context,
    Gate,
    Router,
    Tokens,
    Unit,
    decoder,
    ffn_norm,
    layers,
)


class SkippingRouter(Router):
    """Skips the next FFNs of a token once one has hardly turned its stream.

    Args:
        units: FFNs of R adjacent layers.
        tau: Cosine from which on an FFN that ran lets the next ones be skipped.
        run_length: How many, at most: k.
        warmup: Positions of a sequence that never start to skip: w.
        spread: Median of 1 - cosine, which makes tau = 1 - spread a threshold of 0.5.
    """

    def __init__(
        self, units: list[Unit], tau: float, run_length: int, warmup: int, spread: float
    ) -> None:
        super().__init__()
        self.units, self.tau, self.run_length = units, tau, run_length
        self.warmup, self.spread = warmup, spread

    @property
    def threshold(self) -> float:
        """Tau on a scale from 0, nothing is skipped, to 1: (1 - tau) / (1 - tau + spread)."""
        return (1 - self.tau) / (1 - self.tau + self.spread)

    @threshold.setter
    def threshold(self, value: float) -> None:
        self.tau = 1 - self.spread * value / (1 - value)

    def start(self, tokens: Tokens, hidden: Tensor, at: Context) -> Any:
        """Stream behind attention; who ran the FFN, how many a run still holds, who may skip."""
        nothing = torch.zeros_like(tokens.valid)
        left = torch.zeros_like(tokens.positions)
        return hidden, nothing, left, tokens.positions >= self.warmup

    def gate(
        self,
        index: int,
        block_input: Tensor,
        post_attention: Tensor | None,
        state: Any,
        at: Context,
    ) -> tuple[Gate, Any]:
        """Skip what a run still holds; ``block_input`` is what the last FFN made of the stream."""
        before, ran, left, warm = state
        starts = ran & warm & (turn(before, block_input) <= 1 - self.tau)
        left = left.masked_fill(starts, self.run_length)
        execute = left == 0
        after = (post_attention, execute, (left - 1).clamp(min=0), warm)
        return Gate(execute=execute), after


def turn(before: Tensor, after: Tensor) -> Tensor:
    """1 - cosine of two streams (..., D), in float32; exactly 0 where they are equal."""
    apart = normalize(after.float(), dim=-1) - normalize(before.float(), dim=-1)
    return apart.square().sum(dim=-1) / 2


@torch.no_grad()
def ffn_turns(backbone: Backbone, batches: Iterable[Batch]) -> list[Tensor]:
    """By how much the FFN of each layer turns the residual stream, L tensors (N,) of N tokens.

    Args:
        backbone: Dense model.
        batches: Right-padded; pads are left out.
    """
    model, entering = backbone.model, list[Tensor]()
    turns: list[list[Tensor]] = [[] for _ in layers(model)]
    hooks = []
    for layer, found in zip(layers(model), turns, strict=True):
        hooks += [
            ffn_norm(layer).register_forward_pre_hook(lambda _, given: entering.append(given[0])),
            layer.register_forward_hook(
                lambda _, __, output, found=found: found.append(turn(entering.pop(), output))
            ),
        ]
    valid = []
    try:
        for batch in batches:
            # Right padding leaves real tokens untouched in a causal model.
            decoder(model)(batch.ids.to(model.device), use_cache=False)
            valid.append(batch.valid.to(model.device))
    finally:
        for hook in hooks:
            hook.remove()
    kept = [zip(found, valid, strict=True) for found in turns]
    return [torch.cat([each[real] for each, real in pairs]).cpu() for pairs in kept]
