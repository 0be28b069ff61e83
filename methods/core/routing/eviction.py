"""Blocks that a token skips without a trace: no key, no value, nothing for later tokens to read.

Without gradients the tokens that execute are gathered and the whole layer runs on them alone;
the cache of such a layer holds their keys and values only. With gradients every token runs and
the attention weights are multiplied by the gate of the key and normalised again, so that a gate
learns from what later tokens miss. Both forms give the same numbers up to ``EPS``.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from methods.core.routing.attend import Executing, executing, put, take
from methods.core.routing.caches import EvictingCache
from methods.core.routing.decisions import Decision
from methods.kernels.choose import one_token

IMPLEMENTATION = "skipbench_key_weights"
# Of the sum that normalises again (D-LLM's code).
EPS = 1e-6


def attend_with_key_weights(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    key_weights: Tensor | None = None,
    scaling: float | None = None,
    dropout: float = 0.0,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    """Attention whose weights are multiplied by ``key_weights`` (B, K) and normalised again.

    Without them it is the library's sdpa attention. Shapes as in transformers' AttentionInterface:
    query (B, H, T, d), key and value (B, H_kv, K, d); returns (B, T, H, d) and no weights.

    sum_k w_k g_k v_k / (sum_k w_k g_k + EPS): one call of the fused attention reads both sums, of
    values g_k v_k with a column g_k behind them, so that neither pass holds T x K numbers. Zeros
    make queries, keys and values of one width that its kernels accept.
    """
    if key_weights is None:
        return sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **kwargs
        )
    width, gates = value.shape[-1], key_weights[:, None, :, None]
    # In the precision of the gates, whose gradients are summed over heads; 16 bits come last.
    weighted = torch.cat([value * gates, gates.expand(*value.shape[:-1], 1)], dim=-1)
    spare = -(width + 1) % 8
    query, key = (pad(part, (0, spare + 1)) for part in (query, key))
    read, _ = sdpa_attention_forward(
        module, query, key, pad(weighted.to(value.dtype), (0, spare)), attention_mask,
        dropout=dropout, scaling=scaling or width**-0.5,
    )  # fmt: skip
    read = read.to(weighted.dtype)
    return (read[..., :width] / (read[..., width : width + 1] + EPS)).to(value.dtype), None


AttentionInterface.register(IMPLEMENTATION, attend_with_key_weights)
AttentionMaskInterface.register(IMPLEMENTATION, sdpa_mask)


def evicting_block(
    layer: nn.Module,
    number: int,
    hidden: Tensor,
    valid: Tensor,
    decision: Decision,
    arguments: dict[str, Any],
) -> Tensor:
    """One evicting block.

    Args:
        layer: Decoder layer.
        number: Its 0-based place.
        hidden: Residual stream at its input (B, T, D).
        valid: False on pads (B, T), which no token reads.
        decision: Who executes; ``dense`` asks for the form with gradients.
        arguments: Of the layer: attention mask, positions, cache.

    Returns:
        Residual stream behind the block (B, T, D); of a token that skips it: unchanged.
    """
    if decision.dense:
        assert decision.scale is not None
        after = layer(hidden, key_weights=decision.scale, **arguments)
        return hidden + (after - hidden) * decision.scale[..., None].to(hidden.dtype)
    cache = arguments["past_key_values"]
    if cache is not None and one_token(hidden):
        if not bool(decision.execute & valid):
            return hidden
        # What was kept comes before it, without pads.
        after = layer(hidden, **arguments | {"attention_mask": None})
        _note(cache, number, torch.full((1, 1), cache.get_seq_length() - 1))
        return after
    chosen = executing(decision.execute & valid)
    if chosen.places.shape[1] == 0:
        return hidden
    after = layer(take(hidden, chosen.places), **_narrowed(number, chosen, hidden, arguments))
    return put(after, chosen, hidden)


def _narrowed(
    number: int, chosen: Executing, hidden: Tensor, arguments: dict[str, Any]
) -> dict[str, Any]:
    """The arguments of the layer for the executing tokens; notes what its cache will hold."""
    places, live = chosen
    batch, length = hidden.shape[:2]
    cache: EvictingCache | None = arguments["past_key_values"]
    positions = arguments["position_ids"].expand(batch, length)
    # The first layer has stored this call's keys already.
    past = 0 if cache is None else cache.get_seq_length() - length
    queries = places + past
    keys = torch.where(live, queries, -1)
    document = (positions == 0).cumsum(dim=1).gather(1, places)
    mask = torch.ones(1, dtype=torch.bool, device=hidden.device)
    if cache is None:
        # Packed documents end where positions start again.
        mask = document[:, :, None] == document[:, None, :]
    else:
        keys = _note(cache, number, keys)
    mask = mask & (keys[:, None, :] >= 0) & (keys[:, None, :] <= queries[:, :, None])
    # A padded query may read anything: a row without keys would be NaN.
    mask = mask | ~live[:, :, None]
    cosine, sine = arguments["position_embeddings"]
    return arguments | {
        "attention_mask": mask[:, None],
        "position_ids": positions.gather(1, places),
        "position_embeddings": (take(cosine, places), take(sine, places)),
    }


def _note(cache: EvictingCache, number: int, keys: Tensor) -> Tensor:
    """The columns (B, P) of what a layer holds, those of this call's keys (B, m) behind them."""
    stored = cache.columns.get(number, keys[:, :0])
    cache.columns[number] = torch.cat([stored, keys], dim=1)
    return cache.columns[number]
