"""SLEB: delete layers one by one, and measure again after every deletion."""

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
    """Deletes the layer whose absence raises perplexity least, measures again, deletes the next.

    Nothing is trained.

    Formula: in every round each remaining layer i gets a score: the perplexity
    exp(mean of -log p(token)) of the model without the deleted layers and without i. The mean is
    over all predicted tokens of all calibration documents. The layer with the lowest score is
    deleted, of equal ones the lower. The first round is the ppl criterion of Shortened LLaMA.

    Args of ``Params``:
        layers: Number of layers to delete; None: the number nearest to the budget.
        protect: How many first and how many last layers always stay.
        samples: How many calibration documents are used, from the first on; None: all.
        length: Tokens taken from the middle of each document (at most ``max_length``); shorter
            documents are left out. None: whole documents.

    Memory: the model and what enters each layer for one batch of 16 documents. Time: a round runs
    the calibration documents about L / 2 times.

    Source: Song et al., SLEB: Streamlining LLMs through Redundancy Verification and Elimination of
        Transformer Blocks, arXiv 2402.09025, algorithm 1; the released code.
    Differs from upstream: the states below the layer under trial are computed once per round. The
        mean is over the tokens of all documents (the authors' pieces have one length, so that
        their mean of means is the same). Documents are whole; the code joins and cuts them. A
        score that is not finite raises an error; in the code it deletes the last layer. Every
        model family works; the code cannot switch off layers of families that it does not know,
        and deletes their first ones.
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
            check_least(self, 1, "samples", "length")
            check_protect(self.protect)

    def skip_reason(self, backbone: Backbone, request: Request) -> str | None:
        """No number of layers is set, or too few layers are unprotected."""
        free = len(self._unprotected(backbone.layer_count))
        return unremovable(backbone, request.budget, self.params.layers, free)

    def fit(self, backbone: Backbone, data: Data, request: Request) -> Fitted:
        """Find one layer per round, then delete them all."""
        params, total = self.params, backbone.layer_count
        free = self._unprotected(total)
        number, trace = layers_to_remove(backbone, request.budget, params.layers, len(free))
        texts = list(data.calibration(rows=params.samples, length=params.length))
        blocks = [Part("block", layer) for layer in free]
        rounds = list(islice(greedy_rounds(backbone.model, texts, blocks), number))
        removed = [best.layer for best, _ in rounds]
        decisions = {
            "removed_layers": removed,
            "scores": [
                [scores.get(Part("block", n)) for n in range(total)] for _, scores in rounds
            ],
            "protected": sorted(set(range(total)) - set(free)),
            "budget_search": trace,
        }
        structure = {"removed_layers": removed}
        return Fitted(self.build(backbone, structure), structure, decisions)

    def build(self, backbone: Backbone, structure: Mapping[str, Any]) -> nn.Module:
        """The backbone without the removed layers."""
        return remove_layers(backbone.model, structure["removed_layers"])

    def cost(self, backbone: Backbone, request: Request) -> Cost:
        """A search over the unprotected layers."""
        params, free = self.params, len(self._unprotected(backbone.layer_count))
        rounds, _ = layers_to_remove(backbone, request.budget, params.layers, free)
        return Cost(greedy_passes(free, rounds), texts=params.samples, length=params.length)

    def authors_skip(self, rates: Rates) -> float:
        """The share of layers removed."""
        return 1.0 - rates.ledger.layers / rates.ledger.dense_layers

    def _unprotected(self, total: int) -> range:
        """The layers that may be deleted."""
        first, last = self.params.protect
        return range(first, total - last)
