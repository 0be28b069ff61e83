"""Blocks that a token skips without a trace: no key, no value, nothing for later tokens to read.

Without gradients the tokens that execute are gathered and the whole layer runs on them alone;
the cache of such a layer holds their keys and values only. With gradients every token runs and
the attention weights are multiplied by the gate of the key and normalised again, so that a gate
learns from what later tokens miss. Both forms give the same numbers up to ``EPS``.

A static cache has a column for every token; there attention runs for all of them and the columns of
those that skip are masked.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import LongTensor, Tensor, nn
from torch.nn.functional import pad
from transformers import (
    AttentionInterface,
    AttentionMaskInterface,
    DynamicCache,
    PreTrainedConfig,
    StaticCache,
)
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from methods.core.routing.attend import Executing, executing, put, take
from methods.core.routing.router import Decision

IMPLEMENTATION = "skipbench_key_weights"
# Of the sum that normalises again (D-LLM's code).
EPS = 1e-6


class EvictingCache(DynamicCache):
    """A cache whose evicting layers hold the executed tokens of each sequence, padded on the right.

    ``columns``: layer -> (B, P) int64, the column of each stored key in the whole sequence, -1 for
    padding. The first layer is never evicting, so its length is that of the sequence.
    """

    def __init__(self, config: PreTrainedConfig) -> None:
        super().__init__(config=config)
        self.columns: dict[int, Tensor] = {}

    def reorder_cache(self, beam_idx: LongTensor) -> None:
        """Follow a beam search."""
        super().reorder_cache(beam_idx)
        self.columns = {
            n: c.index_select(0, beam_idx.to(c.device)) for n, c in self.columns.items()
        }

    def crop(self, tokens_to_remove: int) -> None:
        """Refuse: layers hold different numbers of the last tokens (assisted decoding asks for it).

        Raises:
            ValueError: Always.
        """
        raise ValueError("a cache with evicted tokens cannot be cropped: decode without assistance")


class StaticEvictingCache(StaticCache):
    """A static cache that knows who executed.

    ``kept`` (B, L, C) bool: whose key and value later tokens read, by layer and column; beyond the
    latest token it may hold anything.
    """

    def __init__(
        self, config: PreTrainedConfig, max_cache_len: int, sequences: int, device: torch.device
    ) -> None:
        super().__init__(config=config, max_cache_len=max_cache_len)
        shape = (sequences, config.num_hidden_layers, max_cache_len)
        self.kept = torch.zeros(shape, dtype=torch.bool, device=device)


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
    chosen = executing(decision.execute & valid)
    if chosen.places.shape[1] == 0:
        return hidden
    after = layer(take(hidden, chosen.places), **_narrowed(number, chosen, hidden, arguments))
    return put(after, chosen, hidden)


def among_kept(number: int, execute: Tensor, arguments: dict[str, Any]) -> dict[str, Any]:
    """The arguments of an evicting layer's attention in a :class:`StaticEvictingCache`.

    Args:
        number: The layer's 0-based place.
        execute: Who executes (B, T), bool; noted in the cache.
        arguments: Of the layer; its mask is bool, or None where it is causal alone.
    """
    cache: StaticEvictingCache = arguments["past_key_values"]
    kept, mask = cache.kept[:, number], arguments["attention_mask"]
    every = torch.arange(kept.shape[1], device=kept.device)
    # The first layer has stored this call's keys already.
    columns = every[: execute.shape[1]] + (cache.get_seq_length() - execute.shape[1])
    kept.index_copy_(1, columns, execute)
    if mask is None:
        mask = every <= columns[:, None]
    # A token that skips may read anything: a row without keys would be NaN.
    read = kept[:, None, None] | ~execute[:, None, :, None]
    return arguments | {"attention_mask": mask & read}


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
        stored = cache.columns.get(number, keys[:, :0])
        keys = cache.columns[number] = torch.cat([stored, keys], dim=1)
    mask = mask & (keys[:, None, :] >= 0) & (keys[:, None, :] <= queries[:, :, None])
    # A padded query may read anything: a row without keys would be NaN.
    mask = mask | ~live[:, :, None]
    cosine, sine = arguments["position_embeddings"]
    return arguments | {
        "attention_mask": mask[:, None],
        "position_ids": positions.gather(1, places),
        "position_embeddings": (take(cosine, places), take(sine, places)),
    }
