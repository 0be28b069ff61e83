"""ReplaceMe: a run of layers becomes one linear map inside the FFN before it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity
from transformers import PreTrainedModel

from methods.api import (
    Backbone,
    Batch,
    Cost,
    Data,
    Fitted,
    Method,
    Rates,
    Request,
    absorb_output_basis,
    check_least,
    factor_of,
    ffn,
    ffn_writer,
    generator,
    layers,
    layers_to_remove,
    norm_behind,
    observe,
    remove_layers,
    unremovable,
)


class ReplaceMe(Method):
    """Removes n consecutive layers, and multiplies what the FFN before them writes by a matrix.

    The n layers are those that change the hidden states least. The matrix is fitted so that the
    hidden states come close to what the removed layers would have made of them. It is merged into
    the last projection of the FFN, so that the model has no new parameters. Nothing else is fitted.

    Formula: Y_l (D,) is the output of layer l. d_l = mean over documents of
    arccos(cos(Y_l, Y_{l+n})) / pi at the last token, for l = 0 .. L - n - 1. i = argmin d, the
    lower of equal ones; layers i + 1 to i + n are removed. M (tokens, D) is what the FFN of layer i
    adds. (Y_i - M) + M T should be Y_{i+n}, so T = (M^T M + ridge I)^-1 M^T (Y_{i+n} - Y_i + M).
    Merged: W := T^T W for the last projection W (D, F) of that FFN, b := b T for its bias. Under
    ``cosine`` Adam starts at T = I and minimises 1 - mean cos(M T, Y_{i+n} - Y_i + M), or with
    ``accurate`` 1 - mean cos((Y_i - M) + M T, Y_{i+n}).

    Args of ``Params``:
        layers: Number n of layers to remove; None: the number nearest to the budget. The run of n
            layers need not contain the run of fewer.
        fit: ``"lstsq"``, or ``"cosine"``, the better of the two in the authors' tables.
        ridge: Added to the diagonal of M^T M, which is not scaled (lstsq).
        tokens: Which tokens of a document enter d: the ``"last"`` one or ``"all"``.
        accurate: Which of the two cosines is used (cosine).
        learning_rate: Of Adam (cosine).
        epochs: Passes over all tokens (cosine).
        batch_tokens: Tokens per step, drawn from all documents (cosine). Their order is the same
            under every seed.
    Memory: the model and one batch of activations; lstsq adds five matrices D x D in float64
        (0.7 GB at 8B), cosine three vectors of D per token in float32 (49 kB at 8B).
    Source: Shopkhoev et al., ReplaceMe: Network Simplification via Depth Pruning and Transformer
        Block Linearization, arXiv 2505.02819.
    Differs from upstream: the output of the last layer is taken before the final norm; the released
        code takes it after. Pads do not count. Statistics come from the model as it is, not from
        4-bit weights. No batch is dropped. It reads the suite's calibration documents; the authors
        take 8,000 dialogues. Fewer documents give fewer steps, and at the authors' learning rate T
        then stays near I. It removes one run only (the authors' num_A = 1), and lacks their elastic
        net, diagonal maps and general solvers. A singular M^T M raises an error.
    """

    title = "ReplaceMe ({fit})"
    source = "arXiv 2505.02819"
    kind = "static"
    trained = False
    stochastic = False
    budgeted = True
    causal = True
    rows = {"replaceme": {"fit": "lstsq"}, "replaceme-cosine": {"fit": "cosine"}}

    @dataclass(frozen=True)
    class Params:
        """See the class."""

        layers: int | None = None
        fit: Literal["lstsq", "cosine"] = "lstsq"
        ridge: float = 0.0
        tokens: Literal["last", "all"] = "last"
        accurate: bool = False
        learning_rate: float = 1e-4
        epochs: int = 10
        batch_tokens: int = 1024

        def __post_init__(self) -> None:
            if not 0 <= self.ridge < math.inf:
                raise ValueError(f"param 'ridge' is {self.ridge}, must be at least 0")
            if not 0 < self.learning_rate < math.inf:
                raise ValueError(f"param 'learning_rate' is {self.learning_rate}, must be above 0")
            check_least(self, 1, "epochs", "batch_tokens")

    def skip_reason(self, backbone: Backbone, request: Request) -> str | None:
        """No number of layers is set, or the matrix could not be merged."""
        if not isinstance(norm_behind(layers(backbone.model)[0], "ffn"), nn.Identity):
            return "a norm follows what its FFNs write, so the matrix cannot be merged into them"
        return unremovable(backbone, request.budget, self.params.layers)

    def fit(self, backbone: Backbone, data: Data, request: Request) -> Fitted:
        """Choose the run of layers, fit the matrix, merge it and remove the run."""
        model = backbone.model
        number, trace = layers_to_remove(backbone, request.budget, self.params.layers)
        scores = distances(model, data, number, self.params.tokens)
        first = min(range(len(scores)), key=lambda layer: (scores[layer], layer))
        removed = list(range(first + 1, first + 1 + number))
        transform = torch.eye(backbone.config.hidden_size, dtype=torch.float64)
        curve: list[float] = []
        if removed:
            transform, curve = self._transform(model, data, first, number)
            with torch.no_grad():
                absorb_output_basis(ffn_writer(layers(model)[first]), transform.to(model.device))
        change = transform - torch.eye(len(transform), dtype=torch.float64)
        decisions = {
            "scores": scores,
            "removed_layers": removed,
            "absorbed_by": first,
            "transform_norm": float(transform.norm()),
            "transform_change": float(change.norm()),
            "loss_curve": curve,
            "budget_search": trace,
        }
        structure = {"removed_layers": removed}
        return Fitted(self.build(backbone, structure), structure, decisions)

    def build(self, backbone: Backbone, structure: Mapping[str, Any]) -> nn.Module:
        """The backbone without the removed layers; a file fills in its weights."""
        return remove_layers(backbone.model, structure["removed_layers"])

    def cost(self, backbone: Backbone, request: Request) -> Cost:
        """A pass for the distances, one for the matrix."""
        return Cost(passes=2)

    def authors_skip(self, rates: Rates) -> float:
        """The share of layers removed."""
        return 1.0 - rates.ledger.layers / rates.ledger.dense_layers

    def _transform(
        self, model: PreTrainedModel, data: Data, first: int, number: int
    ) -> tuple[Tensor, list[float]]:
        """T (D, D), float64 on the CPU, and the mean loss of each epoch (cosine)."""
        if self.params.fit == "lstsq":
            pairs = updates(model, data, first, number, torch.float64)
            return least_squares(pairs, self.params.ridge).cpu(), []
        wide = torch.promote_types(model.dtype, torch.float32)
        parts = zip(*updates(model, data, first, number, wide), strict=True)
        transform, curve = highest_cosine(Updates(*map(torch.cat, parts)), self.params)
        return transform.double().cpu(), curve


class Updates(NamedTuple):
    """What the FFN of layer i adds to the hidden states of n tokens, and what it should add.

    Each (n, D): ``update`` is M; ``aim`` is Y_{i+n} - Y_i + M; ``base`` is Y_i - M, the hidden
    states that the FFN adds to.
    """

    update: Tensor
    aim: Tensor
    base: Tensor


@torch.no_grad()
def distances(model: PreTrainedModel, data: Data, number: int, tokens: str) -> list[float]:
    """How much the ``number`` layers after layer l turn the hidden states: d_l for every l."""
    total = len(layers(model))
    sums, count = torch.zeros(total - number, dtype=torch.float64), 0
    for batch in data.calibration():
        rows = slice(None) if tokens == "all" else batch.valid.sum(1).cumsum(0) - 1
        states = _outputs(model, batch, layers(model), rows)
        ends = zip(states, states[number:], strict=False)
        sums += torch.stack([_angles(a.double(), b.double()).sum() for a, b in ends]).cpu()
        count += len(states[0])
    return [float(value) for value in sums / count]


def _angles(before: Tensor, after: Tensor) -> Tensor:
    """arccos(cos) / pi of each row (n, D); 0.5 for a zero vector."""
    return cosine_similarity(before, after, dim=-1).clamp(-1, 1).arccos() / math.pi


def updates(
    model: PreTrainedModel, data: Data, first: int, number: int, dtype: torch.dtype
) -> Iterator[Updates]:
    """What the FFN of layer ``first`` adds and should add, batch by batch, without pads."""
    stack, factor = layers(model), factor_of(layers(model)[first])
    modules = [ffn(stack[first]), stack[first], stack[first + number]]
    for batch in data.calibration():
        outputs = _outputs(model, batch, modules, slice(None))
        update, before, after = (part.to(dtype) for part in outputs)
        if factor != 1.0:
            update = update * factor
        # In this order the aim is exactly M if the removed layers add nothing.
        yield Updates(update, after - before + update, before - update)


def _outputs(
    model: PreTrainedModel, batch: Batch, modules: Iterable[nn.Module], rows: slice | Tensor
) -> list[Tensor]:
    """The outputs of modules for these ``rows`` of a batch's real tokens, each (n, D).

    ``modules`` are in the order in which they run.
    """
    outputs: list[Tensor] = []
    observe(model, batch, modules, lambda _, __, output: outputs.append(output[rows]))
    return outputs


def least_squares(pairs: Iterable[Updates], ridge: float) -> Tensor:
    """T (D, D) that minimises |M T - aim|^2 + ``ridge`` |T|^2, by normal equations.

    Raises:
        ValueError: M^T M is singular.
    """
    gram = cross = torch.zeros((), dtype=torch.float64)
    for update, aim, _ in pairs:
        gram, cross = gram + update.T @ update, cross + update.T @ aim
    gram.diagonal().add_(ridge)
    values, vectors = torch.linalg.eigh(gram)
    least = values[-1] * len(values) * torch.finfo(values.dtype).eps
    if not values[0] > least:
        raise ValueError(
            f"param 'ridge' is {ridge}: what the FFN writes on the calibration tokens spans fewer "
            f"than {len(values)} directions, give more documents or a ridge above 0"
        )
    return vectors @ ((vectors.T @ cross) / values[:, None])


@torch.enable_grad()
def highest_cosine(pairs: Updates, params: ReplaceMe.Params) -> tuple[Tensor, list[float]]:
    """T (D, D) that turns M towards the aim, by Adam from the identity.

    Returns:
        T, and the mean loss of each epoch.
    """
    update, aim, base = pairs
    options: dict[str, Any] = {"dtype": update.dtype, "device": update.device}
    transform = torch.eye(update.shape[1], **options).requires_grad_()
    optimizer = torch.optim.Adam([transform], lr=params.learning_rate)
    # Seed 0: the tokens have the same order under every seed of a run.
    rng, curve = generator(0, "replaceme tokens"), []
    for _ in range(params.epochs):
        total = 0.0
        for rows in torch.randperm(len(update), generator=rng).split(params.batch_tokens):
            rows = rows.to(update.device)
            output, target = update[rows] @ transform, aim[rows]
            if params.accurate:
                output, target = output + base[rows], target + base[rows]
            loss = 1 - cosine_similarity(output, target, dim=-1).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += float(loss.detach()) * len(rows)
        curve.append(total / len(update))
    return transform.detach(), curve
