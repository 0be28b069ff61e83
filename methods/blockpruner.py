"""BlockPruner: delete attentions and feed-forward networks one by one, by perplexity."""

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
    """Takes a layer for two residual blocks, attention and feed-forward network, deletes the block
    without which the calibration documents stay likeliest, then measures what is left and deletes
    the next. Nothing is trained.

    Formula: in every round each block of those alive scores exp(mean of -log p(token)) of the model
    without the deleted ones and without it, the mean over all predicted tokens of all documents;
    the lowest score goes, of equal ones attention first, then the lower layer. A layer without its
    attention is x + FFN(norm(x)), one without its FFN x + attention(norm(x)).

    Args of ``Params``:
        blocks: Number of attentions and FFNs to delete; None: as many as the greedy order takes
            until the share of deleted parameters is nearest to the budget.
        kinds: Whether ``"both"``, only ``"attention"`` or only ``"ffn"`` may go.
        protect: So many first and so many last layers stay whole.
        samples: Calibration documents used, the first ones; None: all.
        length: Tokens taken from the middle of each (cut to ``max_length``), shorter documents left
            out; None: whole documents.

    Memory: the model and what enters each layer for one batch of 16 documents. Time: a round runs
    the calibration documents about L times.

    Source: Zhong et al., BlockPruner: Fine-grained Pruning for Large Language Models, arXiv
        2406.10594, algorithm 1; the released code.
    Differs from upstream: a budget counts parameters, there a number of blocks stops the search;
        the states below a trial are computed once in a round; tokens of all documents are pooled,
        there perplexity is the exponential of a mean over sequences, and tokens equal to the pad
        are left out; documents are whole, there joined and cut to 2,048 tokens; calibration texts
        are the suite's, not Alpaca; the attentions that are left share the cache without gaps, so
        that decoding with it gives the same logits, which upstream runs without.
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
            """Check ranges.

            Raises:
                ValueError: A number is out of its range.
            """
            check_least(self, 1, "samples", "length")
            check_protect(self.protect)

    def skip_reason(self, backbone: Backbone, request: Request) -> str | None:
        """Something must say how many blocks go, and a cache must not mind which."""
        if self.params.kinds != "ffn" and len(set(attention_kinds(backbone.config))) > 1:
            return MIXED_KINDS
        if self.params.blocks is not None:
            return None
        if request.budget is None:
            return "neither a budget nor param 'blocks' says how many blocks to delete"
        held = sum(self._shares(backbone).values())
        return shortfall("unprotected blocks", held, request.budget)

    def fit(self, backbone: Backbone, data: Data, request: Request) -> Fitted:
        """Search one block per round and delete what was found."""
        params, sizes = self.params, self._shares(backbone)
        if params.blocks is not None and not 0 <= params.blocks <= len(sizes):
            raise ValueError(f"param 'blocks' is {params.blocks}, must be from 0 to {len(sizes)}")
        texts = list(data.calibration(rows=params.samples, length=params.length))
        rounds, shares = list[Round](), [0.0]
        search = greedy_rounds(backbone.model, texts, list(sizes))
        for found in islice(search, params.blocks):
            rounds.append(found)
            shares.append(shares[-1] + sizes[found.best])
            if params.blocks is None and shares[-1] >= (request.budget or 0.0):
                break
        number, trace = params.blocks, list[dict[str, float]]()
        if number is None:
            assert request.budget is not None
            number, trace = nearest(range(len(shares)), shares.__getitem__, request.budget)
        removed = [found.best for found in rounds[:number]]
        structure: dict[str, Any] = {
            kind: sorted(layer for each, layer in removed if each == kind) for kind in KINDS
        }
        decisions = {
            "removed_blocks": [list(part) for part in removed],
            "scores": [_by_layer(found, backbone.layer_count) for found in rounds[:number]],
            "budget_search": trace,
        }
        return Fitted(self.build(backbone, structure), structure, decisions)

    def build(self, backbone: Backbone, structure: Mapping[str, Any]) -> nn.Module:
        """The backbone without the removed attentions and feed-forward networks."""
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
        """Block that may go -> its share of the parameters, norm included; attentions first."""
        first, last = self.params.protect
        which, stack = range(first, backbone.layer_count - last), layers(backbone.model)
        kinds = KINDS if self.params.kinds == "both" else (self.params.kinds,)
        return {
            Part(kind, number): sublayer_size(stack[number], kind) / backbone.parameters
            for kind in kinds
            for number in which
        }


def _by_layer(found: Round, total: int) -> dict[str, list[float | None]]:
    """Perplexities of a round by kind and layer, None where no block could go."""
    scores = found.perplexities
    return {kind: [scores.get(Part(kind, number)) for number in range(total)] for kind in KINDS}
