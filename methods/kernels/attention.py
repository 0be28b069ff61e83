"""A routed attention for one new token of each of up to 16 sequences, on a cache of fixed size.

A token that skips needs no query, no keys and values of earlier tokens, and no output projection.
Four launches per attention read the decisions on the device:

    project  key and value of every token; query of rows that run
    read     rotary positions; the new column of the cache; what rows that run read from the cache,
             by head and share of the columns (online softmax)
    merge    the shares of a head, summed in their order
    output   out = hidden + scale * (W_o read) for rows that run, hidden for the others

``evicts``: a token that skips leaves no key and value either, so a row's cache holds the tokens
that ran, without gaps. The merge is a launch of its own, because else each of about a thousand
programs of the output would repeat it.

No number reaches the host, and no shape depends on a decision or on the length of the sequence, so
a CUDA graph can hold the calls.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import linear
from transformers.models.llama.modeling_llama import rotate_half

from methods.kernels.choose import MOST_ROWS, use_triton
from methods.kernels.decode import check_tensors
from methods.kernels.operands import AttentionStep, AttentionWeights, AttentionWorkspace

# The columns of a cache are divided so that about this many programs read, two per multiprocessor
# of a large GPU. It is a constant, so that sums do not depend on the device.
PROGRAMS = 256
MOST_SHARES = 64


def attention_workspace(batch: int, weights: AttentionWeights) -> AttentionWorkspace:
    """The workspace for ``batch`` rows; layers of one shape share it."""
    wide, narrow, width = len(weights.query), len(weights.key), weights.head_dim
    shares = -(-PROGRAMS * width // (batch * narrow))
    shares = min(1 << (shares - 1).bit_length(), MOST_SHARES)
    empty, heads, exact = weights.query.new_empty, wide // width, torch.float32
    return AttentionWorkspace(
        query=empty(batch, wide),
        key=empty(batch, narrow),
        value=empty(batch, narrow),
        read=empty(batch, wide),
        peaks=empty(batch, heads, shares, dtype=exact),
        totals=empty(batch, heads, shares, dtype=exact),
        sums=empty(batch, heads, shares, width, dtype=exact),
        every=weights.query.new_ones(batch, dtype=torch.bool),
        ones=weights.query.new_ones(batch, dtype=exact),
    )


def routed_attention_decode(step: AttentionStep, triton: bool | None = None) -> None:
    """Write ``hidden + scale * attention(normed)`` into ``out`` for rows that run, else ``hidden``.

    The new key and value go to column ``cache.stored``. Sums are in float32; queries, keys, values
    and what is read are rounded to the dtype of the weights, ``out`` once at the end. Nothing is
    allocated.

    Args:
        step: Tensors, contiguous.
        triton: True forces the kernels, False the twin; None lets the device decide.

    Raises:
        ValueError: Shapes or dtypes do not fit, or a tensor is not contiguous.
        RuntimeError: ``triton`` is True where no kernel can run.
    """
    workspace = step.workspace
    execute = workspace.every if step.execute is None else step.execute
    scale = workspace.ones if step.scale is None else step.scale
    step = step._replace(execute=execute, scale=scale)
    _check(step, execute, scale)
    if not use_triton(step.weights.query, triton):
        routed_attention_decode_reference(step, execute, scale)
        return
    from methods.kernels.attention_triton import launches

    for launch in launches(step):
        launch.run()


def routed_attention_decode_reference(step: AttentionStep, execute: Tensor, scale: Tensor) -> None:
    """The twin of :func:`routed_attention_decode`: every row reads all columns, then a choice.

    It rounds where the kernels round, except the exponentials that multiply values. ``execute`` and
    ``scale`` are those of the step, None resolved.
    """
    hidden, normed, _, _, weights, cosine, sine, cache, out, _, evicts = step
    rows, dtype = normed.float(), weights.query.dtype
    query = _heads(rows, weights.query, weights.query_bias, weights)
    key = _heads(rows, weights.key, weights.key_bias, weights)
    value = _heads(rows, weights.value, weights.value_bias, weights)
    query = _rotate(query, weights.query_norm, weights.eps, cosine, sine).to(dtype)
    key = _rotate(key, weights.key_norm, weights.eps, cosine, sine).to(dtype)

    batch, heads, capacity, width = cache.key.shape
    column = cache.stored.long().expand(batch)
    place = column[:, None, None, None].expand(-1, heads, 1, width)
    writes = (execute | (not evicts))[:, None, None, None]
    for old, new in ((cache.key, key), (cache.value, value)):
        old.scatter_(2, place, torch.where(writes, new[:, :, None], old.gather(2, place)))

    columns = torch.arange(capacity, device=hidden.device)
    visible = columns <= column[:, None]
    if cache.first is not None:
        visible = visible & (columns >= cache.first[:, None])
    visible = visible[:, None, None]
    queries = query.unflatten(1, (heads, -1)).float()
    scores = queries @ cache.key.float().transpose(2, 3) * width**-0.5
    portions = scores.masked_fill(~visible, float("-inf")).softmax(dim=-1)
    # Columns that are not visible may hold NaN, and zero times NaN is NaN.
    result = portions @ torch.where(visible.transpose(2, 3), cache.value.float(), 0)
    update = linear(result.to(dtype).float().flatten(1), weights.output.float())
    out.copy_(hidden.float() + torch.where(execute[:, None], scale[:, None] * update, 0))
    if evicts:
        cache.stored.add_(execute)


def _heads(rows: Tensor, weight: Tensor, bias: Tensor | None, weights: AttentionWeights) -> Tensor:
    """Projected rows (B, heads, d), rounded to the dtype of the weights."""
    outputs = linear(rows, weight.float(), None if bias is None else bias.float())
    return outputs.to(weight.dtype).unflatten(1, (-1, weights.head_dim))


def _rotate(
    states: Tensor, norm: Tensor | None, eps: float, cosine: Tensor, sine: Tensor
) -> Tensor:
    """Heads (B, heads, d) at their rotary positions, normed if there is a norm, in float32."""
    states = states.float()
    if norm is not None:
        states = states * torch.rsqrt(states.square().mean(-1, keepdim=True) + eps) * norm.float()
    return states * cosine.float()[:, None] + rotate_half(states) * sine.float()[:, None]


def _check(step: AttentionStep, execute: Tensor, scale: Tensor) -> None:
    hidden, normed, _, _, weights, cosine, sine, cache, out, workspace, evicts = step
    batch, width = hidden.shape
    d, dtype, whole = weights.head_dim, weights.query.dtype, cache.stored.dtype
    wide, narrow, capacity = len(weights.query), len(weights.key), cache.key.shape[2]
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
        "cache.key": (cache.key, (batch, narrow // d, capacity, d), dtype),
        "cache.value": (cache.value, (batch, narrow // d, capacity, d), dtype),
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
