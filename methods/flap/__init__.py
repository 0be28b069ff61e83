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
    head_and_channel_sizes,
    layers,
    missing_biases,
    narrow,
    narrow_reason,
    projections,
    shortfall,
    widths,
)
from methods.flap.statistics import Statistics, fluctuations

# So many halvings of [0, 1) are finer than one channel of any backbone.
HALVINGS = 30


class FLAP(Method):
    """Removes the heads and FFN channels whose values vary least, over all layers together.

    Values that hardly vary can be replaced by their mean, which moves into a bias. Nothing is
    trained, and all statistics are those of the dense model.

    Formula: X (C,) is the input of o_proj or down_proj, W (D, C) the weight of the projection; a
    channel c belongs to a query head or to the FFN. S_c = Var(X_c) * sum over outputs of W_{o,c}^2;
    for attention S_c is squared. z = (S - mean S) / std S, per layer and projection. An FFN channel
    scores z_c and weighs 1. A key/value head with its R query heads of h channels scores the mean
    of their z, and weighs h (2 R + 2) / 3, its parameters counted in channels. All of them form one
    list, from high to low. The threshold is the score at which the running sum of weights is
    nearest to (1 - p) of the total; scores above it stay. Biases: b = W (m * removed), with m (C,)
    the mean of X.

    Args of ``Params``:
        ratio: Share p of the layers' linear weights to remove, in [0, 1); None: found by halving,
            so that the skip, less the new biases, is nearest to the budget.
        metric: ``"WIFV"`` as above; ``"IFV"``: Var(X_c) alone; ``"WIFN"``: mean over outputs of
            |W_{o,c}| times the norm of X_c.
        structure: ``"AL-AM"``: the list above. ``"UL-UM"``: every layer loses its int(p K) lowest
            of K heads and its int(p F) lowest of F channels. ``"AL-MM"``: the ``remove_heads``
            lowest heads of all layers, and the lowest channels of all layers for the rest of p.
            ``"UL-MM"``: the same, with equal numbers in every layer.
        remove_heads: How many key/value heads AL-MM and UL-MM remove, over all layers. 0 leaves
            attention whole, for backbones with few and therefore large heads.
        fluctuation: ``"variance"`` over all tokens; or ``"released"``, which is what the released
            code computes from N documents in their order: F_c = sum over n = 2 .. N of (n - 1) / n
            * (sum over the tokens of document n of (X_c - mu_n)^2) / (N - 1), with mu_n the mean of
            the means of documents 1 .. n, and m = mu_N.
        square_attention: Whether S is squared for attention, as in the released code.
        compensate: Whether to make the biases.
    Memory: the model, one batch of activations, and in float64 one weight and 2,048 tokens of one
        projection's input (1 GB at 8B).
    Source: An et al., Fluctuation-based Adaptive Structured Pruning for Large Language Models,
        arXiv 2312.11983; formulas as in the released code (CASIA-IVA-Lab/FLAP).
    Differs from upstream: the variance is over all tokens; the released update reads the mean that
        it has just changed, so that the first document does not count. The weight of a head is not
        rounded. With grouped queries a key/value head goes together with its query heads; the
        released code fails there. Every layer keeps its best head and its best channel. p = 0
        removes nothing; the released code then removes the one at the threshold. Statistics are in
        float64, not float16. It reads the suite's calibration documents, not 1,024 windows of
        WikiText-2.
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
            if self.ratio is not None and not 0 <= self.ratio < 1:
                raise ValueError(f"param 'ratio' is {self.ratio}, must be at least 0 and below 1")
            if self.remove_heads < 0:
                raise ValueError(f"param 'remove_heads' is {self.remove_heads}, must be at least 0")

    def skip_reason(self, backbone: Backbone, request: Request) -> str | None:
        """Heads cannot be removed, no budget and no ratio is set, or the budget is out of reach."""
        size, total = widths(layers(backbone.model)[0]), backbone.layer_count
        heads = total * (size.key_value_heads - 1)
        if self.params.structure in ("AL-MM", "UL-MM"):
            heads = min(heads, self.params.remove_heads)
        if self.params.structure == "UL-MM" and self.params.remove_heads % total:
            return (
                f"param 'remove_heads' is {self.params.remove_heads}, and 'UL-MM' removes equally "
                f"many in each of {total} layers"
            )
        if heads and (reason := narrow_reason(backbone.model)):
            return reason
        if self.params.ratio is not None:
            return None
        if request.budget is None:
            return "neither a budget nor param 'ratio' says how much to remove"
        most = self._skip(backbone, heads, total * (size.channels - 1))
        return shortfall("heads and channels in reach", most, request.budget)

    def fit(self, backbone: Backbone, data: Data, request: Request) -> Fitted:
        """Score heads and channels, choose the lowest, make the biases and narrow the layers."""
        params, model = self.params, backbone.model
        statistics = fluctuations(model, data, params.fluctuation)
        units = self._units(model, statistics)
        ratio, trace = params.ratio, list[dict[str, float]]()
        if ratio is None:
            assert request.budget is not None
            ratio, trace = self._search(backbone, units, request.budget)
        cut = choose(units, ratio, params.structure, params.remove_heads)
        structure = {
            "dropped_heads": _indices(cut.heads),
            "dropped_channels": _indices(cut.channels),
            "biases": params.compensate,
        }
        norms: dict[str, list[float]] = {"attention": [], "ffn": []}
        if params.compensate:
            norms = compensate(model, statistics, cut)
        decisions = {
            "kept": {"heads": _indices(~cut.heads), "channels": _indices(~cut.channels)},
            "scores": {"heads": units.heads.tolist(), "channels": units.channels.tolist()},
            "threshold": cut.threshold,
            "bias_norms": norms,
            "ratio": ratio,
            "budget_search": trace,
        }
        return Fitted(self.build(backbone, structure), structure, decisions)

    def build(self, backbone: Backbone, structure: Mapping[str, Any]) -> nn.Module:
        """The backbone without the removed heads and channels, with biases if the fit made them."""
        if structure["biases"]:
            add_output_biases(backbone.model)
        return narrow(backbone.model, structure["dropped_heads"], structure["dropped_channels"])

    def authors_skip(self, rates: Rates) -> float:
        """The share of the layers' linear weights removed; new biases count as staying."""
        book = rates.ledger
        removed = book.total - book.resident
        return removed / (removed + book.linear)

    def _skip(self, backbone: Backbone, heads: int, channels: int) -> float:
        """The skip when so many heads and channels are removed, less the new biases."""
        head, channel = head_and_channel_sizes(layers(backbone.model)[0])
        added = 0
        if self.params.compensate:
            added = sum(linear.out_features for linear in missing_biases(backbone.model))
        return (heads * head + channels * channel - added) / backbone.parameters

    def _search(
        self, backbone: Backbone, units: Units, budget: float
    ) -> tuple[float, list[dict[str, float]]]:
        """The ratio whose skip is nearest to the budget, and the trace of its search."""
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
        """The scores of all heads and channels."""
        size = widths(layers(model)[0])
        scores: dict[str, list[Tensor]] = {name: [] for name in WRITERS}
        for layer, parts in zip(layers(model), statistics, strict=True):
            for name in WRITERS:
                weight = projections(layer)[name].weight.detach()
                salience = METRICS[self.params.metric](parts[name], weight.double())
                if name == "o_proj" and self.params.square_attention:
                    salience = salience**2
                scores[name].append(standardise(salience).cpu())
        heads, channels = (torch.stack(scores[name]) for name in WRITERS)
        group = size.query_heads // size.key_value_heads
        return Units(
            heads.view(len(heads), size.key_value_heads, -1).mean(2),
            channels,
            size.head * (2 * group + 2) / 3,
        )


METRICS: Mapping[str, Callable[[Statistics, Tensor], Tensor]] = {
    "WIFV": lambda inputs, weight: inputs.fluctuation * weight.square().sum(0),
    "IFV": lambda inputs, weight: inputs.fluctuation,
    "WIFN": lambda inputs, weight: weight.abs().mean(0) * inputs.energy.sqrt(),
}


def standardise(salience: Tensor) -> Tensor:
    """Scores (C,) with mean 0 and standard deviation 1; zeros if all are equal."""
    if len(salience) == 1:
        return torch.zeros_like(salience)
    deviation, spread = salience - salience.mean(), salience.std()
    return torch.zeros_like(salience) if spread == 0 else deviation / spread


class Units(NamedTuple):
    """Scores of all ``heads`` (L, K) and ``channels`` (L, F), float64.

    ``weight``: how many channels a head counts for.
    """

    heads: Tensor
    channels: Tensor
    weight: float


class Cut(NamedTuple):
    """What is removed: ``heads`` (L, K), ``channels`` (L, F), bool; ``threshold`` of the list."""

    heads: Tensor
    channels: Tensor
    threshold: float | None


def choose(units: Units, ratio: float, structure: str, remove_heads: int) -> Cut:
    """The heads and channels that a ratio removes; see :class:`FLAP`."""
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
    removed = mark_lowest(heads, fewer_heads), mark_lowest(channels, fewer)
    return Cut(removed[0].view(total, per_layer), removed[1].view(total, width), None)


def choose_from_list(heads: Tensor, channels: Tensor, weight: float, ratio: float) -> Cut:
    """The cut by one threshold for all; scores of infinity stay."""
    scores = torch.cat([heads.flatten(), channels.flatten()])
    weights = torch.ones_like(scores)
    weights[: heads.numel()] = weight
    order = scores.argsort(descending=True)
    running = weights[order].cumsum(0)
    position = int((running - (1 - ratio) * running[-1]).abs().argmin())
    threshold = scores[order[max(position, int(scores.isinf().sum()))]]
    parts = (scores <= threshold).split([heads.numel(), channels.numel()])
    return Cut(parts[0].view_as(heads), parts[1].view_as(channels), float(threshold))


def keep_best(scores: Tensor) -> Tensor:
    """Scores (L, n) with infinity for the best of each layer, so that no layer loses all."""
    return scores.scatter(1, scores.argmax(1, keepdim=True), torch.inf)


def mark_lowest(scores: Tensor, number: int) -> Tensor:
    """Mark the ``number`` lowest finite scores of each row (m, n); bool."""
    order = scores.argsort(dim=1, stable=True)
    free = int(scores.isfinite().sum(1).min())
    return torch.zeros_like(scores).scatter(1, order[:, : max(0, min(number, free))], 1).bool()


@torch.no_grad()
def compensate(
    model: PreTrainedModel, statistics: list[dict[str, Statistics]], cut: Cut
) -> dict[str, list[float]]:
    """Add to new biases what the dense matrices make of the mean of the removed channels.

    Returns:
        The norms of the added vectors, for attention and FFN of each layer.
    """
    add_output_biases(model)
    group = projections(layers(model)[0])["o_proj"].in_features // cut.heads.shape[1]
    removed = {"o_proj": cut.heads.repeat_interleave(group, dim=1), "down_proj": cut.channels}
    norms: dict[str, list[float]] = {name: [] for name in WRITERS}
    for number, layer in enumerate(layers(model)):
        for name in WRITERS:
            linear = projections(layer)[name]
            mean = statistics[number][name].mean * removed[name][number].to(model.device)
            bias = linear.weight.double() @ mean
            linear.bias.add_(bias.to(linear.bias.dtype))
            norms[name].append(float(bias.norm()))
    return dict(zip(("attention", "ffn"), norms.values(), strict=True))


def _indices(marks: Tensor) -> list[list[int]]:
    """The indices of the marked entries of each row, ascending."""
    return [row.nonzero().flatten().tolist() for row in marks]
