"""BlockPruner: delete attentions and FFNs one by one, by perplexity."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal

from torch import nn

from methods.api import (
    MIXED_KINDS,
    Backbone,
    Cost,
    Data,
    Fitted,
    Method,
    Part,
    Request,
    Round,
    Sublayer,
    attention_kinds,
    check_least,
    check_protect,
    greedy_passes,
    greedy_rounds,
    layers,
    nearest,
    remove_sublayers,
    shortfall,
    sublayer_size,
)

KINDS: tuple[Sublayer, ...] = ("attention", "ffn")


class BlockPruner(Method):
    """Deletes the sublayer whose absence raises perplexity least, measures again, deletes the next.

    A sublayer, the authors' block, is the attention or the FFN of a layer. Nothing is trained.

    Formula: in every round each remaining sublayer gets a score: the perplexity
    exp(mean of -log p(token)) of the model without the deleted ones and without it. The mean is
    over all predicted tokens of all calibration documents. The sublayer with the lowest score is
    deleted; of equal ones attention first, then the lower layer. A layer without its attention is
    x + FFN(norm(x)), a layer without its FFN is x + attention(norm(x)).

    Args of ``Params``:
        blocks: Number of sublayers to delete; None: sublayers are deleted until the share of
            deleted parameters is nearest to the budget.
        kinds: What may be deleted: ``"both"``, only ``"attention"`` or only ``"ffn"``.
        protect: How many first and how many last layers stay whole.
        samples: How many calibration documents are used, from the first on; None: all.
        length: Tokens taken from the middle of each document (at most ``max_length``); shorter
            documents are left out. None: whole documents.

    Memory: the model and what enters each layer for one batch of 16 documents. Time: a round runs
    the calibration documents about L times.

    Source: Zhong et al., BlockPruner: Fine-grained Pruning for Large Language Models, arXiv
        2406.10594, algorithm 1; the released code.
    Differs from upstream: a budget in parameters ends the search, not a number of sublayers. The
        states below the sublayer under trial are computed once per round. The mean is over the
        tokens of all documents; the code takes the exponential of a mean over sequences and leaves
        out tokens that equal the pad. Documents are whole, not joined and cut to 2,048 tokens, and
        are the suite's calibration texts, not Alpaca. The cache has no gaps for deleted attentions,
        so that cached decoding gives the same logits; the code decodes without a cache.
    """

    title = "BlockPruner"
    source = "arXiv 2406.10594"
    kind = "static"
    trained = False
    stochastic = False
    budgeted = True
    causal = True

    @dataclass(frozen=True)
    class Params:
        """See the class. The authors calibrate on 256 documents, some 15 to 20 sequences."""

        blocks: int | None = None
        kinds: Literal["both", "attention", "ffn"] = "both"
        protect: tuple[int, int] = (0, 0)
        samples: int | None = None
        length: int | None = None

        def __post_init__(self) -> None:
            check_least(self, 1, "samples", "length")
            check_protect(self.protect)

    def skip_reason(self, backbone: Backbone, request: Request) -> str | None:
        """No number is set, the budget is too large, or the cache needs all attentions."""
        if self.params.kinds != "ffn" and len(set(attention_kinds(backbone.config))) > 1:
            return MIXED_KINDS
        if self.params.blocks is not None:
            return None
        if request.budget is None:
            return "neither a budget nor param 'blocks' says how many blocks to delete"
        most = sum(self._shares(backbone).values())
        return shortfall("unprotected blocks", most, request.budget)

    def fit(self, backbone: Backbone, data: Data, request: Request) -> Fitted:
        """Find one sublayer per round, then delete them all."""
        params, sizes = self.params, self._shares(backbone)
        if params.blocks is not None and not 0 <= params.blocks <= len(sizes):
            raise ValueError(f"param 'blocks' is {params.blocks}, must be from 0 to {len(sizes)}")
        texts = list(data.calibration(rows=params.samples, length=params.length))
        rounds, shares = list[Round](), [0.0]
        search = greedy_rounds(backbone.model, texts, list(sizes))
        for one_round in islice(search, params.blocks):
            rounds.append(one_round)
            shares.append(shares[-1] + sizes[one_round.best])
            if params.blocks is None and shares[-1] >= (request.budget or 0.0):
                break
        number, trace = params.blocks, list[dict[str, float]]()
        if number is None:
            assert request.budget is not None
            number, trace = nearest(range(len(shares)), shares.__getitem__, request.budget)
        removed = [one_round.best for one_round in rounds[:number]]
        structure: dict[str, Any] = {
            kind: sorted(layer for each, layer in removed if each == kind) for kind in KINDS
        }
        decisions = {
            "removed_blocks": [list(part) for part in removed],
            "scores": [_by_layer(each, backbone.layer_count) for each in rounds[:number]],
            "budget_search": trace,
        }
        return Fitted(self.build(backbone, structure), structure, decisions)

    def build(self, backbone: Backbone, structure: Mapping[str, Any]) -> nn.Module:
        """The backbone without the removed attentions and FFNs."""
        return remove_sublayers(backbone.model, structure["attention"], structure["ffn"])

    def cost(self, backbone: Backbone, request: Request) -> Cost:
        """A search until blocks of mean size hold the budget."""
        params, sizes = self.params, self._shares(backbone)
        rounds = params.blocks
        if rounds is None:
            rounds = round((request.budget or 0.0) * len(sizes) / sum(sizes.values()))
        passes = greedy_passes(len(sizes), rounds)
        return Cost(passes, texts=params.samples, length=params.length)

    def _shares(self, backbone: Backbone) -> dict[Part, float]:
        """Sublayers that may be deleted, attentions first -> share of parameters, norm included."""
        first, last = self.params.protect
        which, stack = range(first, backbone.layer_count - last), layers(backbone.model)
        kinds = KINDS if self.params.kinds == "both" else (self.params.kinds,)
        return {
            Part(kind, number): sublayer_size(stack[number], kind) / backbone.parameters
            for kind in kinds
            for number in which
        }


def _by_layer(one_round: Round, total: int) -> dict[str, list[float | None]]:
    """Perplexities of a round by kind and layer; None where no sublayer could be deleted."""
    scores = one_round.perplexities
    return {kind: [scores.get(Part(kind, number)) for number in range(total)] for kind in KINDS}
