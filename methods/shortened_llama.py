"""Shortened LLaMA: delete the layers whose absence, or whose weights, matter least to the loss."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from methods.api import (
    Backbone,
    Batch,
    Cost,
    Data,
    Fitted,
    Method,
    Part,
    Rates,
    Request,
    attention_norm,
    check_least,
    ffn_norm,
    gradient_reason,
    layer_gradients,
    layers,
    layers_to_remove,
    norm_behind,
    norm_offset,
    perplexities,
    projection_weights,
    remove_layers,
    unremovable,
)

REDUCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "sum": torch.sum,
    "mean": torch.mean,
    "max": torch.amax,
    "prod": torch.prod,
}
Reduction = Literal["sum", "mean", "max", "prod"]


class ShortenedLlama(Method):
    """Scores every layer of the dense model once and deletes the lowest of the unprotected ones.

    Nothing is trained, and nothing is scored again after a deletion.

    Formula: ppl: score_i = exp(mean of -log p(token)) of the model that skips layer i; the mean is
    over all predicted tokens of all documents. taylor: S_W = sum over batches of W * dloss/dW,
    signed and element by element; the loss is the mean over the predicted tokens of a batch. A
    matrix sums |S_W|^p over its inputs, and its score is the ``weight_reduction`` of these sums
    over its outputs. The score of a norm is the ``weight_reduction`` of |S_W|^p. The score of a
    layer is the ``block_reduction`` of the scores of its seven matrices and its norms. magnitude:
    the same with S_W = W.

    Args of ``Params``:
        criterion: ``"ppl"``, ``"taylor"`` or ``"magnitude"``.
        layers: Number of layers to delete; None: the number nearest to the budget.
        norm: p of taylor and magnitude.
        weight_reduction: From the outputs of a weight to its score.
        block_reduction: From the weights of a layer to its score.
        protect: Which layers always stay. True, the rule that the paper marks with "+": the first
            round(L / 8), at most 4, and the last round(L / 16), at most 2; from 32 layers on these
            are the authors' 4 and 2. False: none. Two numbers: how many first and last ones.
        samples: How many calibration documents are used, from the first on; None: all.
        length: Tokens taken from the middle of each document (at most ``max_length``); shorter
            documents are left out. None: whole documents.
        batch_size: Documents per loss of taylor; None: one loss of all. Scores grow with the number
            of batches, because each batch adds a mean.

    Memory: the model, 16 GB at 8B in bfloat16. ppl adds what enters each layer for one batch of 16
    documents. taylor adds what enters each layer for all documents (0.3 GB for the authors' 1,280
    tokens) and the activations and gradients of one layer (1 GB). Both add the logits of 2,048
    positions.

    Source: Kim et al., Shortened LLaMA: Depth Pruning for Large Language Models with Comparison of
        Retraining Methods, arXiv 2402.02834, sections 2 and 3.
    Differs from upstream: the states below a skipped layer are computed once, and no model is built
        for each layer. Gradients are computed layer by layer. Documents are batched, and pads do
        not count. Excerpts come from the middle of the calibration documents, not from random
        windows of BookCorpus. Shallow models protect fewer layers. Of equal layers the lower one is
        deleted. No training follows.
    """

    title = "Shortened LLaMA ({criterion})"
    source = "arXiv 2402.02834"
    kind = "static"
    trained = False
    stochastic = False
    budgeted = True
    causal = True
    rows = {"shortened-ppl": {"criterion": "ppl"}, "shortened-taylor": {"criterion": "taylor"}}

    @dataclass(frozen=True)
    class Params:
        """See the class. The authors calibrate on 10 samples of 128 tokens in one batch."""

        criterion: Literal["ppl", "taylor", "magnitude"] = "ppl"
        layers: int | None = None
        norm: Literal[1, 2] = 1
        weight_reduction: Reduction = "sum"
        block_reduction: Reduction = "sum"
        protect: bool | list[int] = True
        samples: int | None = None
        length: int | None = None
        batch_size: int | None = None

        def __post_init__(self) -> None:
            check_least(self, 1, "samples", "length", "batch_size")
            if not isinstance(self.protect, bool) and (
                len(self.protect) != 2 or min(self.protect) < 0
            ):
                raise ValueError(
                    f"param 'protect' is {self.protect}, must be true, false or two numbers from 0"
                )

    def skip_reason(self, backbone: Backbone, request: Request) -> str | None:
        """No number of layers is set, too few are unprotected, or float16 is too narrow."""
        free = len(self._unprotected(backbone.layer_count))
        reason = unremovable(backbone, request.budget, self.params.layers, free)
        if reason is not None:
            return reason
        return gradient_reason(backbone.model) if self.params.criterion == "taylor" else None

    def fit(self, backbone: Backbone, data: Data, request: Request) -> Fitted:
        """Score the layers on the calibration documents and delete the lowest."""
        total = backbone.layer_count
        free = self._unprotected(total)
        pinned = self.params.layers
        number, trace = layers_to_remove(backbone, request.budget, pinned, len(free))
        scores = self._scores(backbone.model, data)
        wrong = [index for index, score in enumerate(scores) if not math.isfinite(score)]
        if wrong:
            raise ValueError(f"criterion '{self.params.criterion}': layers {wrong} score no number")
        removed = sorted(free, key=lambda layer: (scores[layer], layer))[:number]
        decisions = {
            "scores": scores,
            "removed_layers": removed,
            "protected": sorted(set(range(total)) - set(free)),
            "budget_search": trace,
        }
        structure = {"removed_layers": removed}
        return Fitted(self.build(backbone, structure), structure, decisions)

    def build(self, backbone: Backbone, structure: Mapping[str, Any]) -> nn.Module:
        """The backbone without the removed layers."""
        return remove_layers(backbone.model, structure["removed_layers"])

    def cost(self, backbone: Backbone, request: Request) -> Cost:
        """A pass without each layer (ppl), or forward, and each layer again and backward (taylor).

        The states below a layer are computed once, so that ppl takes less.
        """
        params = self.params
        passes = {"ppl": backbone.layer_count, "taylor": 4, "magnitude": 0}[params.criterion]
        batch = None if params.criterion == "taylor" else 16
        return Cost(passes, texts=params.samples, length=params.length, batch=batch)

    def authors_skip(self, rates: Rates) -> float:
        """The share of layers removed."""
        return 1.0 - rates.ledger.layers / rates.ledger.dense_layers

    def _unprotected(self, total: int) -> range:
        """The layers that may be deleted."""
        protect = self.params.protect
        if isinstance(protect, bool):
            protect = [min(4, round(total / 8)), min(2, round(total / 16))] if protect else [0, 0]
        return range(protect[0], total - protect[1])

    def _scores(self, model: PreTrainedModel, data: Data) -> list[float]:
        params = self.params
        excerpts = {"rows": params.samples, "length": params.length}
        if params.criterion == "ppl":
            blocks = [Part("block", number) for number in range(len(layers(model)))]
            return perplexities(model, list(data.calibration(**excerpts)), blocks)
        if params.criterion == "taylor":
            batches = list(data.calibration(params.batch_size, **excerpts))
            weights = taylor(model, batches, self._weight_score)
        else:
            weights = [
                [self._weight_score(values) for _, values in weight_values(model, layer)]
                for layer in layers(model)
            ]
        reduce = REDUCTIONS[params.block_reduction]
        return [float(reduce(torch.tensor(layer, dtype=torch.float64))) for layer in weights]

    def _weight_score(self, salience: Tensor) -> float:
        """The score of one weight from its salience, (out, in) or (D,), float32."""
        powers = salience.abs().pow(self.params.norm)
        outputs = powers.sum(1) if powers.dim() == 2 else powers
        score = float(REDUCTIONS[self.params.weight_reduction](outputs.double()))
        if score == 0 and bool((outputs > 0).all()):
            raise ValueError(
                "param 'weight_reduction' is prod: the product over a matrix is below what float64 "
                "holds; set it to sum, mean or max"
            )
        return score


def scorable_weights(layer: nn.Module) -> dict[str, nn.Parameter]:
    """The seven matrices and the norm vectors of a layer; biases and head norms have no score."""
    norms = {
        "attention norm": attention_norm(layer),
        "ffn norm": ffn_norm(layer),
        "norm behind attention": norm_behind(layer, "attention"),
        "norm behind ffn": norm_behind(layer, "ffn"),
    }
    vectors = {name: dict(norm.named_parameters()) for name, norm in norms.items()}
    return projection_weights(layer) | {n: p["weight"] for n, p in vectors.items() if p}


def weight_values(model: PreTrainedModel, layer: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Name and float32 values of each weight of a layer; those of Gemma's norms are 1 + w."""
    offset = norm_offset(model.config)
    for name, weight in scorable_weights(layer).items():
        values = weight.detach().float()
        yield name, values + offset if offset and weight.dim() == 1 else values


def taylor(
    model: PreTrainedModel, batches: Sequence[Batch], score: Callable[[Tensor], float]
) -> list[list[float]]:
    """Scores of each layer's weights from their signed products with the gradient.

    Args:
        model: Dense model.
        batches: Each gives one loss, the mean over its predicted tokens.
        score: Makes the score of a weight from its products, float32, summed over batches.

    Returns:
        One score per weight of each layer: (L, 9) for a Llama.
    """
    every = range(len(layers(model)))
    scores: list[list[float]] = [[] for _ in every]
    walk = layer_gradients(model, batches, every, weights_of=scorable_weights, by_batch=True)
    for gradients in walk:
        weights = weight_values(model, layers(model)[gradients.layer])
        scores[gradients.layer] = [
            score(values * gradients.first[name]) for name, values in weights
        ]
    return scores
