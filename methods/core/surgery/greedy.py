"""Removal by perplexity: without which part do the calibration documents stay likeliest?"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn
from tqdm import tqdm
from transformers import PreTrainedModel

from methods.core.data import Batch
from methods.core.model.backbone import attention, attention_norm, ffn, ffn_norm, layers
from methods.core.surgery.layers import empty_sublayer
from methods.core.surgery.layerwise import Call, layer_calls, predicted_tokens
from methods.core.training.losses import next_token_loss


class Part(NamedTuple):
    """A layer, 0-based, or one of its two residual branches with the norm in front of it."""

    kind: Literal["block", "attention", "ffn"]
    layer: int


class Round(NamedTuple):
    """A round of the greedy search: the part that goes, and the perplexity without each part."""

    best: Part
    perplexities: dict[Part, float]


def greedy_rounds(
    model: PreTrainedModel, batches: Sequence[Batch], parts: Sequence[Part]
) -> Iterator[Round]:
    """Name the part without which perplexity is lowest, take it out, look again at the rest.

    A part is taken out, in place, when the next round is asked for: the last one named stays. The
    model is then right without a cache only; ``remove_layers`` and ``remove_sublayers`` finish it.

    Args:
        model: Causal LM.
        batches: Calibration documents, right-padded.
        parts: Those that may go, disjoint; of equal ones the first goes.

    Raises:
        ValueError: A perplexity is no number, or no document has a token to predict.
    """
    left = list(parts)
    while left:
        found = dict(zip(left, perplexities(model, batches, left), strict=True))
        for part, value in found.items():
            if not math.isfinite(value):
                raise ValueError(f"without {part.kind} {part.layer} the perplexity is no number")
        best = min(left, key=found.__getitem__)
        yield Round(best, found)
        left.remove(best)
        layer = layers(model)[best.layer]
        if best.kind != "ffn":
            empty_sublayer(layer, "attention")
        if best.kind != "attention":
            empty_sublayer(layer, "ffn")


def greedy_passes(parts: int, rounds: int) -> float:
    """Forward passes over the texts that so many rounds take.

    A round runs the model once, and for each of the parts that are left the layers above it: half
    a pass.
    """
    return rounds * (1 + (parts - rounds / 2) / 2)


@torch.no_grad()
def perplexities(
    model: PreTrainedModel, batches: Sequence[Batch], parts: Sequence[Part]
) -> list[float]:
    """Perplexity of the calibration documents without each of P parts in turn, (P,).

    The exponential of the mean next-token loss, all tokens of all documents pooled. What enters a
    layer does not depend on it, so each trial runs only the layers above.
    """
    tokens, stack = sum(predicted_tokens(batches)), layers(model)
    losses = torch.zeros(len(parts), dtype=torch.float64)
    for batch in tqdm(batches, desc="batches", mininterval=2, file=sys.stderr):
        calls = [call for (call,) in layer_calls(model, [batch])[0]]
        for place, (kind, number) in enumerate(parts):
            hidden = _without(kind, stack[number], calls[number])
            for layer, call in zip(stack[number + 1 :], calls[number + 1 :], strict=True):
                hidden = layer(hidden, **call.options)
            losses[place] += float(next_token_loss(model, hidden, batch)[0])
    return [float(score) for score in (losses / tokens).exp()]


def _without(kind: str, layer: nn.Module, call: Call) -> Tensor:
    """What a layer returns (B, T, D) where one of its parts is left out."""
    hidden = call.hidden
    if kind == "attention":
        update: Tensor = ffn(layer)(ffn_norm(layer)(hidden))
        return hidden + update
    if kind == "ffn":
        update = attention(layer)(hidden_states=attention_norm(layer)(hidden), **call.options)[0]
        return hidden + update
    return hidden
