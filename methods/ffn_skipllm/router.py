"""The router of FFN-SkipLLM, and by how much each FFN turns the hidden states."""

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
    ffn_entry,
    layers,
)


class SkippingRouter(Router):
    """Skips the next FFNs of a token once an FFN has hardly turned its hidden states.

    Args:
        units: FFNs of R adjacent layers.
        tau: If the cosine before and after an FFN reaches tau, the next FFNs are skipped.
        run_length: k, how many of them.
        warmup: w; the first w positions of a sequence skip nothing.
        spread: Median of 1 - cosine; tau = 1 - spread is a threshold of 0.5.
    """

    def __init__(
        self, units: list[Unit], tau: float, run_length: int, warmup: int, spread: float
    ) -> None:
        super().__init__()
        self.units, self.tau, self.run_length = units, tau, run_length
        self.warmup, self.spread = warmup, spread

    @property
    def threshold(self) -> float:
        """Tau on a scale from 0 (no skips) to 1: (1 - tau) / (1 - tau + spread)."""
        return (1 - self.tau) / (1 - self.tau + self.spread)

    @threshold.setter
    def threshold(self, value: float) -> None:
        """Set tau by this scale."""
        self.tau = 1 - self.spread * value / (1 - value)

    def start(self, tokens: Tokens, hidden: Tensor, at: Context) -> Any:
        """States before the last FFN; who ran it; how many FFNs are to be skipped; who may skip."""
        ran = torch.zeros_like(tokens.valid)
        to_skip = torch.zeros_like(tokens.positions)
        return hidden, ran, to_skip, tokens.positions >= self.warmup

    def gate(
        self,
        index: int,
        block_input: Tensor,
        post_attention: Tensor | None,
        state: Any,
        at: Context,
    ) -> tuple[Gate, Any]:
        """Skip while FFNs are to be skipped; ``block_input`` is the result of the last FFN."""
        before, ran, to_skip, warm = state
        starts = ran & warm & (turn(before, block_input) <= 1 - self.tau)
        to_skip = to_skip.masked_fill(starts, self.run_length)
        execute = to_skip == 0
        after = (post_attention, execute, (to_skip - 1).clamp(min=0), warm)
        return Gate(execute=execute), after


def turn(before: Tensor, after: Tensor) -> Tensor:
    """1 - cosine of two states (..., D), in float32; exactly 0 if they are equal."""
    difference = normalize(after.float(), dim=-1) - normalize(before.float(), dim=-1)
    return difference.square().sum(dim=-1) / 2


@torch.no_grad()
def ffn_turns(backbone: Backbone, batches: Iterable[Batch]) -> list[Tensor]:
    """By how much the FFN of each layer turns the hidden states of N tokens: L tensors (N,).

    Args:
        backbone: Dense model.
        batches: Right-padded; pads do not count.
    """
    model, inputs = backbone.model, list[Tensor]()
    turns: list[list[Tensor]] = [[] for _ in layers(model)]
    hooks = []
    for layer, of_layer in zip(layers(model), turns, strict=True):
        hooks += [
            ffn_entry(layer).register_forward_pre_hook(lambda _, args: inputs.append(args[0])),
            layer.register_forward_hook(
                lambda _, __, output, turns=of_layer: turns.append(turn(inputs.pop(), output))
            ),
        ]
    valid = []
    try:
        for batch in batches:
            # No attention mask: in a causal model no token sees the pads to its right.
            decoder(model)(batch.ids.to(model.device), use_cache=False)
            valid.append(batch.valid.to(model.device))
    finally:
        for hook in hooks:
            hook.remove()
    batches_of_layers = [zip(of_layer, valid, strict=True) for of_layer in turns]
    return [torch.cat([part[mask] for part, mask in each]).cpu() for each in batches_of_layers]
