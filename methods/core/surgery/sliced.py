"""A residual stream with fewer directions: the structure that SliceGPT leaves behind.

A cut is a point of the stream where a basis (H, d) with orthonormal columns is chosen: behind the
embedding, and in each layer behind attention and behind the FFN. Behind a cut the stream is held as
d coordinates. Matrices that read the stream absorb the basis of the cut in front of them, matrices
that write to it that of the cut behind them; the residual path, which has no matrix of its own,
gets a small one, its shortcut, that leads from one basis to the next.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.utils.output_capturing import install_output_capuring_hook

from methods.core.model.backbone import (
    attention,
    attention_norm,
    count,
    decoder,
    ffn,
    ffn_norm,
    layers,
)

# Rows that are rotated at a time: float64 copies of an embedding matrix stay below 1 GB.
ROWS = 16384


class UnweightedNorm(nn.Module):
    """RMS norm without a weight: x / sqrt(|x|^2 / width + eps).

    Args:
        width: Directions of the dense stream, H; sliced ones count as zeros.
        eps: Of the config.
    """

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.width, self.eps = width, eps

    def forward(self, hidden: Tensor) -> Tensor:
        """(..., d) to (..., d), computed in float32 or wider."""
        wide = hidden.to(torch.promote_types(hidden.dtype, torch.float32))
        mean_square = wide.square().sum(-1, keepdim=True) / self.width
        return (wide * torch.rsqrt(mean_square + self.eps)).to(hidden.dtype)


class SlicedLayer(GradientCheckpointingLayer):
    """A decoder layer on a sliced stream: h = attn(norm(x)) + x A, then ffn(norm(h)) + h B.

    Args:
        layer: Fused decoder layer; its attention and FFN are taken over and sliced.
        before: Basis of the cut at the layer's input (H, d0), float64.
        middle: Basis behind attention (H, d1); A = before^T middle.
        after: Basis behind the FFN (H, d2); B = middle^T after.
    """

    def __init__(self, layer: nn.Module, before: Tensor, middle: Tensor, after: Tensor) -> None:
        super().__init__()
        self.self_attn, self.mlp = attention(layer), ffn(layer)
        self.input_layernorm = attention_norm(layer)
        self.post_attention_layernorm = ffn_norm(layer)
        for matrix in attention_readers(layer):
            read(matrix, before)
        for matrix in ffn_readers(layer):
            read(matrix, middle)
        dtype = attention_writer(layer).weight.dtype
        write(attention_writer(layer), middle)
        write(ffn_writer(layer), after)
        self.attention_shortcut = shortcut(before, middle, dtype)
        self.ffn_shortcut = shortcut(middle, after, dtype)

        # transformers records what leaves the layers of a family, and this is none of them.
        install_output_capuring_hook(self, "hidden_states", 0)

    def forward(self, hidden_states: Tensor, **kwargs: object) -> Tensor:
        """(B, T, d0) to (B, T, d2); masks, positions and cache go to attention as they are."""
        normed = self.input_layernorm(hidden_states)
        mixed, _ = self.self_attn(hidden_states=normed, **kwargs)
        middle = mixed + self.attention_shortcut(hidden_states)
        update = self.mlp(self.post_attention_layernorm(middle))
        return update + self.ffn_shortcut(middle)


def attention_readers(layer: nn.Module) -> list[nn.Linear]:
    """The matrices behind the norm in front of attention."""
    return [linear(attention(layer), name) for name in ("q_proj", "k_proj", "v_proj")]


def ffn_readers(layer: nn.Module) -> list[nn.Linear]:
    """The matrices behind the norm in front of the FFN."""
    return [linear(ffn(layer), name) for name in ("gate_proj", "up_proj")]


def attention_writer(layer: nn.Module) -> nn.Linear:
    """The matrix through which attention writes to the stream."""
    return linear(attention(layer), "o_proj")


def ffn_writer(layer: nn.Module) -> nn.Linear:
    """The matrix through which the FFN writes to the stream."""
    return linear(ffn(layer), "down_proj")


def linear(module: nn.Module, name: str) -> nn.Linear:
    """The linear submodule ``name``."""
    found = module.get_submodule(name)
    assert isinstance(found, nn.Linear)
    return found


@torch.no_grad()
def fuse_norms(model: PreTrainedModel) -> PreTrainedModel:
    """Fold the weight of every norm into the matrices behind it, in place; untie the head.

    Exact: the logits stay what they were. Afterwards the norms commute with rotations.
    """
    embeddings, head, config = decoder(model).embed_tokens, linear(model, "lm_head"), model.config
    assert isinstance(embeddings, nn.Embedding)
    if head.weight is embeddings.weight:
        head.weight = nn.Parameter(embeddings.weight.clone())
    config.tie_word_embeddings = False
    plain = UnweightedNorm(config.hidden_size, config.rms_norm_eps)
    for layer in layers(model):
        _fold(attention_norm(layer), attention_readers(layer))
        _fold(ffn_norm(layer), ffn_readers(layer))
        layer.input_layernorm = layer.post_attention_layernorm = plain
    _fold(decoder(model).norm, [head])  # type: ignore[arg-type]
    decoder(model).norm = plain
    return model


@torch.no_grad()
def slice_stream(model: PreTrainedModel, cuts: Iterable[Tensor]) -> PreTrainedModel:
    """Slice the stream of a fused model at all its cuts, in place.

    Args:
        model: Fused causal LM with L layers.
        cuts: 2 L + 1 bases (H, d), float64, on the model's device: behind the embedding, then per
            layer behind attention and behind the FFN. A layer is sliced once both of its cuts are
            drawn, so an iterator may derive them from the layers that are still dense.
    """
    config = model.config
    # Heads keep their width: it must not be derived from the stream's.
    config.head_dim = attention(layers(model)[0]).head_dim
    config.fused_parameters = sliced_parameters(model, config.hidden_size, config.hidden_size)
    bases = iter(cuts)
    before = next(bases)
    config.norm_dim, config.slice_dim = before.shape
    embeddings = decoder(model).embed_tokens
    assert isinstance(embeddings, nn.Embedding)
    embeddings.weight = nn.Parameter(_times(embeddings.weight, before))
    embeddings.embedding_dim = before.shape[1]
    for number in range(len(layers(model))):
        middle, after = next(bases), next(bases)
        layers(model)[number] = SlicedLayer(layers(model)[number], before, middle, after)
        before = after
    read(linear(model, "lm_head"), before)
    return model


def sliced_parameters(model: PreTrainedModel, width: int, last: int) -> int:
    """Parameters of the model once its stream is sliced: shortcuts count, norms are gone.

    Args:
        model: Dense or fused causal LM.
        width: Directions kept at every cut but the last, d.
        last: Directions kept behind the last layer, which the head reads.
    """
    full, stack = model.config.hidden_size, layers(model)
    total = int(model.config.vocab_size) * (width + last)
    for number, layer in enumerate(stack):
        after = last if number == len(stack) - 1 else width
        readers = [*attention_readers(layer), *ffn_readers(layer)]
        total += count(layer) - count(attention_norm(layer), ffn_norm(layer))
        total -= (full - width) * sum(matrix.out_features for matrix in readers)
        total -= (full - width) * _row(attention_writer(layer))
        total -= (full - after) * _row(ffn_writer(layer))
        total += width * (width + after)
    return total


def read(matrix: nn.Linear, basis: Tensor) -> None:
    """Let a matrix (out, H) read coordinates in ``basis`` (H, d): W := W basis."""
    matrix.weight = nn.Parameter(_times(matrix.weight, basis))
    matrix.in_features = basis.shape[1]


def write(matrix: nn.Linear, basis: Tensor) -> None:
    """Let a matrix (H, in) write coordinates in ``basis`` (H, d): W := basis^T W, b := b basis."""
    matrix.weight = nn.Parameter(_times(matrix.weight.T, basis).T.contiguous())
    if matrix.bias is not None:
        matrix.bias = nn.Parameter(_times(matrix.bias[None], basis)[0])
    matrix.out_features = basis.shape[1]


def shortcut(before: Tensor, after: Tensor, dtype: torch.dtype) -> nn.Linear:
    """The residual path from one basis to the next, x := x before^T after."""
    made = nn.Linear(before.shape[1], after.shape[1], bias=False, device="meta")
    made.weight = nn.Parameter((after.T @ before).to(dtype))
    return made


def _fold(norm: nn.Module, readers: list[nn.Linear]) -> None:
    factors = norm.get_parameter("weight").double()
    for matrix in readers:
        folded = by_rows(matrix.weight, lambda rows: rows * factors, len(factors))
        matrix.weight = nn.Parameter(folded)


def _times(matrix: Tensor, basis: Tensor) -> Tensor:
    """The product of (n, H) and (H, d), formed in float64, in the dtype of ``matrix``."""
    return by_rows(matrix, lambda rows: rows @ basis, basis.shape[1])


def by_rows(matrix: Tensor, change: Callable[[Tensor], Tensor], width: int) -> Tensor:
    """A matrix (n, width) made from the float64 rows of another, in the dtype of that one."""
    made = matrix.new_empty(len(matrix), width)
    for old, new in zip(matrix.split(ROWS), made.split(ROWS), strict=True):
        new.copy_(change(old.double()))
    return made


def _row(matrix: nn.Linear) -> int:
    """Parameters of one output row of a matrix, its bias included."""
    return matrix.in_features + (matrix.bias is not None)
