"""Caches for evicting layers, in which a token that skips a layer leaves no key and value.

So each sequence of a batch has its own number of keys in such a layer. An ``EvictingLayer`` grows
with each call; it may stand in any cache. ``StaticEvictingCache`` has fixed room, and each of its
evicting layers counts the keys of each sequence on the device.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
from torch import LongTensor, Tensor
from transformers import Cache, DynamicLayer, PreTrainedConfig, StaticCache, StaticLayer


class EvictingLayer(DynamicLayer):
    """Keys and values of executed tokens alone, padded within each call.

    ``columns`` (B, P) int64: the place of each stored key in the whole sequence, -1 for padding.
    """

    is_croppable = False

    def __init__(self) -> None:
        super().__init__()
        self.columns: Tensor | None = None

    def record(self, keys: Tensor) -> Tensor:
        """Note the places of this call's keys (B, m); returns those of all keys (B, P)."""
        self.columns = keys if self.columns is None else torch.cat([self.columns, keys], dim=1)
        return self.columns

    def reorder_cache(self, beam_idx: LongTensor) -> None:
        """Put sequences into the order of a beam search."""
        super().reorder_cache(beam_idx)
        self._take_columns(beam_idx)

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep some sequences."""
        super().batch_select_indices(indices)
        self._take_columns(indices)

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeat each sequence."""
        super().batch_repeat_interleave(repeats)
        if self.columns is not None:
            self.columns = self.columns.repeat_interleave(repeats, dim=0)

    def reset(self) -> None:
        """Drop everything."""
        super().reset()
        self.columns = None

    def crop(self, tokens_to_remove: int) -> None:
        """Refuse: the last tokens are not in every layer. Assisted decoding calls this.

        Raises:
            ValueError: Always.
        """
        raise ValueError("a cache with evicted tokens cannot be cropped: decode without assistance")

    def _take_columns(self, rows: Tensor) -> None:
        if self.columns is not None:
            self.columns = self.columns[rows.to(self.columns.device)]


def evict_from(cache: Cache, total: int, evicting: Collection[int]) -> None:
    """Give an empty cache the layers that evicting layers need; one of fixed room then grows.

    Args:
        cache: Changed in place, so that its owner goes on with it.
        total: Number of layers.
        evicting: The layers that evict.

    Raises:
        ValueError: It holds keys already, those of tokens that skip such a layer too.
    """
    if any(isinstance(layer, EvictingLayer) for layer in cache.layers):
        return
    if cache.get_seq_length() or isinstance(cache, StaticEvictingCache):
        raise ValueError(
            f"evicting layers cannot go on with a {type(cache).__name__} of another model or of "
            "static decoding: start with a new one"
        )
    cache.layers = [EvictingLayer() if n in evicting else DynamicLayer() for n in range(total)]


class StaticEvictingLayer(StaticLayer):
    """Keys and values of each sequence's executed tokens, without gaps.

    ``cumulative_length`` (B,) is their number, which is also the column of the next token.
    """

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Make room, and one counter per sequence."""
        super().lazy_initialization(key_states, value_states)
        self.cumulative_length = self.cumulative_length.new_zeros(len(key_states))

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Store one token of each sequence (B, H_kv, 1, d).

        The next token overwrites it unless :meth:`keep` moves the counter.
        """
        place = self.cumulative_length[:, None, None, None].expand_as(key_states)
        assert self.keys is not None
        assert self.values is not None
        self.keys.scatter_(2, place, key_states)
        self.values.scatter_(2, place, value_states)
        return self.keys, self.values

    def mask(self) -> Tensor:
        """The mask of the newest token (B, 1, 1, C), True on the columns that it reads."""
        columns = torch.arange(self.max_cache_len, device=self.device)
        return (columns <= self.cumulative_length[:, None])[:, None, None]

    def keep(self, execute: Tensor) -> None:
        """Keep the newest token of the sequences where ``execute`` (B,) is True."""
        self.cumulative_length.add_(execute)


class StaticEvictingCache(StaticCache):
    """A static cache that continues from prompts in a cache with evicting layers.

    Args:
        config: Of the backbone.
        max_cache_len: C.
        evicting: The layers that evict.
    """

    def __init__(
        self, config: PreTrainedConfig, max_cache_len: int, evicting: Collection[int]
    ) -> None:
        super().__init__(config=config, max_cache_len=max_cache_len)
        for number in evicting:
            self.layers[number] = StaticEvictingLayer(max_cache_len)

    def take(self, prompts: Cache) -> None:
        """Copy the content of ``prompts`` into this cache, whose tensors stay where they are."""
        pairs: list[tuple[Any, Any]] = list(zip(self.layers, prompts.layers, strict=True))
        for layer, source in pairs:
            keys, values = source.keys, source.values
            if not source.is_initialized:
                # No token executed this layer.
                keys = values = pairs[0][1].keys[:, :, :0]
            if not layer.is_initialized:
                layer.lazy_initialization(keys, values)
            length = keys.shape[2]
            layer.keys[:, :, :length] = keys
            layer.values[:, :, :length] = values
            columns = source.columns if isinstance(source, EvictingLayer) else None
            layer.cumulative_length.copy_(
                torch.tensor(length) if columns is None else (columns >= 0).sum(dim=1)
            )
