"""SliceGPT: rotate the hidden states to their principal directions and drop the last ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from methods.api import (
    Backbone,
    Cost,
    Data,
    Fitted,
    Method,
    Rates,
    Request,
    attention,
    attention_masks,
    attention_norm,
    by_rows,
    decoder,
    embedding_factor,
    factor_of,
    ffn,
    ffn_norm,
    fuse_norms,
    generator,
    layers,
    nearest,
    norm_behind,
    out_of_reach,
    slice_hidden_states,
    sliced_parameters,
)

DAMPING = 0.01  # of the mean squared activation, added to the diagonal: as in the authors' code


class SliceGPT(Method):
    """Keeps D principal directions of the hidden states and slices every matrix to them.

    The weights of the norms are merged into the matrices after them; an RMS norm without weights
    commutes with rotations. The hidden states get a new basis at every cut: after the embedding,
    after each attention and after each FFN. A basis is fitted to what the layers before the cut,
    already sliced, make of the calibration documents. Shortcuts carry the residual from one basis
    to the next.

    Formula: C = sum over tokens of x^T x, C := C + 0.01 mean(diag C) I. x (H,) are the hidden
    states before the norm, not centred. Q holds the D eigenvectors of C with the largest
    eigenvalues. Matrices that read hidden states: W := W Q; matrices that write them: W := Q^T W;
    shortcuts: Q_before^T Q_after.

    Args of ``Params``:
        slice_fraction: Share s of the H directions to drop, in [0, 1): D = int((1 - s) H), rounded
            down to a multiple of ``round_to``. It is not the share of parameters. None: the D
            whose skip is nearest to the budget.
        round_to: D is a multiple of it.
        center_embeddings: Whether to subtract from every embedding row its mean, as the released
            code does for every family. A backbone with RMS norms then computes another function.
        orientation: ``"pca"``, or ``"random"``: a random rotation, drawn from the seed, mixes the D
            directions. It evens out magnitudes and does not change the function.
        do_slice_head: Whether to slice the hidden states after the last layer, which the head
            reads.
    Source: Ashkboos et al., SliceGPT: Compress Large Language Models by Deleting Rows and Columns,
        arXiv 2401.15024, section 3.
    Differs from upstream: it reads the calibration documents of all rows, not 128 texts of
        WikiText-2. Embeddings are not centred, so that s = 0 is exact. eps comes from the config
        instead of 1e-5. A head tied to the embeddings is untied and its copy counts, so a budget
        leaves fewer directions. ``orientation`` defaults to ``"pca"``, which needs no random
        numbers. Calibration runs dense layers on projected hidden states. This is the same
        function as running sliced layers, with one forward pass per layer instead of two.
    """

    title = "SliceGPT"
    source = "arXiv 2401.15024"
    kind = "static"
    trained = False
    stochastic = False
    budgeted = True
    causal = True

    @dataclass(frozen=True)
    class Params:
        """See the class."""

        slice_fraction: float | None = None
        round_to: int = 8
        center_embeddings: bool = False
        orientation: Literal["pca", "random"] = "pca"
        do_slice_head: bool = False

        def __post_init__(self) -> None:
            share = self.slice_fraction
            if share is not None and not 0 <= share < 1:
                raise ValueError(
                    f"param 'slice_fraction' is {share}, must be at least 0 and below 1"
                )
            if self.round_to < 1:
                raise ValueError(f"param 'round_to' is {self.round_to}, must be at least 1")

    def skip_reason(self, backbone: Backbone, request: Request) -> str | None:
        """No share is set, or norms and factors do not let directions be dropped."""
        layer = layers(backbone.model)[0]
        behind = [norm_behind(layer, kind) for kind in ("attention", "ffn")]
        if factor_of(layer) != 1.0 or not all(isinstance(norm, nn.Identity) for norm in behind):
            return "it folds norms into the matrices behind them, and here norms or factors follow"
        if self.params.slice_fraction is not None:
            return None
        if request.budget is None:
            return "neither a budget nor param 'slice_fraction' says how much to slice"
        return out_of_reach("directions in reach", *self._search(backbone), request.budget)

    def fit(self, backbone: Backbone, data: Data, request: Request) -> Fitted:
        """Fuse the norms, then find and apply the cuts layer by layer."""
        model, full = backbone.model, backbone.config.hidden_size
        width, trace = self._width(backbone, request.budget)
        structure = {"width": width, "slice_head": self.params.do_slice_head}
        widths = _widths(backbone, structure)
        fuse_norms(model)
        if self.params.center_embeddings:
            center(decoder(model).embed_tokens)  # type: ignore[arg-type]
        eigenvalues: list[list[float]] = []
        cuts = self._cuts(model, Stream.embed(model, data), widths, request.seed, eigenvalues)
        pinned = self.params.slice_fraction
        decisions = {
            "slice_fraction": 1 - width / full if pinned is None else pinned,
            "widths": widths,
            "budget_search": trace,
            "eigenvalues": eigenvalues,
        }
        return Fitted(slice_hidden_states(model, cuts), structure, decisions)

    def build(self, backbone: Backbone, structure: Mapping[str, Any]) -> nn.Module:
        """The sliced shape; a file fills in its weights."""
        model = fuse_norms(backbone.model)
        options: dict[str, Any] = {"dtype": torch.float64, "device": model.device}
        full = model.config.hidden_size
        return slice_hidden_states(
            model, (torch.eye(full, w, **options) for w in _widths(backbone, structure))
        )

    def cost(self, backbone: Backbone, request: Request) -> Cost:
        """One pass; covariances and eigenvectors take about as long as two more."""
        return Cost(passes=3)

    def authors_skip(self, rates: Rates) -> float:
        """The share removed from the fused model with full shortcuts, as the code prints it."""
        assert rates.ledger.fused is not None
        return 1.0 - rates.ledger.resident / rates.ledger.fused

    def _width(
        self, backbone: Backbone, budget: float | None
    ) -> tuple[int, list[dict[str, float]]]:
        """D, and the trace of its search (empty if pinned)."""
        full, pinned = int(backbone.config.hidden_size), self.params.slice_fraction
        settings, skip_of = self._search(backbone)
        if pinned is not None:
            return width_for(full, pinned, self.params.round_to), []
        assert budget is not None
        return nearest(settings, skip_of, budget)

    def _search(self, backbone: Backbone) -> tuple[range, Callable[[int], float]]:
        """The widths to try, the largest first, and their skip.

        Raises:
            ValueError: ``round_to`` is above the number of directions.
        """
        full, step = int(backbone.config.hidden_size), self.params.round_to
        if step > full:
            raise ValueError(f"param 'round_to' is {step}, the stream has {full} directions")

        def skip_of(width: int) -> float:
            last = width if self.params.do_slice_head else full
            return 1 - sliced_parameters(backbone.model, width, last) / backbone.parameters

        return range(full - full % step, 0, -step), skip_of

    def _cuts(
        self,
        model: PreTrainedModel,
        stream: Stream,
        widths: list[int],
        seed: int,
        eigenvalues: list[list[float]],
    ) -> Iterator[Tensor]:
        """The bases (H, D) of all cuts in order; each layer runs between two of them.

        The layers are still dense when they run. Hidden states projected onto a basis pass through
        them as their coordinates would pass through the sliced ones.
        """

        def cut() -> Tensor:
            number = len(eigenvalues)
            values, vectors = stream.principal_directions(model.device)
            eigenvalues.append(values.tolist())
            basis = vectors[:, : widths[number]]
            if self.params.orientation == "random":
                rotation = random_rotation(widths[number], seed, f"slicegpt rotation {number}")
                basis = basis @ rotation.to(model.device)
            return basis

        basis = cut()
        yield basis
        for number, layer in enumerate(layers(model)):
            stream.advance(model.device, basis, attention_half(model, number))
            basis = cut()
            yield basis
            stream.advance(model.device, basis, ffn_half(layer))
            basis = cut()
            yield basis


@dataclass
class Stream:
    """The hidden states of all calibration documents at one place, in the dense basis.

    Args:
        states: Per batch (B, T, H), on the CPU, in the model's dtype.
        valid: Per batch (B, T) bool, False on pads.
    """

    states: list[Tensor]
    valid: list[Tensor]

    @classmethod
    @torch.no_grad()
    def embed(cls, model: PreTrainedModel, data: Data) -> Stream:
        """The hidden states after the embedding."""
        look_up = decoder(model).embed_tokens
        assert isinstance(look_up, nn.Embedding)
        batches = list(data.calibration())
        factor = embedding_factor(model.config)
        states = [(factor * look_up(batch.ids.to(model.device))).cpu() for batch in batches]
        return cls(states, [batch.valid for batch in batches])

    def advance(
        self, device: torch.device, basis: Tensor, step: Callable[[Tensor], Tensor]
    ) -> None:
        """Project the states onto ``basis`` (H, D) and pass them through ``step``."""
        wide = torch.promote_types(self.states[0].dtype, torch.float32)
        onto = basis.to(wide)
        for number, state in enumerate(self.states):
            projected = (state.to(device, wide) @ onto) @ onto.T
            self.states[number] = step(projected.to(state.dtype)).cpu()

    def principal_directions(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """PCA over all real tokens, without centring.

        Returns:
            Eigenvalues (H,), the largest first, and eigenvectors (H, H) as columns, in float64.
        """
        size = self.states[0].shape[-1]
        squares = torch.zeros(size, size, dtype=torch.float64, device=device)
        for batch, valid in zip(self.states, self.valid, strict=True):
            # One document at a time: a float64 copy of a whole batch would be large.
            for document, real in zip(batch, valid, strict=True):
                rows = document[real].to(device, torch.float64)
                squares.addmm_(rows.T, rows)
        squares.diagonal().add_(DAMPING * squares.diagonal().mean())
        values, vectors = torch.linalg.eigh(squares)
        return values.flip(0), vectors.flip(1)


def attention_half(model: PreTrainedModel, number: int) -> Callable[[Tensor], Tensor]:
    """The attention of layer ``number``, residual included: (B, T, H) to (B, T, H).

    Pads on the right need no mask: in a causal model no real token sees them.
    """
    layer = layers(model)[number]

    def run(hidden: Tensor) -> Tensor:
        positions = torch.arange(hidden.shape[1], device=hidden.device)[None]
        masks = attention_masks(model.config, hidden, None, None, positions)
        rotary = decoder(model).rotary_emb(hidden, position_ids=positions)  # type: ignore[operator]
        mixed, _ = attention(layer)(
            hidden_states=attention_norm(layer)(hidden),
            attention_mask=masks[number],
            position_embeddings=rotary,
            position_ids=positions,
        )
        return hidden + mixed

    return run


def ffn_half(layer: nn.Module) -> Callable[[Tensor], Tensor]:
    """The FFN of a layer, residual included: (B, T, H) to (B, T, H)."""
    return lambda hidden: hidden + ffn(layer)(ffn_norm(layer)(hidden))


def width_for(full: int, slice_fraction: float, round_to: int) -> int:
    """D = int((1 - s) H), rounded down to a multiple of ``round_to``.

    Raises:
        ValueError: D would be 0.
    """
    width = int((1 - slice_fraction) * full)
    width -= width % round_to
    if width == 0:
        raise ValueError(
            f"param 'slice_fraction' is {slice_fraction}: of {full} directions fewer than "
            f"'round_to', {round_to}, are left"
        )
    return width


@torch.no_grad()
def center(embeddings: nn.Embedding) -> None:
    """Subtract from every row (H,) its mean."""
    weight = embeddings.weight
    centered = by_rows(weight, lambda rows: rows - rows.mean(dim=1, keepdim=True), weight.shape[1])
    embeddings.weight = nn.Parameter(centered)


def random_rotation(size: int, seed: int, purpose: str) -> Tensor:
    """An orthogonal matrix (size, size), float64: the Q factor of a uniform random matrix."""
    uniform = torch.rand(size, size, dtype=torch.float64, generator=generator(seed, purpose))
    return torch.linalg.qr(uniform).Q


def _widths(backbone: Backbone, structure: Mapping[str, Any]) -> list[int]:
    """Number of directions at each of the 2 L + 1 cuts."""
    width = structure["width"]
    last = width if structure["slice_head"] else backbone.config.hidden_size
    return [width] * (2 * backbone.layer_count) + [last]
