"""LLM-Pruner: remove the heads and FFN channels whose weights move the loss least."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
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
    gradient_reason,
    head_and_channel_sizes,
    layer_gradients,
    layers,
    narrow,
    narrow_reason,
    nearest,
    out_of_reach,
    projections,
    widths,
)

MAGNITUDES = {"l1": 1, "l2": 2}
GRID = 1000

Saliences = Iterator[tuple[str, Tensor]]


class LLMPruner(Method):
    """Removes the same share of heads and FFN channels from each of the middle layers.

    An FFN channel is a row of gate and of up and a column of down. A key/value head goes together
    with the query heads that read it: their rows of q, k and v, their columns of o. Nothing is
    trained.

    Formula: every weight w has a salience s. g is the gradient of the mean loss over all
    calibration tokens; a is the mean over documents of the squared gradient of a document's own
    mean loss. s = w g (first), s = w a w (second) or s = w g - w a w / 2 (mix). A row or column
    scores sum |s| (vectorize: |sum s|). The score of a channel is a reduction over the matrices
    that it is part of; a head sums its channels. Of C channels the C - int(C (1 - ratio)) lowest
    are removed: FFN channels one by one, channels of attention in whole heads, rounded down. So a
    small ratio removes FFN channels only.

    Args of ``Params``:
        ratio: Share of heads and channels to remove per layer, in [0, 1); None: the multiple of
            1/1000 whose parameter count is nearest to the budget.
        start: First layer to prune, 0-based; None: round(L / 8), at most 4 as the authors'.
        end: The layer after the last one to prune; None: L - round(L / 16), at least L - 2.
        importance: ``"param_first"`` (the code's default), ``"param_second"``, ``"param_mix"``,
            ``"vectorize"``; or the authors' controls ``"l1"``, ``"l2"``: s = |w|, s = w w.
        group_reduction: Over the matrices of a channel: ``"sum"``, ``"mean"``, ``"max"``,
            ``"prod"``, ``"first"``, ``"second"``, in the order gate, up, down and q, o, v, k (k, o,
            v, q if there are fewer key/value heads than query heads). None: sum; mean for l1 and
            l2; both as in the code.
        gqa_fold: Which query heads count for key/value head j of K, with R query heads each:
            ``"coupled"``: those removed with it, j R to j R + R - 1; ``"official"``: j, j + K, ...
        samples: How many calibration documents are used, from the first on; None: all. The authors
            use 10.
        length: Tokens taken from the middle of each document; shorter documents are left out. None:
            whole documents. The authors take 64.
    Memory: the weights; one layer's gradients in float32 (0.9 GB at 8B, twice that for second and
        mix); the states that entered each layer from ``start`` on (0.23 MB per token at 8B in 16
        bits); one batch within one layer. So Llama-3.1-8B in bfloat16 takes about 19 GB for the
        authors' 10 x 64 tokens and 50 GB for 50 x 2048.
    Source: Ma et al., LLM-Pruner: On the Structural Pruning of Large Language Models,
        arXiv 2305.11627, equations 3 to 6; block-wise mode with local selection.
    Differs from upstream: with grouped queries, scores are added up for the heads that are removed;
        the released script adds up others (``gqa_fold``). Gradients are accumulated in float32,
        layer by layer, at any batch size. Of equal heads or channels the lower one goes. A ratio
        that would empty a layer raises an error; the code silently leaves the layer whole. It reads
        the suite's calibration documents, not BookCorpus, from the middle of each. The authors
        train LoRA afterwards; here that is a row of its own (``then: lora``). The random control,
        the global and the iterative selection and the channel-wise and layer-wise modes are left
        out: no published command uses them. The authors count skip as we do: removed over all
        parameters.
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
        """Neither a budget nor param ``ratio`` is set, heads cannot be removed, or gradients are in
        float16.
        """
        by_gradients = self.params.importance not in MAGNITUDES
        if by_gradients and (reason := gradient_reason(backbone.model)):
            return reason
        if reason := narrow_reason(backbone.model):
            return reason
        if self.params.ratio is not None:
            return None
        if request.budget is None:
            return "neither a budget nor param 'ratio' says how much to remove"
        steps, skip_of = self._search(backbone, self._span(backbone.layer_count))
        return out_of_reach("heads and channels in reach", steps, skip_of, request.budget)

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
        """The layers to prune."""
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
        """The ratio, and the trace of its search (empty if pinned)."""
        pinned = self.params.ratio
        if pinned is not None:
            if not _leaves_some(widths(layers(backbone.model)[span.start]), pinned):
                raise ValueError(f"param 'ratio' is {pinned}, which would empty a layer")
            return pinned, []
        assert budget is not None
        step, trace = nearest(*self._search(backbone, span), budget)
        return step / GRID, [row | {"setting": row["setting"] / GRID} for row in trace]

    def _search(self, backbone: Backbone, span: range) -> tuple[list[int], Callable[[int], float]]:
        """The ratios that leave every layer something, in steps of 1 / GRID, and their skip."""
        layer = layers(backbone.model)[span.start]
        size, (head, channel) = widths(layer), head_and_channel_sizes(layer)

        def skip_of(step: int) -> float:
            heads, channels = removals(size, step / GRID)
            return len(span) * (heads * head + channels * channel) / backbone.parameters

        return [step for step in range(GRID) if _leaves_some(size, step / GRID)], skip_of

    def _saliences(
        self, backbone: Backbone, data: Data, span: range
    ) -> Iterator[tuple[int, Saliences]]:
        """The saliences of each layer's matrices, layer by layer."""
        model, kind = backbone.model, self.params.importance
        if kind in MAGNITUDES:
            for index in span:
                yield index, magnitudes(layers(model)[index], MAGNITUDES[kind])
            return
        squared = kind in ("param_second", "param_mix")
        excerpts = {"rows": self.params.samples, "length": self.params.length}
        # Squared gradients are of one document's loss each.
        batches = list(data.calibration(1 if squared else 16, **excerpts))
        for gradients in layer_gradients(model, batches, span, squared):
            yield gradients.layer, taylor(kind, layers(model)[gradients.layer], gradients)

    def _scores(self, layer: nn.Module, saliences: Saliences) -> tuple[list[float], list[float]]:
        """Importance of each key/value head and of each FFN channel of a layer."""
        signed = self.params.importance == "vectorize"
        # A channel is a row of most matrices, but a column of the two that write hidden states.
        scores = {name: row_scores(s, name in WRITERS, signed) for name, s in saliences}
        size = widths(layer)
        for name in ("q_proj", "o_proj"):
            scores[name] = fold(scores[name], size, self.params.gqa_fold)
        has_own_keys = size.query_heads == size.key_value_heads
        # The first matrix, then the others in the order of the released code.
        first, last = ("q_proj", "k_proj") if has_own_keys else ("k_proj", "q_proj")
        heads = self._reduce([scores[name] for name in (first, "o_proj", "v_proj", last)])
        channels = self._reduce([scores[name] for name in ("gate_proj", "up_proj", "down_proj")])
        return heads.view(-1, size.head).sum(1).tolist(), channels.tolist()

    def _reduce(self, members: Sequence[Tensor]) -> Tensor:
        """One score per channel (C,) from the scores in its matrices, each (C,)."""
        default = "mean" if self.params.importance in MAGNITUDES else "sum"
        reduction = self.params.group_reduction or default
        if reduction in ("first", "second"):
            return members[("first", "second").index(reduction)]
        stacked = torch.stack(list(members))
        return stacked.amax(0) if reduction == "max" else getattr(stacked, reduction)(0)


def taylor(kind: str, layer: nn.Module, gradients: LayerGradients) -> Saliences:
    """Salience from gradients: the name of each matrix and its s (rows, columns).

    Gradients are float32, and so is s for weights of any dtype.
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
    """Salience without gradients: the name of each matrix and |w| to a power."""
    for name, linear in projections(layer).items():
        yield name, linear.weight.detach().float().abs() ** power


def row_scores(salience: Tensor, by_column: bool, signed: bool) -> Tensor:
    """One score per row, or per column, of a matrix: sum |s|, or |sum s| if ``signed``."""
    other = 0 if by_column else 1
    return salience.sum(other).abs() if signed else salience.abs().sum(other)


def fold(scores: Tensor, size: Widths, how: str) -> Tensor:
    """Add up the scores of the query heads that count for each key/value head.

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
    """The ``number`` heads or channels of least importance, by index; of equal ones the lower."""
    return sorted(sorted(range(len(scores)), key=lambda index: scores[index])[:number])


def removals(size: Widths, ratio: float) -> tuple[int, int]:
    """How many key/value heads and FFN channels a ratio removes per layer, rounded as upstream."""
    rows = size.key_value_heads * size.head
    heads = (rows - int(rows * (1 - ratio))) // size.head
    return heads, size.channels - int(size.channels * (1 - ratio))


def _leaves_some(size: Widths, ratio: float) -> bool:
    heads, channels = removals(size, ratio)
    return heads < size.key_value_heads and channels < size.channels
