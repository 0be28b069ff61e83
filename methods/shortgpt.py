"""ShortGPT: delete the layers that change the hidden states least."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import torch
from torch import Tensor, nn

from methods.api import (
    Backbone,
    Data,
    Fitted,
    Method,
    Rates,
    Request,
    decoder,
    layers,
    layers_to_remove,
    remove_layers,
    unremovable,
)


class ShortGPT(Method):
    """Scores every layer of the dense model once, by its Block Influence, and deletes the lowest.

    Nothing is trained, and nothing is scored again after a deletion.

    Formula: BI_i = mean over tokens of 1 - cos(h_i, h_{i+1}). h_i (D,) are the hidden states at the
    input of layer i, and h_L are the last ones. A cosine with a zero vector counts as 0.5.

    Args of ``Params``:
        layers: Number of layers to delete; None: the number nearest to the budget.
        last_layer: What h_L is: ``"post_norm"``: after the final norm, as in the authors' code;
            ``"raw"``: the output of the last layer.
        distance: ``"cosine"``: 1 - cos; ``"angular"``: arccos(cos) / pi, which the authors' code
            offers but does not use.
    Source: Men et al., ShortGPT: Layers in Large Language Models are More Redundant Than You
        Expect, arXiv 2403.03853, equation 1 and section 3.2.
    Differs from upstream: scores are a mean over tokens, not a sum (the order is the same). Each
        document is read in one piece, its first ``max_length`` tokens, not in chunks of 256.
        Cosines are computed in float32: in float16 products of the first token's states overflow.
        Of equal layers the lower one is deleted.
    """

    title = "ShortGPT"
    source = "arXiv 2403.03853"
    kind = "static"
    trained = False
    stochastic = False
    budgeted = True
    causal = True

    @dataclass(frozen=True)
    class Params:
        """See the class."""

        layers: int | None = None
        last_layer: Literal["post_norm", "raw"] = "post_norm"
        distance: Literal["cosine", "angular"] = "cosine"

    def skip_reason(self, backbone: Backbone, request: Request) -> str | None:
        """A reason if neither budget nor param ``layers`` is set, or the layers hold too little."""
        return unremovable(backbone, request.budget, self.params.layers)

    def fit(self, backbone: Backbone, data: Data, request: Request) -> Fitted:
        """Score the layers on the calibration documents and delete the lowest."""
        number, trace = layers_to_remove(backbone, request.budget, self.params.layers)
        scores = block_influence(backbone, data, self.params.last_layer, self.params.distance)
        order = sorted(range(len(scores)), key=lambda layer: (scores[layer], layer))
        removed = order[:number]
        ends = sorted({0, len(scores) - 1} & set(removed))
        if ends:
            warnings.warn(
                f"layers {ends}, at an end, are among the least influential", stacklevel=2
            )
        decisions = {"scores": scores, "removed_layers": removed, "budget_search": trace}
        structure = {"removed_layers": removed}
        return Fitted(self.build(backbone, structure), structure, decisions)

    def build(self, backbone: Backbone, structure: Mapping[str, Any]) -> nn.Module:
        """The backbone without the removed layers."""
        return remove_layers(backbone.model, structure["removed_layers"])

    def authors_skip(self, rates: Rates) -> float:
        """The share of layers removed."""
        return 1.0 - rates.ledger.layers / rates.ledger.dense_layers


@torch.no_grad()
def block_influence(backbone: Backbone, data: Data, last_layer: str, distance: str) -> list[float]:
    """Block Influence of each layer, a mean over all tokens of the calibration documents.

    Args:
        backbone: Dense model.
        data: Gives ``calibration()``; pads do not count.
        last_layer: ``"post_norm"`` or ``"raw"``.
        distance: ``"cosine"`` or ``"angular"``.

    Returns:
        L scores, 0-based by layer.
    """
    model = backbone.model
    raw: list[Tensor] = []
    last = layers(model)[-1]
    hook = last.register_forward_hook(lambda module, inputs, output: raw.append(output))
    sums, tokens = torch.zeros(backbone.layer_count, dtype=torch.float64), 0
    try:
        for batch in data.calibration():
            raw.clear()
            ids, valid = batch.ids.to(model.device), batch.valid.to(model.device)
            # No attention mask: in a causal model no token sees the pads to its right.
            output = decoder(model)(ids, output_hidden_states=True, use_cache=False)
            # Transformers gives the last states after the final norm.
            last_states = raw if last_layer == "raw" else output.hidden_states[-1:]
            states = (s[valid].float() for s in (*output.hidden_states[:-1], *last_states))
            distances = [_distance(a, b, distance).double().sum() for a, b in pairwise(states)]
            sums += torch.stack(distances).cpu()
            tokens += int(valid.sum())
            # Free the states of this batch before the next batch makes its own.
            del output, last_states, states
    finally:
        hook.remove()
    return [float(value) for value in sums / tokens]


def _distance(before: Tensor, after: Tensor, distance: str) -> Tensor:
    """Distance of two states (n, D) per token: 1 - cos or arccos(cos) / pi."""
    norms = before.norm(dim=-1) * after.norm(dim=-1)
    cosine = torch.where(norms == 0, 0.5, (before * after).sum(-1) / norms)
    if distance == "angular":
        return torch.arccos(cosine.clamp(-1, 1)) / math.pi
    return 1.0 - cosine
