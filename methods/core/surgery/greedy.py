"""Greedy removal by perplexity: which part does the model need least?"""

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
from methods.core.model.backbone import (
    attention,
    attention_norm,
    ffn,
    ffn_norm,
    finish,
    layers,
)
from methods.core.surgery.layers import empty_sublayer
from methods.core.surgery.layerwise import Call, layer_calls, predicted_tokens
from methods.core.training.losses import next_token_loss


class Part(NamedTuple):
    """A layer, 0-based, or one of its sublayers with its norm."""

    kind: Literal["block", "attention", "ffn"]
    layer: int


class Round(NamedTuple):
    """A round of the search: the part to remove, and the perplexity without each part."""

    best: Part
    perplexities: dict[Part, float]


def greedy_rounds(
    model: PreTrainedModel, batches: Sequence[Batch], parts: Sequence[Part]
) -> Iterator[Round]:
    """Find the part without which perplexity is lowest, remove it, and search again.

    A part is removed, in place, when the next round is asked for; so the part of the last round
    stays. The model then works without a cache only: ``remove_layers`` and ``remove_sublayers``
    must finish it.

    Args:
        model: Causal LM.
        batches: Calibration documents, right-padded.
        parts: The parts that may go; they do not overlap. Of equal ones the first goes.

    Raises:
        ValueError: A perplexity is no number, or no document has a token to predict.
    """
    candidates = list(parts)
    while candidates:
        scores = dict(zip(candidates, perplexities(model, batches, candidates), strict=True))
        for part, value in scores.items():
            if not math.isfinite(value):
                raise ValueError(f"without {part.kind} {part.layer} the perplexity is no number")
        best = min(candidates, key=scores.__getitem__)
        yield Round(best, scores)
        candidates.remove(best)
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

    It is the exponential of the mean next-token loss over all tokens of all documents. The input of
    a layer does not depend on the layer, so a trial runs only this layer and the later ones.
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
    """The output (B, T, D) of a layer without one of its parts."""
    hidden = call.hidden
    if kind == "attention":
        return hidden + finish(layer, "ffn", ffn(layer)(ffn_norm(layer)(hidden)))
    if kind == "ffn":
        output = attention(layer)(hidden_states=attention_norm(layer)(hidden), **call.options)[0]
        return hidden + finish(layer, "attention", output)
    return hidden
