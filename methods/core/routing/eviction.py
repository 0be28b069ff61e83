"""Evicting layers: a token that skips one leaves no key and value there for later tokens.

Without gradients the executing tokens are gathered, the whole layer runs on them alone, and its
cache holds only their keys and values. With gradients every token runs; attention weights are
multiplied by the gate of the key and normalised again, so that a gate learns what later tokens
lose without the key. Both forms give the same numbers up to ``EPS``.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from methods.core.routing.attend import ExecutingTokens, executing_tokens, put, take
from methods.core.routing.caches import EvictingLayer
from methods.core.routing.decisions import Decision
from methods.kernels.choose import one_token

IMPLEMENTATION = "skipbench_key_weights"
# Added to the sum that weights are divided by, as in D-LLM's code.
EPS = 1e-6


def attend_with_key_weights(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    key_weights: Tensor | None = None,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    """Attention whose weights are multiplied by ``key_weights`` (B, K) and normalised again.

    Without ``key_weights`` it is the library's sdpa attention. Signature and shapes are those of
    transformers' AttentionInterface: query (B, H, T, d), key and value (B, H_kv, K, d); returns
    (B, T, H, d) and no weights.

    The result is sum_k w_k g_k v_k / (sum_k w_k g_k + EPS). One call of the fused attention gives
    both sums: its values are g_k v_k with g_k as one more column. So neither the forward nor the
    backward pass holds T x K numbers. Columns of zeros bring queries, keys and values to a width
    that the kernels accept.
    """
    if key_weights is None:
        return sdpa_attention_forward(
            module, query, key, value, attention_mask, scaling=scaling, **kwargs
        )
    width, gates = value.shape[-1], key_weights[:, None, :, None]
    # Products are formed in the precision of the gates, whose gradients are summed over heads.
    weighted = torch.cat([value * gates, gates.expand(*value.shape[:-1], 1)], dim=-1)
    spare = -(width + 1) % 8
    query, key = (pad(part, (0, spare + 1)) for part in (query, key))
    sums, _ = sdpa_attention_forward(
        module, query, key, pad(weighted.to(value.dtype), (0, spare)), attention_mask,
        dropout=kwargs.get("dropout", 0.0), scaling=scaling or width**-0.5,
    )  # fmt: skip
    sums = sums.to(weighted.dtype)
    return (sums[..., :width] / (sums[..., width : width + 1] + EPS)).to(value.dtype), None


AttentionInterface.register(IMPLEMENTATION, attend_with_key_weights)
AttentionMaskInterface.register(IMPLEMENTATION, sdpa_mask)


def run_evicting(
    layer: nn.Module,
    number: int,
    hidden: Tensor,
    valid: Tensor,
    decision: Decision,
    arguments: dict[str, Any],
) -> Tensor:
    """Run one evicting layer.

    Args:
        layer: Decoder layer.
        number: Its 0-based place.
        hidden: Hidden states at its input (B, T, D).
        valid: False on pads (B, T), which no token reads.
        decision: Which tokens execute it; if ``run_all``, all run, for gradients.
        arguments: Of the layer: attention mask, positions, cache.

    Returns:
        Hidden states after the layer (B, T, D), unchanged for tokens that skip it.
    """
    if decision.run_all:
        assert decision.scale is not None
        after = layer(hidden, key_weights=decision.scale, **arguments)
        return hidden + (after - hidden) * decision.scale[..., None].to(hidden.dtype)
    cache, mask_in = arguments["past_key_values"], arguments["attention_mask"]
    store: EvictingLayer | None = None if cache is None else cache.layers[number]
    if store is not None and one_token(hidden) and mask_in is None and not _has_pads(store):
        if not bool(decision.execute & valid):
            return hidden
        # All keys of this layer are earlier tokens.
        after = layer(hidden, **arguments)
        store.record(torch.full((1, 1), cache.get_seq_length() - 1, device=hidden.device))
        return after
    chosen = executing_tokens(decision.execute & valid)
    if chosen.places.shape[1] == 0:
        return hidden
    after = layer(take(hidden, chosen.places), **_arguments_of(store, chosen, hidden, arguments))
    return put(after, chosen, hidden)


def _has_pads(store: EvictingLayer) -> bool:
    """Whether a layer's keys have columns without a token, as a batch leaves them."""
    return store.columns is not None and bool((store.columns < 0).any())


def _arguments_of(
    store: EvictingLayer | None, chosen: ExecutingTokens, hidden: Tensor, arguments: dict[str, Any]
) -> dict[str, Any]:
    """The arguments of the layer for the executing tokens; records which keys ``store`` gets."""
    places, live = chosen
    batch, length = hidden.shape[:2]
    cache, mask_in = arguments["past_key_values"], arguments["attention_mask"]
    positions = arguments["position_ids"].expand(batch, length)
    # The sequence is as long as the cache of the first layer, which has this call's keys already.
    past = 0 if cache is None else cache.get_seq_length() - length
    queries = places + past
    keys = torch.where(live, queries, -1)
    document = (positions == 0).cumsum(dim=1).gather(1, places)
    mask = torch.ones(1, dtype=torch.bool, device=hidden.device)
    if store is None:
        # Tokens of packed documents read their own document alone.
        mask = document[:, :, None] == document[:, None, :]
    else:
        keys = store.record(keys)
    mask = mask & (keys[:, None, :] >= 0) & (keys[:, None, :] <= queries[:, :, None])
    if mask_in is not None:
        mask = mask & _seen(mask_in[:, 0].expand(batch, -1, -1), places, keys.clamp(min=0))
    # Padding among the queries reads every key: a query without keys would give NaN.
    mask = mask | ~live[:, :, None]
    cosine, sine = arguments["position_embeddings"]
    return arguments | {
        "attention_mask": mask[:, None],
        "position_ids": positions.gather(1, places),
        "position_embeddings": (take(cosine, places), take(sine, places)),
    }


def _seen(mask: Tensor, queries: Tensor, keys: Tensor) -> Tensor:
    """Which keys (B, P) each query (B, m) reads by a mask (B, T, C), (B, m, P) bool."""
    rows = mask.gather(1, queries[:, :, None].expand(-1, -1, mask.shape[2]))
    part = rows.gather(2, keys[:, None].expand(-1, queries.shape[1], -1))
    return part if part.dtype == torch.bool else part >= 0
