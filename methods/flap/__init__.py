"""FLAP: remove heads and FFN channels that hardly vary, and put their mean into a bias."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from methods.api import (
    WRITERS,
    Backbone,
    Data,
    Fitted,
    Method,
    Rates,
    Request,
    add_output_biases,
    layers,
    missing_biases,
    narrow,
    projections,
    shortfall,
    unit_sizes,
    widths,
)
from methods.flap.statistics import Statistics, fluctuations

# Of [0, 1): finer than one channel of any backbone.
HALVINGS = 30


class FLAP(Method):
    """Scores what enters the last projection of attention and of the FFN by how much it varies, and
    removes the lowest heads and FFN channels of all layers together. What varies little is as good
    as its mean, which moves into a bias. Nothing is trained, all statistics are the dense model's.

    Formula: X (C,) the input of o_proj or down_proj with weight W (D, C), one channel c per
    query-head channel or FFN channel. S_c = Var(X_c) * sum over outputs of W_{o,c}^2, of attention
    S_c^2; z = (S - mean S) / std S per layer and kind. A channel of the FFN scores z_c and weighs
    1, a key/value head with its R query heads of h channels scores the mean of their z and weighs
    h (2 R + 2) / 3 (its weights in channels). In one list from high to low the threshold is the
    score at which the running sum of weights is nearest to (1 - p) of the total; what scores above
    it stays. Biases: b = W (m * removed), m (C,) the mean of X.

    Args of ``Params``:
        ratio: Share p of the layers' linear weights to remove, in [0, 1); None: by halving the one
            whose skip, biases charged, is nearest to the budget.
        metric: ``"WIFV"`` as above; ``"IFV"``: Var(X_c) alone; ``"WIFN"``: mean over outputs of
            |W_{o,c}| times the norm of X_c.
        structure: ``"AL-AM"``, the list above. ``"UL-UM"``: every layer loses its int(p K) lowest
            of K heads and its int(p F) lowest of F channels. With ``remove_heads`` given,
            ``"AL-MM"``: so many lowest heads of all layers, ``"UL-MM"``: an equal part of them in
            every layer, and channels for the rest of p, of all layers or in every layer.
        remove_heads: Key/value heads that AL-MM and UL-MM remove, over all layers; 0 leaves
            attention alone, for backbones whose few heads are each a large part of it.
        fluctuation: ``"variance"`` over all tokens, or ``"released"``, what the released code
            computes of N documents in their order: F_c = sum over n = 2 .. N of (n - 1) / n
            * (sum over the tokens of document n of (X_c - mu_n)^2) / (N - 1), mu_n the mean over
            documents 1 .. n of their means, and m = mu_N.
        square_attention: Whether S is squared for attention, as in the released code.
        compensate: Whether the biases are made.
    Memory: the model, one batch of activations and in float64 2,048 tokens of one projection's
        input and one weight (1 GB at 8B).
    Source: An et al., Fluctuation-based Adaptive Structured Pruning for Large Language Models,
        arXiv 2312.11983; formulas as in the released code (CASIA-IVA-Lab/FLAP).
    Differs from upstream: the variance is pooled (the released update reads the mean that it has
        just changed, so that the first document counts for nothing); the weight of a head is no
        integer; with grouped queries a key/value head goes with its query heads, where the released
        code fails; every layer keeps its best head and its best channel; at p = 0 nothing goes,
        where the threshold's own unit would; statistics in float64, not float16; it reads the
        suite's calibration documents, where the authors take 1,024 windows of WikiText-2.
    """

    title = "FLAP"
    source = "arXiv 2312.11983"
    kind = "static"
    trained = False
    stochastic = False
    budgeted = True
    causal = True

    @dataclass(frozen=True)
    class Params:
        """See the class. The authors' shares are 0.2, 0.3 and 0.5."""

        ratio: float | None = None
        metric: Literal["WIFV", "IFV", "WIFN"] = "WIFV"
        structure: Literal["AL-AM", "AL-MM", "UL-UM", "UL-MM"] = "AL-AM"
        remove_heads: int = 0
        fluctuation: Literal["variance", "released"] = "variance"
        square_attention: bool = True
        compensate: bool = True

        def __post_init__(self) -> None:
            """Check ranges.

            Raises:
                ValueError: A number is out of its range.
            """
            if self.ratio is not None and not 0 <= self.ratio < 1:
                raise ValueError(f"param 'ratio' is {self.ratio}, must be at least 0 and below 1")
            if self.remove_heads < 0:
                raise ValueError(f"param 'remove_heads' is {self.remove_heads}, must be at least 0")

    def skip_reason(self, backbone: Backbone, request: Request) -> str | None:
        """A budget or a pinned ratio must be given, and the structure must reach the budget."""
        if self.params.ratio is not None:
            return None
        if request.budget is None:
            return "neither a budget nor param 'ratio' says how much to remove"
        size, total = widths(layers(backbone.model)[0]), backbone.layer_count
        heads = total * (size.key_value_heads - 1)
        if self.params.structure in ("AL-MM", "UL-MM"):
            heads = min(heads, self.params.remove_heads)
        held = self._skip(backbone, heads, total * (size.channels - 1))
        return shortfall("heads and channels in reach", held, request.budget)

    def fit(self, backbone: Backbone, data: Data, request: Request) -> Fitted:
        """Score heads and channels, choose the cut, make the biases and narrow the layers."""
        params, model = self.params, backbone.model
        statistics = fluctuations(model, data, params.fluctuation)
        units = self._units(model, statistics)
        ratio, trace = params.ratio, list[dict[str, float]]()
        if ratio is None:
            assert request.budget is not None
            ratio, trace = self._search(backbone, units, request.budget)
        cut = choose(units, ratio, params.structure, params.remove_heads)
        structure = {
            "dropped_heads": _places(cut.heads),
            "dropped_channels": _places(cut.channels),
            "biases": params.compensate,
        }
        norms: dict[str, list[float]] = {"attention": [], "ffn": []}
        if params.compensate:
            norms = compensate(model, statistics, cut)
        decisions = {
            "kept": {"heads": _places(~cut.heads), "channels": _places(~cut.channels)},
            "scores": {"heads": units.heads.tolist(), "channels": units.channels.tolist()},
            "threshold": cut.threshold,
            "bias_norms": norms,
            "ratio": ratio,
            "budget_search": trace,
        }
        return Fitted(self.build(backbone, structure), structure, decisions)

    def build(self, backbone: Backbone, structure: Mapping[str, Any]) -> nn.Module:
        """The narrowed backbone, with biases where the fit made them."""
        if structure["biases"]:
            add_output_biases(backbone.model)
        return narrow(backbone.model, structure["dropped_heads"], structure["dropped_channels"])

    def authors_skip(self, rates: Rates) -> float:
        """The share of the layers' linear weights removed, the new biases counted as left."""
        book = rates.ledger
        removed = book.total - book.resident
        return removed / (removed + book.linear)

    def _skip(self, backbone: Backbone, heads: int, channels: int) -> float:
        """The skip without so many heads and channels, biases charged."""
        head, channel = unit_sizes(layers(backbone.model)[0])
        added = 0
        if self.params.compensate:
            added = sum(linear.out_features for linear in missing_biases(backbone.model))
        return (heads * head + channels * channel - added) / backbone.parameters

    def _search(
        self, backbone: Backbone, units: Units, budget: float
    ) -> tuple[float, list[dict[str, float]]]:
        """The share whose skip is nearest to the budget, and the halvings behind it."""
        low, high = 0.0, 1.0
        trace: list[dict[str, float]] = []
        for _ in range(HALVINGS):
            share = (low + high) / 2
            cut = choose(units, share, self.params.structure, self.params.remove_heads)
            skip = self._skip(backbone, int(cut.heads.sum()), int(cut.channels.sum()))
            trace.append({"setting": share, "skip": skip})
            low, high = (share, high) if skip < budget else (low, share)
        best = min(trace, key=lambda row: abs(row["skip"] - budget))
        return best["setting"], trace

    def _units(self, model: PreTrainedModel, statistics: list[dict[str, Statistics]]) -> Units:
        """Scores of all heads and channels."""
        size = widths(layers(model)[0])
        found: dict[str, list[Tensor]] = {name: [] for name in WRITERS}
        for layer, parts in zip(layers(model), statistics, strict=True):
            for name in WRITERS:
                weight = projections(layer)[name].weight.detach()
                salience = METRICS[self.params.metric](parts[name], weight.double())
                if name == "o_proj" and self.params.square_attention:
                    salience = salience**2
                found[name].append(standardised(salience).cpu())
        heads, channels = (torch.stack(found[name]) for name in WRITERS)
        group = size.query_heads // size.key_value_heads
        return Units(
            heads.view(len(heads), size.key_value_heads, -1).mean(2),
            channels,
            size.head * (2 * group + 2) / 3,
        )


METRICS: Mapping[str, Callable[[Statistics, Tensor], Tensor]] = {
    "WIFV": lambda seen, weight: seen.fluctuation * weight.square().sum(0),
    "IFV": lambda seen, weight: seen.fluctuation,
    "WIFN": lambda seen, weight: weight.abs().mean(0) * seen.energy.sqrt(),
}


def standardised(salience: Tensor) -> Tensor:
    """Scores (C,) of mean 0 and standard deviation 1; zeros where all are equal."""
    apart, spread = salience - salience.mean(), salience.std()
    return apart / spread if spread > 0 else torch.zeros_like(salience)


class Units(NamedTuple):
    """What may go: scores of ``heads`` (L, K) and ``channels`` (L, F), float64.

    ``weight``: what a head weighs in channels.
    """

    heads: Tensor
    channels: Tensor
    weight: float


class Cut(NamedTuple):
    """What goes: ``heads`` (L, K) and ``channels`` (L, F), bool; ``threshold`` of the list."""

    heads: Tensor
    channels: Tensor
    threshold: float | None


def choose(units: Units, ratio: float, structure: str, remove_heads: int) -> Cut:
    """The heads and channels that a share takes; see :class:`FLAP`."""
    heads, channels = keep_best(units.heads), keep_best(units.channels)
    if ratio == 0:
        return Cut(torch.zeros_like(heads).bool(), torch.zeros_like(channels).bool(), None)
    if structure == "AL-AM":
        return choose_from_list(heads, channels, units.weight, ratio)
    (total, per_layer), width = heads.shape, channels.shape[1]
    if structure == "UL-UM":
        fewer_heads, fewer = int(ratio * per_layer), int(ratio * width)
    else:
        together = total if structure == "AL-MM" else 1
        fewer_heads = remove_heads if structure == "AL-MM" else remove_heads // total
        whole = together * (per_layer * units.weight + width)
        fewer = int(ratio * whole - fewer_heads * units.weight)
    if structure == "AL-MM":
        heads, channels = heads.view(1, -1), channels.view(1, -1)
    gone = lowest(heads, fewer_heads), lowest(channels, fewer)
    return Cut(gone[0].view(total, per_layer), gone[1].view(total, width), None)


def choose_from_list(heads: Tensor, channels: Tensor, weight: float, ratio: float) -> Cut:
    """One threshold for all; units that score infinity stay."""
    scores = torch.cat([heads.flatten(), channels.flatten()])
    weights = torch.ones_like(scores)
    weights[: heads.numel()] = weight
    order = scores.argsort(descending=True)
    running = weights[order].cumsum(0)
    place = int((running - (1 - ratio) * running[-1]).abs().argmin())
    threshold = scores[order[max(place, int(scores.isinf().sum()))]]
    gone = scores <= threshold
    parts = gone.split([heads.numel(), channels.numel()])
    return Cut(parts[0].view_as(heads), parts[1].view_as(channels), float(threshold))


def keep_best(scores: Tensor) -> Tensor:
    """Scores (L, n) with infinity at the best of each layer: a layer cannot lose all."""
    return scores.scatter(1, scores.argmax(1, keepdim=True), torch.inf)


def lowest(scores: Tensor, number: int) -> Tensor:
    """Marks the ``number`` lowest of each row (m, n), as far as they are finite; bool."""
    order = scores.argsort(dim=1, stable=True)
    free = int(scores.isfinite().sum(1).min())
    return torch.zeros_like(scores).scatter(1, order[:, : max(0, min(number, free))], 1).bool()


@torch.no_grad()
def compensate(
    model: PreTrainedModel, statistics: list[dict[str, Statistics]], cut: Cut
) -> dict[str, list[float]]:
    """Add the mean of what goes, as the whole matrices write it, to biases made for it.

    Returns:
        The norms of what was added, for attention and FFN of each layer.
    """
    add_output_biases(model)
    group = projections(layers(model)[0])["o_proj"].in_features // cut.heads.shape[1]
    gone = {"o_proj": cut.heads.repeat_interleave(group, dim=1), "down_proj": cut.channels}
    norms: dict[str, list[float]] = {name: [] for name in WRITERS}
    for number, layer in enumerate(layers(model)):
        for name in WRITERS:
            linear = projections(layer)[name]
            mean = statistics[number][name].mean * gone[name][number].to(model.device)
            added = linear.weight.double() @ mean
            linear.bias.add_(added.to(linear.bias.dtype))
            norms[name].append(float(added.norm()))
    return dict(zip(("attention", "ffn"), norms.values(), strict=True))


def _places(marks: Tensor) -> list[list[int]]:
    """The marked places of each row, ascending."""
    return [row.nonzero().flatten().tolist() for row in marks]
