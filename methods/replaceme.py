"""ReplaceMe: a run of layers becomes one linear map inside the FFN in front of it."""

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
    ffn,
    ffn_writer,
    generator,
    layers,
    layers_to_remove,
    observe,
    remove_layers,
    write,
)


class ReplaceMe(Method):
    """Removes the n consecutive layers that turn the stream least, and multiplies what the FFN in
    front of them writes by a matrix that leads to where they would have led. The matrix is merged
    into that FFN's last projection, so nothing is added; only the matrix is fitted.

    Formula: Y_l (D,) the output of layer l, raw. d_l = mean over documents of
    arccos(cos(Y_l, Y_{l+n})) / pi at the last token, l = 0 .. L - n - 1; i = argmin d, the lower at
    equal distance; layers i + 1 to i + n go. With M (D,) what the FFN of layer i adds, rows over
    all tokens, (Y_i - M) + M T shall be Y_{i+n}: T = (M^T M + ridge I)^-1 M^T (Y_{i+n} - Y_i + M).
    Merged: W := T^T W for the last projection W (D, F) of that FFN, b := b T for its bias. Under
    ``cosine`` Adam starts at T = I and lowers 1 - mean cos(M T, Y_{i+n} - Y_i + M), or with
    ``accurate`` 1 - mean cos((Y_i - M) + M T, Y_{i+n}).

    Args of ``Params``:
        layers: Number n of layers to remove; None: the number nearest to the budget. Every n has a
            run of its own, these need not contain each other.
        fit: ``"lstsq"``, or ``"cosine"``, the better of the two in the authors' tables.
        ridge: Added to the diagonal of M^T M, as it stands (lstsq).
        tokens: Which tokens of a document enter d: the ``"last"`` one or ``"all"``.
        accurate: Which cosine is raised, see above (cosine).
        learning_rate: Of Adam (cosine).
        epochs: Passes over all tokens (cosine).
        batch_tokens: Tokens, drawn from all documents, per step (cosine); their order is the same
            under every seed.
    Memory: the model and one batch of activations; lstsq adds five matrices D x D in float64
        (0.7 GB at 8B), cosine three vectors of D per token in float32 (49 kB at 8B).
    Source: Shopkhoev et al., ReplaceMe: Network Simplification via Depth Pruning and Transformer
        Block Linearization, arXiv 2505.02819.
    Differs from upstream: the last layer's state is taken in front of the final norm, behind which
        the released code takes it; pads stay out of the fit; statistics come from the model as it
        is, not from 4-bit weights; no batch is dropped; it reads the suite's calibration documents,
        where the authors take 8,000 dialogues: few documents make few steps, so that their rate
        leaves T near I. One run only (the authors' num_A); without their elastic net, diagonal maps
        and general solvers. A singular M^T M is refused.
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
            """Check ranges.

            Raises:
                ValueError: A number is out of its range.
            """
            if not 0 <= self.ridge < math.inf:
                raise ValueError(f"param 'ridge' is {self.ridge}, must be at least 0")
            if not 0 < self.learning_rate < math.inf:
                raise ValueError(f"param 'learning_rate' is {self.learning_rate}, must be above 0")
            for name in ("epochs", "batch_tokens"):
                if getattr(self, name) < 1:
                    raise ValueError(f"param '{name}' is {getattr(self, name)}, must be at least 1")

    def skip_reason(self, backbone: Backbone, request: Request) -> str | None:
        """A budget or a pinned number of layers must be given."""
        if request.budget is None and self.params.layers is None:
            return "neither a budget nor param 'layers' says how many layers to remove"
        return None

    def fit(self, backbone: Backbone, data: Data, request: Request) -> Fitted:
        """Choose the run, fit the matrix, merge it and remove the run."""
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
                write(ffn_writer(layers(model)[first]), transform.to(model.device))
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
        """The backbone without the removed layers, whose weights a file fills."""
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
        """T (D, D), float64 on the CPU, and the mean loss of each epoch, if there are any."""
        if self.params.fit == "lstsq":
            pairs = updates(model, data, first, number, torch.float64)
            return least_squares(pairs, self.params.ridge).cpu(), []
        wide = torch.promote_types(model.dtype, torch.float32)
        parts = zip(*updates(model, data, first, number, wide), strict=True)
        transform, curve = most_alike(Updates(*map(torch.cat, parts)), self.params)
        return transform.double().cpu(), curve


class Updates(NamedTuple):
    """What the FFN of layer i does to n tokens, and what it shall do; each (n, D).

    ``made`` is M, what the FFN adds; ``wanted`` is Y_{i+n} - Y_i + M, what it should add;
    ``stream`` is Y_i - M, what it adds to.
    """

    made: Tensor
    wanted: Tensor
    stream: Tensor


@torch.no_grad()
def distances(model: PreTrainedModel, data: Data, number: int, tokens: str) -> list[float]:
    """How far ``number`` layers behind each layer l turn the stream: d_l for l = 0 .. L - n - 1."""
    total = len(layers(model))
    sums, counted = torch.zeros(total - number, dtype=torch.float64), 0
    for batch in data.calibration():
        chosen = slice(None) if tokens == "all" else batch.valid.sum(1).cumsum(0) - 1
        states = _outputs(model, batch, layers(model), chosen)
        ends = zip(states, states[number:], strict=False)
        sums += torch.stack([_angles(a.double(), b.double()).sum() for a, b in ends]).cpu()
        counted += len(states[0])
    return [float(value) for value in sums / counted]


def _angles(before: Tensor, after: Tensor) -> Tensor:
    """arccos(cos) / pi of each row (n, D); 0.5 beside a zero vector."""
    return cosine_similarity(before, after, dim=-1).clamp(-1, 1).arccos() / math.pi


def updates(
    model: PreTrainedModel, data: Data, first: int, number: int, dtype: torch.dtype
) -> Iterator[Updates]:
    """What the FFN of layer ``first`` adds and should add, batch by batch; pads are left out."""
    stack = layers(model)
    watched = [ffn(stack[first]), stack[first], stack[first + number]]
    for batch in data.calibration():
        found = _outputs(model, batch, watched, slice(None))
        made, before, after = (part.to(dtype) for part in found)
        # Exactly M where the removed layers add nothing.
        yield Updates(made, after - before + made, before - made)


def _outputs(
    model: PreTrainedModel, batch: Batch, modules: Iterable[nn.Module], chosen: slice | Tensor
) -> list[Tensor]:
    """What modules make of the ``chosen`` ones of a batch's real tokens, each (n, D).

    ``modules`` are in the order in which they run.
    """
    found: list[Tensor] = []
    observe(model, batch, modules, lambda _, __, made: found.append(made[chosen]))
    return found


def least_squares(pairs: Iterable[Updates], ridge: float) -> Tensor:
    """T (D, D) with the least squared error of M T, plus ``ridge`` |T|^2; normal equations.

    Raises:
        ValueError: M^T M is singular.
    """
    gram = cross = torch.zeros((), dtype=torch.float64)
    for made, wanted, _ in pairs:
        gram, cross = gram + made.T @ made, cross + made.T @ wanted
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
def most_alike(pairs: Updates, params: ReplaceMe.Params) -> tuple[Tensor, list[float]]:
    """T (D, D) that turns M towards what is wanted, by Adam from the identity.

    Returns:
        T, and the mean loss of each epoch.
    """
    made, wanted, stream = pairs
    transform = torch.eye(made.shape[1], dtype=made.dtype, device=made.device).requires_grad_()
    optimizer = torch.optim.Adam([transform], lr=params.learning_rate)
    # One order of the tokens for every seed of a run.
    shuffled, curve = generator(0, "replaceme tokens"), []
    for _ in range(params.epochs):
        total = 0.0
        for rows in torch.randperm(len(made), generator=shuffled).split(params.batch_tokens):
            rows = rows.to(made.device)
            found, aim = made[rows] @ transform, wanted[rows]
            if params.accurate:
                found, aim = found + stream[rows], aim + stream[rows]
            loss = 1 - cosine_similarity(found, aim, dim=-1).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += float(loss.detach()) * len(rows)
        curve.append(total / len(made))
    return transform.detach(), curve
