"""LLM-Pruner: remove the heads and FFN channels whose weights move the loss least."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from methods.api import (
    WRITERS,
    Backbone,
    Cost,
    Data,
    Fitted,
    LayerGradients,
    Method,
    Request,
    Widths,
    check_least,
    layer_gradients,
    layers,
    narrow,
    nearest,
    projections,
    unit_sizes,
    widths,
)

MAGNITUDES = {"l1": 1, "l2": 2}
GRID = 1000

Saliences = Iterator[tuple[str, Tensor]]


class LLMPruner(Method):
    """Removes coupled structures from the middle layers, each layer losing the same share.

    A structure is an FFN channel (a row of gate and up, a column of down) or a key/value head with
    the query heads that read it (their rows of q, k, v, their columns of o). Nothing is retrained.

    Formula: per weight w, with g the gradient of the mean loss over all calibration tokens and a
    the mean over documents of the squared gradient of a document's own mean loss,
    s = w g, or s = w a w (second), or s = w g - w a w / 2 (mix). A row or column scores sum |s|
    (vectorize: |sum s|); a channel reduces over its coupled matrices; a head sums its channels.
    Of C channels, C - int(C (1 - ratio)) are to go: FFN channels one by one, attention in whole
    heads, rounded down, so that a small ratio removes channels only.

    Args of ``Params``:
        ratio: Share of heads and channels to remove per layer, in [0, 1); None: the thousandth
            whose parameter count is nearest to the budget.
        start: First layer that is pruned, 0-based; None: round(L / 8), at most the authors'
            4.
        end: Layer behind the last that is pruned; None: L - round(L / 16), at least L - 2.
        importance: ``"param_first"`` (the code's default), ``"param_second"``, ``"param_mix"``,
            ``"vectorize"``; or the authors' controls ``"l1"``, ``"l2"``: s = |w|, s = w w.
        group_reduction: Over the coupled matrices: ``"sum"``, ``"mean"``, ``"max"``, ``"prod"``,
            ``"first"``, ``"second"`` in the order gate, up, down and q, o, v, k (with fewer
            key/value than query heads k, o, v, q); None: sum, for l1 and l2 mean, as released.
        gqa_fold: Which query heads count for a key/value head j of K with R query heads each:
            ``"coupled"``, those removed with it, j R to j R + R - 1; ``"official"``, j, j + K, ...
        samples: Calibration documents used, the first ones; None: all. The authors take 10.
        length: Tokens from the middle of each, shorter documents left out; None: whole documents.
            The authors take 64.
    Memory: the weights, one layer's gradients in float32 (0.9 GB at 8B, twice that for second and
        mix), the states that entered each layer from ``start`` on (0.23 MB per token at 8B in 16
        bits) and one batch within one layer. By this count Llama-3.1-8B in bfloat16 takes about
        19 GB for the authors' 10 x 64 tokens and 50 GB for 50 x 2048.
    Source: Ma et al., LLM-Pruner: On the Structural Pruning of Large Language Models,
        arXiv 2305.11627, equations 3 to 6; block-wise mode with local selection.
    Differs from upstream: with grouped queries, scores fold onto the heads that are removed (the
        released script folds onto others: ``gqa_fold``); gradients are accumulated in float32 layer
        by layer, at any batch size; ties go to the lower unit; a ratio that would empty a layer is
        refused, where the code silently leaves the layer whole; it reads the suite's calibration
        documents, where the authors take texts of BookCorpus. Without the random
        control, the global and iterative selection and the channel- and layer-wise modes, which no
        published command uses. The authors' skip is ours: parameters removed over all parameters.
    """

    title = "LLM-Pruner"
    source = "arXiv 2305.11627"
    kind = "static"
    trained = False
    stochastic = False
    budgeted = True
    causal = True

    @dataclass(frozen=True)
    class Params:
        """See the class."""

        ratio: float | None = None
        start: int | None = None
        end: int | None = None
        importance: Literal["param_first", "param_second", "param_mix", "vectorize", "l1", "l2"] = (
            "param_first"
        )
        group_reduction: Literal["sum", "mean", "max", "prod", "first", "second"] | None = None
        gqa_fold: Literal["coupled", "official"] = "coupled"
        samples: int | None = None
        length: int | None = None

        def __post_init__(self) -> None:
            check_least(self, 1, "samples", "length")
            if self.ratio is not None and not 0 <= self.ratio < 1:
                raise ValueError(f"param 'ratio' is {self.ratio}, must be at least 0 and below 1")

    def skip_reason(self, backbone: Backbone, request: Request) -> str | None:
        """A budget or a pinned ratio must be given."""
        if request.budget is None and self.params.ratio is None:
            return "neither a budget nor param 'ratio' says how much to remove"
        return None

    def fit(self, backbone: Backbone, data: Data, request: Request) -> Fitted:
        """Score heads and channels on the calibration documents and remove the lowest."""
        total = backbone.layer_count
        span = self._span(total)
        ratio, trace = self._ratio(backbone, span, request.budget)
        heads: list[list[float]] = [[] for _ in range(total)]
        channels: list[list[float]] = [[] for _ in range(total)]
        for index, saliences in self._saliences(backbone, data, span):
            heads[index], channels[index] = self._scores(layers(backbone.model)[index], saliences)
        fewer_heads, fewer_channels = removals(widths(layers(backbone.model)[span.start]), ratio)
        structure = {
            "dropped_heads": [lowest(scores, fewer_heads) for scores in heads],
            "dropped_channels": [lowest(scores, fewer_channels) for scores in channels],
        }
        decisions = structure | {
            "ratio": ratio,
            "pruned_layers": list(span),
            "head_importance": heads,
            "channel_importance": channels,
            "budget_search": trace,
        }
        return Fitted(self.build(backbone, structure), structure, decisions)

    def cost(self, backbone: Backbone, request: Request) -> Cost:
        """A forward pass, then each layer forward again and backward, all texts together."""
        params = self.params
        passes = 0 if params.importance in MAGNITUDES else 4
        return Cost(passes, texts=params.samples, length=params.length, batch=None)

    def build(self, backbone: Backbone, structure: Mapping[str, Any]) -> nn.Module:
        """The backbone without the dropped heads and channels."""
        return narrow(backbone.model, structure["dropped_heads"], structure["dropped_channels"])

    def _span(self, total: int) -> range:
        """The layers that are pruned."""
        start, end = self.params.start, self.params.end
        start = min(4, round(total / 8)) if start is None else start
        end = total - min(2, round(total / 16)) if end is None else end
        if not 0 <= start < end <= total:
            raise ValueError(
                f"param 'start' is {start} and param 'end' is {end}, "
                f"must be 0 <= start < end <= {total}"
            )
        return range(start, end)

    def _ratio(
        self, backbone: Backbone, span: range, budget: float | None
    ) -> tuple[float, list[dict[str, float]]]:
        """The ratio, and the search behind it (empty when pinned)."""
        layer = layers(backbone.model)[span.start]
        size, pinned = widths(layer), self.params.ratio
        if pinned is not None:
            if not _leaves_some(size, pinned):
                raise ValueError(f"param 'ratio' is {pinned}, which would empty a layer")
            return pinned, []
        assert budget is not None
        head, channel = unit_sizes(layer)

        def skip_of(step: int) -> float:
            heads, channels = removals(size, step / GRID)
            return len(span) * (heads * head + channels * channel) / backbone.parameters

        steps = [step for step in range(GRID) if _leaves_some(size, step / GRID)]
        step, trace = nearest(steps, skip_of, budget)
        return step / GRID, [row | {"setting": row["setting"] / GRID} for row in trace]

    def _saliences(
        self, backbone: Backbone, data: Data, span: range
    ) -> Iterator[tuple[int, Saliences]]:
        """Layer by layer the salience of each coupled matrix."""
        model, kind = backbone.model, self.params.importance
        if kind in MAGNITUDES:
            for index in span:
                yield index, magnitudes(layers(model)[index], MAGNITUDES[kind])
            return
        squared = kind in ("param_second", "param_mix")
        chosen = {"rows": self.params.samples, "length": self.params.length}
        batches = list(data.calibration(1 if squared else 16, **chosen))
        for gradients in layer_gradients(model, batches, span, squared):
            yield gradients.layer, taylor(kind, layers(model)[gradients.layer], gradients)

    def _scores(self, layer: nn.Module, saliences: Saliences) -> tuple[list[float], list[float]]:
        """Importance of each key/value head and of each FFN channel of a layer."""
        signed = self.params.importance == "vectorize"
        # A unit is a row of most matrices, and a column of the two that write to the stream.
        scores = {name: unit_scores(s, name in WRITERS, signed) for name, s in saliences}
        size = widths(layer)
        for name in ("q_proj", "o_proj"):
            scores[name] = fold(scores[name], size, self.params.gqa_fold)
        has_own_keys = size.query_heads == size.key_value_heads
        # The root, then the order in which the released code finds the others.
        root, last = ("q_proj", "k_proj") if has_own_keys else ("k_proj", "q_proj")
        heads = self._reduce([scores[name] for name in (root, "o_proj", "v_proj", last)])
        channels = self._reduce([scores[name] for name in ("gate_proj", "up_proj", "down_proj")])
        return heads.view(-1, size.head).sum(1).tolist(), channels.tolist()

    def _reduce(self, members: Sequence[Tensor]) -> Tensor:
        """One score per channel (C,) from those of its coupled matrices, each (C,)."""
        default = "mean" if self.params.importance in MAGNITUDES else "sum"
        reduction = self.params.group_reduction or default
        if reduction in ("first", "second"):
            return members[("first", "second").index(reduction)]
        stacked = torch.stack(list(members))
        return stacked.amax(0) if reduction == "max" else getattr(stacked, reduction)(0)


def taylor(kind: str, layer: nn.Module, gradients: LayerGradients) -> Saliences:
    """What the loss owes to each weight: s (rows, columns) of each coupled matrix, by name.

    The gradients are float32, and so is s whatever the weights are.
    """
    for name, linear in projections(layer).items():
        weight = linear.weight.detach()
        first = weight * gradients.first[name]
        if not gradients.squares:
            yield name, first
            continue
        second = weight * gradients.squares[name] * weight
        yield name, second if kind == "param_second" else first - second / 2


def magnitudes(layer: nn.Module, power: int) -> Saliences:
    """|w| to a power (rows, columns) of each coupled matrix, by name."""
    for name, linear in projections(layer).items():
        yield name, linear.weight.detach().float().abs() ** power


def unit_scores(salience: Tensor, by_column: bool, signed: bool) -> Tensor:
    """One score per row, or per column, of a matrix: sum |s|, or |sum s| if ``signed``."""
    other = 0 if by_column else 1
    return salience.sum(other).abs() if signed else salience.abs().sum(other)


def fold(scores: Tensor, size: Widths, how: str) -> Tensor:
    """Sum the scores of query channels onto the key/value heads.

    Args:
        scores: (query heads * channels per head,).
        size: Of the layer.
        how: ``"coupled"`` or ``"official"``.

    Returns:
        (key/value heads * channels per head,).
    """
    if how == "coupled":
        return scores.view(size.key_value_heads, -1, size.head).sum(1).flatten()
    return scores.view(-1, size.key_value_heads * size.head).sum(0)


def lowest(scores: Sequence[float], number: int) -> list[int]:
    """The ``number`` units of least importance, ascending by index; of equals the lower goes."""
    return sorted(sorted(range(len(scores)), key=lambda unit: scores[unit])[:number])


def removals(size: Widths, ratio: float) -> tuple[int, int]:
    """How many key/value heads and FFN channels a ratio takes from a layer, rounded as upstream."""
    rows = size.key_value_heads * size.head
    heads = (rows - int(rows * (1 - ratio))) // size.head
    return heads, size.channels - int(size.channels * (1 - ratio))


def _leaves_some(size: Widths, ratio: float) -> bool:
    heads, channels = removals(size, ratio)
    return heads < size.key_value_heads and channels < size.channels
