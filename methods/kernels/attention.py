"""A routed attention for one new token of each of up to 16 sequences, on a cache of fixed room.

A token that skips needs neither query, nor keys and values of earlier tokens, nor the output
projection. Four launches per attention, which read the decisions on the device:

    project  key and value of every token, queries where a row executes
    read     rotary positions, the new column of the cache, and by head and share of the columns
             what executing rows read (online softmax)
    merge    the shares of a head, summed in their order
    output   out = hidden + scale * (W_o read) where a row executes, hidden elsewhere

``evicts``: a token that skips leaves no key and value either, so that a row's cache holds the
tokens that executed, one behind the other. The merge has a launch of its own since each of some
thousand programs of the output would have to do it again.

No number reaches the host and no shape depends on a decision or on the length of the sequence, so
a CUDA graph can hold the calls.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import linear
from transformers.models.llama.modeling_llama import rotate_half

from methods.kernels.choose import MOST_ROWS, use_triton
from methods.kernels.decode import check_tensors
from methods.kernels.weights import (
    AttentionCache,
    AttentionWeights,
    AttentionWorkspace,
)

# The columns of a cache are shared out so that about this many programs read, some two per
# multiprocessor of a large GPU; no sum depends on the device.
PROGRAMS = 256
MOST_SHARES = 64


def attention_workspace(batch: int, weights: AttentionWeights) -> AttentionWorkspace:
    """The workspace for ``batch`` rows; layers of one shape share it."""
    wide, narrow, width = len(weights.query), len(weights.key), weights.head_dim
    shares = -(-PROGRAMS * width // (batch * narrow))
    shares = min(1 << (shares - 1).bit_length(), MOST_SHARES)
    made, heads, exact = weights.query.new_empty, wide // width, torch.float32
    return AttentionWorkspace(
        query=made(batch, wide),
        key=made(batch, narrow),
        value=made(batch, narrow),
        read=made(batch, wide),
        peaks=made(batch, heads, shares, dtype=exact),
        totals=made(batch, heads, shares, dtype=exact),
        sums=made(batch, heads, shares, width, dtype=exact),
        every=weights.query.new_ones(batch, dtype=torch.bool),
        ones=weights.query.new_ones(batch, dtype=exact),
    )


def routed_attention_decode(
    hidden: Tensor,
    normed: Tensor,
    execute: Tensor | None,
    scale: Tensor | None,
    weights: AttentionWeights,
    cosine: Tensor,
    sine: Tensor,
    cache: AttentionCache,
    out: Tensor,
    workspace: AttentionWorkspace,
    evicts: bool = False,
    triton: bool | None = None,
) -> None:
    """Write ``hidden + scale * attention(normed)`` into ``out`` where a row executes, else hidden.

    The new key and value go to column ``cache.stored``. Sums are in float32; queries, keys, values
    and what is read are rounded to the dtype of the weights, ``out`` once at the end. Nothing is
    allocated.

    Args:
        hidden: Residual stream before the layer (B, D), 1 <= B <= 16.
        normed: ``hidden`` normed (B, D), in the dtype of the weights.
        execute: Rows that read (B,), bool; None: all.
        scale: Factor of the update (B,), float32; None: 1.
        weights: In bfloat16, float16 or float32.
        cosine: Of the rotary position of each row (B, d), or of all (1, d), in any dtype.
        sine: The same.
        cache: Written. Each ``stored`` must be below C, which only the caller knows without asking
            the device. It stays as it is, so that layers can share it, unless ``evicts``.
        out: Residual stream behind attention (B, D); may be ``hidden``.
        workspace: Of :func:`attention_workspace`.
        evicts: Rows that skip leave nothing; ``cache.stored`` (B,) grows by one where a row
            executes.
        triton: True forces the kernels, False the twin; None lets the device decide.

    Raises:
        ValueError: Shapes or dtypes do not fit, or a tensor is not contiguous.
        RuntimeError: ``triton`` is True where no kernel can run.
    """
    execute = workspace.every if execute is None else execute
    scale = workspace.ones if scale is None else scale
    _check(hidden, normed, execute, scale, weights, cosine, sine, cache, out, workspace, evicts)
    if not use_triton(weights.query, triton):
        routed_attention_decode_reference(
            hidden, normed, execute, scale, weights, cosine, sine, cache, out, evicts
        )
        return
    from methods.kernels.attention_triton import launches

    for launch in launches(
        hidden, normed, execute, scale, weights, cosine, sine, cache, out, workspace, evicts
    ):
        launch.run()


def routed_attention_decode_reference(
    hidden: Tensor,
    normed: Tensor,
    execute: Tensor,
    scale: Tensor,
    weights: AttentionWeights,
    cosine: Tensor,
    sine: Tensor,
    cache: AttentionCache,
    out: Tensor,
    evicts: bool = False,
) -> None:
    """The twin of :func:`routed_attention_decode`: every row reads all columns, then a choice.

    It rounds where the kernels round, but for the exponentials that multiply values.
    """
    rows, dtype = normed.float(), weights.query.dtype
    query = _heads(rows, weights.query, weights.query_bias, weights)
    key = _heads(rows, weights.key, weights.key_bias, weights)
    value = _heads(rows, weights.value, weights.value_bias, weights)
    query = _turned(query, weights.query_norm, weights.eps, cosine, sine).to(dtype)
    key = _turned(key, weights.key_norm, weights.eps, cosine, sine).to(dtype)

    batch, heads, capacity, width = cache.keys.shape
    column = cache.stored.long().expand(batch)
    place = column[:, None, None, None].expand(-1, heads, 1, width)
    leaves = (execute | (not evicts))[:, None, None, None]
    for kept, new in ((cache.keys, key), (cache.values, value)):
        kept.scatter_(2, place, torch.where(leaves, new[:, :, None], kept.gather(2, place)))

    columns = torch.arange(capacity, device=hidden.device)
    seen = columns <= column[:, None]
    if cache.first is not None:
        seen = seen & (columns >= cache.first[:, None])
    seen = seen[:, None, None]
    asked = query.unflatten(1, (heads, -1)).float()
    scores = asked @ cache.keys.float().transpose(2, 3) * width**-0.5
    portions = scores.masked_fill(~seen, float("-inf")).softmax(dim=-1)
    # Columns that are not seen may hold anything, which no zero weight would undo.
    read = portions @ torch.where(seen.transpose(2, 3), cache.values.float(), 0)
    update = linear(read.to(dtype).float().flatten(1), weights.output.float())
    out.copy_(hidden.float() + torch.where(execute[:, None], scale[:, None] * update, 0))
    if evicts:
        cache.stored.add_(execute)


def _heads(rows: Tensor, weight: Tensor, bias: Tensor | None, weights: AttentionWeights) -> Tensor:
    """Projected rows (B, heads, d), rounded to the dtype of the weights."""
    made = linear(rows, weight.float(), None if bias is None else bias.float())
    return made.to(weight.dtype).unflatten(1, (-1, weights.head_dim))


def _turned(
    states: Tensor, norm: Tensor | None, eps: float, cosine: Tensor, sine: Tensor
) -> Tensor:
    """Heads (B, heads, d), normed if they are, at their rotary positions, in float32."""
    states = states.float()
    if norm is not None:
        states = states * torch.rsqrt(states.square().mean(-1, keepdim=True) + eps) * norm.float()
    return states * cosine.float()[:, None] + rotate_half(states) * sine.float()[:, None]


def _check(
    hidden: Tensor,
    normed: Tensor,
    execute: Tensor,
    scale: Tensor,
    weights: AttentionWeights,
    cosine: Tensor,
    sine: Tensor,
    cache: AttentionCache,
    out: Tensor,
    workspace: AttentionWorkspace,
    evicts: bool,
) -> None:
    batch, width = hidden.shape
    d, dtype, whole = weights.head_dim, weights.query.dtype, cache.stored.dtype
    wide, narrow, capacity = len(weights.query), len(weights.key), cache.keys.shape[2]
    heads, exact = wide // d, torch.float32
    if not 1 <= batch <= MOST_ROWS:
        raise ValueError(f"decoding takes 1 to {MOST_ROWS} rows, not {batch}")
    if whole not in (torch.int32, torch.int64):
        raise ValueError(f"'cache.stored' must be torch.int32 or torch.int64, not {whole}")
    shares = workspace.peaks.shape[-1]
    expected = {
        "normed": (normed, (batch, width), dtype),
        "execute": (execute, (batch,), torch.bool),
        "scale": (scale, (batch,), exact),
        "weights.query": (weights.query, (wide, width), dtype),
        "weights.key": (weights.key, (narrow, width), dtype),
        "weights.value": (weights.value, (narrow, width), dtype),
        "weights.output": (weights.output, (width, wide), dtype),
        "cosine": (cosine, (batch if len(cosine) > 1 else 1, d), cosine.dtype),
        "sine": (sine, (len(cosine), d), cosine.dtype),
        "cache.keys": (cache.keys, (batch, narrow // d, capacity, d), dtype),
        "cache.values": (cache.values, (batch, narrow // d, capacity, d), dtype),
        "cache.stored": (cache.stored, (batch,) if evicts or cache.stored.dim() else (), whole),
        "out": (out, (batch, width), out.dtype),
        "hidden": (hidden, (batch, width), hidden.dtype),
        "workspace.query": (workspace.query, (batch, wide), dtype),
        "workspace.key": (workspace.key, (batch, narrow), dtype),
        "workspace.value": (workspace.value, (batch, narrow), dtype),
        "workspace.read": (workspace.read, (batch, wide), dtype),
        "workspace.peaks": (workspace.peaks, (batch, heads, shares), exact),
        "workspace.totals": (workspace.totals, (batch, heads, shares), exact),
        "workspace.sums": (workspace.sums, (batch, heads, shares, d), exact),
    }
    vectors = {
        "cache.first": (cache.first, batch, whole),
        "weights.query_bias": (weights.query_bias, wide, dtype),
        "weights.key_bias": (weights.key_bias, narrow, dtype),
        "weights.value_bias": (weights.value_bias, narrow, dtype),
        "weights.query_norm": (weights.query_norm, d, dtype),
        "weights.key_norm": (weights.key_norm, d, dtype),
    }
    for name, (vector, size, kind) in vectors.items():
        if vector is not None:
            expected[name] = (vector, (size,), kind)
    check_tensors(expected)
