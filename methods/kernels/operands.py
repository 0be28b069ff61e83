"""What kernels read and write: weights, the cache, and what one launch leaves for the next.

Weights are contiguous, and those of one part of the model have one dtype.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, silu
from transformers.activations import ACT2FN

from methods.core.model.backbone import attention_kinds
from methods.core.model.families import has_rotary


class FfnWeights(NamedTuple):
    """A frozen SwiGLU network: ``gate`` and ``up`` (F, D), ``down`` (D, F), without biases."""

    gate: Tensor
    up: Tensor
    down: Tensor


class AdapterWeights(NamedTuple):
    """An adapter, W_2 (SiLU(W_1 u) * W_3 u): ``down`` is W_1 (A, D), ``up`` W_2 (D, A).

    ``factor`` is W_3 (A, D); None: W_2 SiLU(W_1 u).
    """

    down: Tensor
    up: Tensor
    factor: Tensor | None = None

    def to(self, dtype: torch.dtype) -> AdapterWeights:
        """The same in another dtype."""
        factor = None if self.factor is None else self.factor.to(dtype)
        return AdapterWeights(self.down.to(dtype), self.up.to(dtype), factor)

    def update(self, rows: Tensor) -> Tensor:
        """The update of ``rows`` (N, D), computed in their dtype."""
        down, up, factor = self.to(rows.dtype)
        inner = silu(linear(rows, down))
        return linear(inner if factor is None else inner * linear(rows, factor), up)


@runtime_checkable
class Bottleneck(Protocol):
    """A module that is such an adapter."""

    def matrices(self) -> AdapterWeights:
        """Its weights, not copied."""


class Branches(NamedTuple):
    """Both branches of a routed FFN; without an adapter a row that skips gets no update."""

    ffn: FfnWeights
    adapter: AdapterWeights | None


class DecodeWorkspace(NamedTuple):
    """Activations between the two launches, in the dtype of the weights.

    ``ffn`` (B, F), ``adapter`` (B, A), None without an adapter. Rows of tokens that take the other
    branch are neither written nor read.
    """

    ffn: Tensor
    adapter: Tensor | None


class FfnStep(NamedTuple):
    """A routed FFN for one new token of each of B sequences, 1 <= B <= 16.

    Args:
        hidden: Hidden states after attention (B, D).
        normed: The branches' input, ``hidden`` normed (B, D), in the dtype of the weights.
        execute: Rows that run the FFN (B,), bool.
        scale: Factor of the branch that runs (B,), float32.
        ffn: Weights, in bfloat16, float16 or float32.
        adapter: Weights in the same dtype; None: a row that skips keeps ``hidden``.
        out: Written: hidden states after the FFN (B, D); may be ``hidden``.
        workspace: Of ``decode_workspace``.
    """

    hidden: Tensor
    normed: Tensor
    execute: Tensor
    scale: Tensor
    ffn: FfnWeights
    adapter: AdapterWeights | None
    out: Tensor
    workspace: DecodeWorkspace


def branches(network: nn.Module, alternative: object | None) -> Branches | None:
    """The matrices of both branches; None if kernels cannot compute one of them.

    Args:
        network: The FFN of a layer. Kernels compute no biases, no LoRA, no activation but SiLU.
        alternative: What runs for a row that skips: None or a :class:`Bottleneck`.
    """
    part: Any = network
    linears = [part.gate_proj, part.up_proj, part.down_proj]
    plain = all(type(linear) is nn.Linear and linear.bias is None for linear in linears)
    if not plain or not isinstance(part.act_fn, (nn.SiLU, type(ACT2FN["silu"]))):
        return None
    if alternative is not None and not isinstance(alternative, Bottleneck):
        return None
    adapter = None if alternative is None else alternative.matrices()
    return Branches(FfnWeights(*(linear.weight for linear in linears)), adapter)


class AttentionWeights(NamedTuple):
    """A frozen attention of H query heads and H_kv key heads, d = ``head_dim`` wide.

    ``query`` (H d, D), ``key`` and ``value`` (H_kv d, D), ``output`` (D, H d). Biases as wide as
    their matrix (Qwen2), norms of a head's query and key (d,) with ``eps`` (Qwen3): else None.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    output: Tensor
    query_bias: Tensor | None
    key_bias: Tensor | None
    value_bias: Tensor | None
    query_norm: Tensor | None
    key_norm: Tensor | None
    eps: float
    head_dim: int


class AttentionCache(NamedTuple):
    """Keys, already rotated, and values of earlier tokens, in the weights' dtype.

    ``key``, ``value`` (B, H_kv, C, d).
    ``stored``, int32 or int64, () or (B,): how many columns a row has filled; its new token goes to
    the next one. ``first`` (B,), of the same dtype: the first column after padding on the left;
    None: 0.
    """

    key: Tensor
    value: Tensor
    stored: Tensor
    first: Tensor | None = None


class AttentionWorkspace(NamedTuple):
    """Buffers between the launches; rows that skip are neither written nor read.

    In the dtype of the weights: ``query``, ``read`` (B, H d), ``key``, ``value`` (B, H_kv d). In
    float32, of each share of the columns: ``peaks`` (largest score) and ``totals`` (sum of
    exponentials) (B, H, S), ``sums`` of values (B, H, S, d). ``every`` (B,) is True, ``ones`` (B,)
    is 1.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    read: Tensor
    peaks: Tensor
    totals: Tensor
    sums: Tensor
    every: Tensor
    ones: Tensor


class AttentionStep(NamedTuple):
    """A routed attention for one new token of each of B sequences, 1 <= B <= 16.

    Args:
        hidden: Hidden states before the layer (B, D).
        normed: ``hidden`` normed (B, D), in the dtype of the weights.
        execute: Rows that run (B,), bool; None: all.
        scale: Factor of the update (B,), float32; None: 1.
        weights: In bfloat16, float16 or float32.
        cosine: Of the rotary position of each row (B, d), or of all (1, d), in any dtype.
        sine: The same.
        cache: Written. Each ``stored`` must be below C; only the caller knows this without asking
            the device. It stays as it is, so that layers can share it, unless ``evicts``.
        out: Written: hidden states after attention (B, D); may be ``hidden``.
        workspace: Of ``attention_workspace``.
        evicts: Rows that skip leave no key and value; ``cache.stored`` (B,) grows by one for each
            row that runs.
    """

    hidden: Tensor
    normed: Tensor
    execute: Tensor | None
    scale: Tensor | None
    weights: AttentionWeights
    cosine: Tensor
    sine: Tensor
    cache: AttentionCache
    out: Tensor
    workspace: AttentionWorkspace
    evicts: bool = False


def attention_weights(heads: nn.Module) -> AttentionWeights | None:
    """The weights of a decoder layer's attention, not copied.

    None if it has something that the kernels do not compute: LoRA, a bias of the output projection,
    a sliding window, another scale or norm than Qwen3's, no or partial rotary positions.
    """
    module: Any = heads
    maps = [getattr(module, f"{part}_proj") for part in "qkvo"]
    full = attention_kinds(module.config)[module.layer_idx] == "full_attention"
    if not full or any(type(each) is not nn.Linear for each in maps) or maps[3].bias is not None:
        return None
    rope = getattr(module.config, "rope_parameters", None) or {}
    turned = has_rotary(module) and rope.get("partial_rotary_factor", 1.0) == 1.0
    capped = getattr(module, "attn_logit_softcapping", None) is not None
    if not turned or capped or module.scaling != module.head_dim**-0.5:
        return None
    query, key, value, output = (each.weight.detach() for each in maps)
    biases = [None if each.bias is None else each.bias.detach() for each in maps[:3]]
    norms = [getattr(module, f"{part}_norm", None) for part in "qk"]
    for norm in filter(None, norms):
        # Gemma's norms multiply by 1 + weight and have another name for their epsilon.
        if norm.weight.numel() != module.head_dim or not hasattr(norm, "variance_epsilon"):
            return None
    scales = [None if norm is None else norm.weight.detach() for norm in norms]
    return AttentionWeights(
        query, key, value, output,
        query_bias=biases[0], key_bias=biases[1], value_bias=biases[2],
        query_norm=scales[0], key_norm=scales[1],
        eps=0.0 if norms[0] is None else norms[0].variance_epsilon, head_dim=module.head_dim,
    )  # fmt: skip
