"""Attention for the tokens that execute it, with keys and values of all tokens.

A token that skips an attention still leaves its key and value, so that later tokens read a complete
cache. Its query, its attention and its output projection are not computed.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import pad
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.models.llama.modeling_llama import rotate_half

from methods.core.model.families import has_rotary
from methods.core.routing.caches import StaticEvictingLayer
from methods.kernels.attention import attention_workspace, routed_attention_decode
from methods.kernels.choose import use_steps
from methods.kernels.operands import AttentionCache, AttentionStep, attention_weights


class ExecutingTokens(NamedTuple):
    """The tokens that execute a unit, padded to the longest sequence.

    ``places`` (B, m) are their places in the call; ``live`` (B, m), bool, is False on padding.
    """

    places: Tensor
    live: Tensor


def executing_tokens(execute: Tensor) -> ExecutingTokens:
    """The executing tokens of each sequence, in their order, from decisions (B, T)."""
    if execute.shape[1] == 1:
        live = execute[:, : int(execute.any())]
        return ExecutingTokens(torch.zeros_like(live, dtype=torch.int64), live)
    counts = execute.sum(dim=1)
    longest = int(counts.max())
    index = (~execute).to(torch.uint8).argsort(dim=1, stable=True)[:, :longest]
    live = torch.arange(longest, device=execute.device) < counts[:, None]
    return ExecutingTokens(index, live)


def take(values: Tensor, index: Tensor) -> Tensor:
    """Rows ``index`` (B, m) of (B or 1, T, D)."""
    sequences, length = len(values), values.shape[1]
    firsts = torch.arange(len(index), device=index.device)[:, None] % sequences * length
    rows = values.flatten(0, 1).index_select(0, (firsts + index).flatten())
    return rows.view(*index.shape, -1)


def put(rows: Tensor, chosen: ExecutingTokens, onto: Tensor) -> Tensor:
    """``onto`` (B, T, D) with the rows (B, m, D) of the executing tokens in their places."""
    length = onto.shape[1]
    # Padding is written to an extra row T, which is cut off.
    places = torch.where(chosen.live, chosen.places, length)
    firsts = torch.arange(len(onto), device=onto.device)[:, None] * (length + 1)
    whole = pad(onto, (0, 0, 0, 1))
    new = rows.to(onto.dtype).flatten(0, 1)
    filled = whole.flatten(0, 1).index_copy(0, (firsts + places).flatten(), new)
    return filled.view_as(whole)[:, :length]


def attend(heads: nn.Module, normed: Tensor, execute: Tensor, arguments: dict[str, Any]) -> Tensor:
    """The update of attention for the tokens that execute it.

    Args:
        heads: Attention of a decoder layer.
        normed: Its input (B, T, D).
        execute: Decisions (B, T), bool.
        arguments: Of the layer: attention mask, positions, cache.

    Returns:
        Updates (B, T, D), right where ``execute``; elsewhere anything. The host waits once for the
        device: it needs the largest number of executing tokens in a sequence.
    """
    module: Any = heads
    # Other implementations than sdpa have masks of other forms; there all tokens run.
    chosen = executing_tokens(execute) if module.config._attn_implementation == "sdpa" else None
    if chosen is None or chosen.places.shape == execute.shape:
        update: Tensor = module(hidden_states=normed, **arguments)[0]
        return update
    turn = _rotate if has_rotary(heads) else _leave
    cosine, sine = arguments["position_embeddings"]
    key = turn(_split(heads, "k", normed), cosine, sine)
    value = _split(heads, "v", normed)
    cache, columns = arguments["past_key_values"], chosen.places
    if cache is not None:
        columns = columns + cache.get_seq_length(module.layer_idx)
        key, value = cache.update(key, value, module.layer_idx)
    if not chosen.places.shape[1]:
        return torch.zeros_like(normed)
    places = chosen.places
    query = _split(heads, "q", take(normed, places))
    query = turn(query, take(cosine, places), take(sine, places))
    mask = _mask_rows(arguments["attention_mask"], places, columns, key.shape[2])
    read, _ = sdpa_attention_forward(
        module, query, key, value, mask, dropout=0.0, scaling=module.scaling
    )
    return put(module.o_proj(read.flatten(2)), chosen, torch.zeros_like(normed))


def attend_static(
    heads: nn.Module, normed: Tensor, execute: Tensor, arguments: dict[str, Any]
) -> Tensor:
    """The update of attention in a step with a static cache; the host reads no decision.

    Kernels, where they run, read the cache for executing tokens only; without them all tokens run.

    Args:
        heads: Attention of a decoder layer.
        normed: Its input (B, 1, D).
        execute: Decisions (B, 1), bool.
        arguments: Of the layer; the mask (B, 1, 1, C) is 0 on consecutive columns, else -inf. A
            ``StaticEvictingLayer`` in the cache knows its columns itself.

    Returns:
        Updates (B, 1, D), right where ``execute``; elsewhere anything.
    """
    module: Any = heads
    layer = arguments["past_key_values"].layers[module.layer_idx]
    evicts = isinstance(layer, StaticEvictingLayer)
    weights = attention_weights(heads) if use_steps(normed) else None
    if weights is None:
        if evicts:
            arguments = arguments | {"attention_mask": layer.mask()}
        update: Tensor = module(hidden_states=normed, **arguments)[0]
        if evicts:
            layer.keep(execute[:, 0])
        return update
    first = None
    if not evicts:
        first = arguments["attention_mask"][:, 0, 0].argmax(dim=-1)
    cache = AttentionCache(layer.keys, layer.values, layer.cumulative_length, first)
    cosine, sine = (part[:, 0].contiguous() for part in arguments["position_embeddings"])
    rows, update = normed[:, 0].contiguous(), torch.zeros_like(normed[:, 0])
    step = AttentionStep(
        update, rows, execute[:, 0].contiguous(), None, weights, cosine, sine, cache, update,
        attention_workspace(len(rows), weights), evicts,
    )  # fmt: skip
    routed_attention_decode(step)
    if not evicts:
        layer.cumulative_length.add_(1)
    return update[:, None]


def _split(heads: nn.Module, kind: str, rows: Tensor) -> Tensor:
    """Queries, keys or values by head, (B, heads, n, d)."""
    states = getattr(heads, f"{kind}_proj")(rows)
    norm, by_head = getattr(heads, f"{kind}_norm", None), (-1, heads.head_dim)
    # The norm of queries and keys is one of each head (Qwen3, Gemma 3) or one of all (OLMo 2).
    if norm is not None and norm.weight.numel() != heads.head_dim:
        states, norm = norm(states), None
    states = states.unflatten(-1, by_head)
    if norm is not None:
        states = norm(states)
    heads_first: Tensor = states.transpose(1, 2)
    return heads_first


def _rotate(states: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Queries or keys (B, heads, n, d) with rotary positions (B or 1, n, r), r <= d.

    Only the first r channels turn.
    """
    width = cosine.shape[-1]
    if width < states.shape[-1]:
        turned = _rotate(states[..., :width], cosine, sine)
        return torch.cat([turned, states[..., width:]], dim=-1)
    rotated: Tensor = states * cosine[:, None] + rotate_half(states) * sine[:, None]
    # OLMo 2 turns in 32 bits.
    return rotated.to(states.dtype)


def _leave(states: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Queries or keys of a layer without rotary positions."""
    return states


def _mask_rows(mask: Tensor | None, places: Tensor, columns: Tensor, keys: int) -> Tensor:
    """The mask (B, 1, m, K) of some queries of a call.

    Args:
        mask: Of all queries (B or 1, 1, T, K); None: causal.
        places: Of the queries in the call (B, m).
        columns: Of the queries in the cache (B, m).
        keys: Their number, K.
    """
    if mask is None:
        return (torch.arange(keys, device=places.device) <= columns[..., None])[:, None]
    mask = mask.expand(len(places), -1, -1, -1)
    return mask.gather(2, places[:, None, :, None].expand(-1, 1, -1, mask.shape[-1]))
