"""SLEB: delete whole blocks one by one, and look again after every deletion."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

from torch import nn

from methods.api import (
    Backbone,
    Cost,
    Data,
    Fitted,
    Method,
    Part,
    Rates,
    Request,
    check_least,
    check_protect,
    greedy_passes,
    greedy_rounds,
    layers_to_remove,
    remove_layers,
    unremovable,
)


class Sleb(Method):
    """Deletes the block without which the calibration documents stay likeliest, then measures what
    is left and deletes the next. Nothing is trained.

    Formula: in every round block i of those alive scores exp(mean of -log p(token)) of the model
    without the deleted blocks and without i, the mean over all predicted tokens of all documents;
    the lowest score goes, the lower block of equal ones. The first round is the ppl criterion of
    Shortened LLaMA.

    Args of ``Params``:
        layers: Number of blocks to delete; None: the number nearest to the budget.
        protect: So many first and so many last blocks stay.
        samples: Calibration documents used, the first ones; None: all.
        length: Tokens taken from the middle of each (cut to ``max_length``), shorter documents left
            out; None: whole documents.

    Memory: the model and what enters each block for one batch of 16 documents. Time: a round runs
    the calibration documents about L / 2 times.

    Source: Song et al., SLEB: Streamlining LLMs through Redundancy Verification and Elimination of
        Transformer Blocks, arXiv 2402.09025, algorithm 1; the released code.
    Differs from upstream: the states below a trial are computed once in a round; tokens of all
        documents are pooled (theirs are pieces of one length, so that both are one); documents are
        whole, where the code joins and cuts them; a score that is no number is refused, there it
        deletes the last block; every family is searched, there blocks of unnamed ones cannot be
        switched off and go from the front.
    """

    title = "SLEB"
    source = "arXiv 2402.09025"
    kind = "static"
    trained = False
    stochastic = False
    budgeted = True
    causal = True

    @dataclass(frozen=True)
    class Params:
        """See the class. The paper calibrates on 128 samples of WikiText-2, the code on less."""

        layers: int | None = None
        protect: tuple[int, int] = (1, 1)
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
        """Something must say how many blocks go, and so many must be unprotected."""
        free = len(self._unprotected(backbone.layer_count))
        return unremovable(backbone, request.budget, self.params.layers, free)

    def fit(self, backbone: Backbone, data: Data, request: Request) -> Fitted:
        """Search one block per round and delete what was found."""
        params, total = self.params, backbone.layer_count
        free = self._unprotected(total)
        number, trace = layers_to_remove(backbone, request.budget, params.layers, len(free))
        texts = list(data.calibration(rows=params.samples, length=params.length))
        blocks = [Part("block", layer) for layer in free]
        rounds = list(islice(greedy_rounds(backbone.model, texts, blocks), number))
        removed = [best.layer for best, _ in rounds]
        decisions = {
            "removed_layers": removed,
            "scores": [[found.get(Part("block", n)) for n in range(total)] for _, found in rounds],
            "protected": sorted(set(range(total)) - set(free)),
            "budget_search": trace,
        }
        structure = {"removed_layers": removed}
        return Fitted(self.build(backbone, structure), structure, decisions)

    def build(self, backbone: Backbone, structure: Mapping[str, Any]) -> nn.Module:
        """The backbone without the removed blocks."""
        return remove_layers(backbone.model, structure["removed_layers"])

    def cost(self, backbone: Backbone, request: Request) -> Cost:
        """A search over the unprotected blocks."""
        params, free = self.params, len(self._unprotected(backbone.layer_count))
        rounds, _ = layers_to_remove(backbone, request.budget, params.layers, free)
        return Cost(greedy_passes(free, rounds), texts=params.samples, length=params.length)

    def authors_skip(self, rates: Rates) -> float:
        """The share of blocks removed."""
        return 1.0 - rates.ledger.layers / rates.ledger.dense_layers

    def _unprotected(self, total: int) -> range:
        """The blocks that may go."""
        first, last = self.params.protect
        return range(first, total - last)
