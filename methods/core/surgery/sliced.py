"""Hidden states with fewer directions: the structure of a model that SliceGPT has sliced.

At each cut the H numbers of a hidden state become d coordinates in a basis (H, d) with orthonormal
columns. There is a cut after the embedding, and in each layer one after attention and one after the
FFN. A matrix that reads hidden states absorbs the basis of the cut before it; a matrix that writes
to them absorbs the basis of the cut after it. The residual path has no matrix, so it gets one: a
shortcut (d, d'), from one basis to the next.
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

# Rows that are rotated at a time, so that float64 copies of an embedding stay below 1 GB.
ROWS = 16384


class UnweightedNorm(nn.Module):
    """RMS norm without a weight: x / sqrt(|x|^2 / width + eps).

    Args:
        width: H, the width of dense hidden states; directions that were cut away count as zeros.
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


class _Recorder(nn.Module):
    """Where transformers records the hidden states that enter and leave a layer."""

    def forward(self, entering: Tensor, leaving: Tensor) -> Tensor:
        return leaving


_RECORDER = _Recorder()
install_output_capuring_hook(_RECORDER, "hidden_states", 0)


def record(layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
    """Hook of a sliced layer: transformers records at layers of a family's class only.

    The hook of transformers itself cannot be pickled, so it is on no layer.
    """
    _RECORDER(inputs[0], output)


class SlicedLayer(GradientCheckpointingLayer):
    """A sliced decoder layer: h = attn(norm(x)) + x A, then ffn(norm(h)) + h B.

    Args:
        layer: Decoder layer with fused norms; its attention and FFN are used and sliced.
        before: Basis of the cut at the layer's input (H, d0), float64.
        middle: Basis of the cut after attention (H, d1); A = before^T middle.
        after: Basis of the cut after the FFN (H, d2); B = middle^T after.
    """

    def __init__(self, layer: nn.Module, before: Tensor, middle: Tensor, after: Tensor) -> None:
        super().__init__()
        self.self_attn, self.mlp = attention(layer), ffn(layer)
        self.input_layernorm = attention_norm(layer)
        self.post_attention_layernorm = ffn_norm(layer)
        for matrix in attention_readers(layer):
            absorb_input_basis(matrix, before)
        for matrix in ffn_readers(layer):
            absorb_input_basis(matrix, middle)
        dtype = attention_writer(layer).weight.dtype
        absorb_output_basis(attention_writer(layer), middle)
        absorb_output_basis(ffn_writer(layer), after)
        self.attention_shortcut = shortcut(before, middle, dtype)
        self.ffn_shortcut = shortcut(middle, after, dtype)
        self.register_forward_hook(record)

    def forward(self, hidden_states: Tensor, **kwargs: object) -> Tensor:
        """(B, T, d0) to (B, T, d2); attention gets masks, positions and cache unchanged."""
        normed = self.input_layernorm(hidden_states)
        update, _ = self.self_attn(hidden_states=normed, **kwargs)
        middle = update + self.attention_shortcut(hidden_states)
        update = self.mlp(self.post_attention_layernorm(middle))
        return update + self.ffn_shortcut(middle)


def attention_readers(layer: nn.Module) -> list[nn.Linear]:
    """The matrices that read the normed input of attention."""
    return [linear(attention(layer), name) for name in ("q_proj", "k_proj", "v_proj")]


def ffn_readers(layer: nn.Module) -> list[nn.Linear]:
    """The matrices that read the normed input of the FFN."""
    return [linear(ffn(layer), name) for name in ("gate_proj", "up_proj")]


def attention_writer(layer: nn.Module) -> nn.Linear:
    """The matrix whose output attention adds to the hidden states."""
    return linear(attention(layer), "o_proj")


def ffn_writer(layer: nn.Module) -> nn.Linear:
    """The matrix whose output the FFN adds to the hidden states."""
    return linear(ffn(layer), "down_proj")


def linear(module: nn.Module, name: str) -> nn.Linear:
    """The linear submodule ``name``."""
    submodule = module.get_submodule(name)
    assert isinstance(submodule, nn.Linear)
    return submodule


@torch.no_grad()
def fuse_norms(model: PreTrainedModel) -> PreTrainedModel:
    """Fold the weight of every norm into the matrices that read it, in place; untie the head.

    The logits stay the same. Afterwards norms commute with rotations.
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
def slice_hidden_states(model: PreTrainedModel, cuts: Iterable[Tensor]) -> PreTrainedModel:
    """Slice the hidden states of a fused model at all cuts, in place.

    Args:
        model: Fused causal LM with L layers.
        cuts: 2 L + 1 bases (H, d), float64, on the model's device: after the embedding, then for
            each layer after attention and after the FFN. They are read one by one: a layer is
            sliced as soon as its two bases were read. So an iterator may compute each basis from
            the layers that are still dense.
    """
    config = model.config
    # Heads keep their width; without this a config derives it from the width of hidden states.
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
    absorb_input_basis(linear(model, "lm_head"), before)
    return model


def sliced_parameters(model: PreTrainedModel, width: int, last: int) -> int:
    """Parameters of the model after slicing: shortcuts count, norms have none.

    Args:
        model: Dense or fused causal LM.
        width: Directions that stay at every cut except the last, d.
        last: Directions that stay after the last layer, which the head reads.
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


def absorb_input_basis(matrix: nn.Linear, basis: Tensor) -> None:
    """Let a matrix (out, H) read coordinates in ``basis`` (H, d): W := W basis."""
    matrix.weight = nn.Parameter(_times(matrix.weight, basis))
    matrix.in_features = basis.shape[1]


def absorb_output_basis(matrix: nn.Linear, basis: Tensor) -> None:
    """Let a matrix (H, in) write coordinates in ``basis`` (H, d): W := basis^T W, b := b basis."""
    matrix.weight = nn.Parameter(_times(matrix.weight.T, basis).T.contiguous())
    if matrix.bias is not None:
        matrix.bias = nn.Parameter(_times(matrix.bias[None], basis)[0])
    matrix.out_features = basis.shape[1]


def shortcut(before: Tensor, after: Tensor, dtype: torch.dtype) -> nn.Linear:
    """The residual path from one basis to the next, x := x before^T after."""
    matrix = nn.Linear(before.shape[1], after.shape[1], bias=False, device="meta")
    matrix.weight = nn.Parameter((after.T @ before).to(dtype))
    return matrix


def _fold(norm: nn.Module, readers: list[nn.Linear]) -> None:
    factors = norm.get_parameter("weight").double()
    for matrix in readers:
        folded = by_rows(matrix.weight, lambda rows: rows * factors, len(factors))
        matrix.weight = nn.Parameter(folded)


def _times(matrix: Tensor, basis: Tensor) -> Tensor:
    """The product of (n, H) and (H, d), computed in float64, in the dtype of ``matrix``."""
    return by_rows(matrix, lambda rows: rows @ basis, basis.shape[1])


def by_rows(matrix: Tensor, change: Callable[[Tensor], Tensor], width: int) -> Tensor:
    """A matrix (n, width) whose rows are changed in float64; it has the dtype of ``matrix``.

    Args:
        matrix: (n, m).
        change: Makes rows (k, width) of rows (k, m), both float64, for every k.
        width: Of the result.
    """
    result = matrix.new_empty(len(matrix), width)
    for old, new in zip(matrix.split(ROWS), result.split(ROWS), strict=True):
        new.copy_(change(old.double()))
    return result


def _row(matrix: nn.Linear) -> int:
    """Parameters of one output row of a matrix, its bias included."""
    return matrix.in_features + (matrix.bias is not None)
