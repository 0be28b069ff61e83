"""Caches for evicting layers, in which a token that skips a layer leaves no key and value.

So each sequence of a batch has its own number of keys in such a layer. ``EvictingCache`` grows with
each call. ``StaticEvictingCache`` has fixed room, and each of its evicting layers counts the keys
of each sequence on the device.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
from torch import LongTensor, Tensor
from transformers import DynamicCache, PreTrainedConfig, StaticCache, StaticLayer


class EvictingCache(DynamicCache):
    """A cache whose evicting layers hold only executed tokens, padded within each call.

    ``columns``: layer -> (B, P) int64, the place of each stored key in the whole sequence, -1 for
    padding. The first layer never evicts, so its length is that of the sequence.
    """

    def __init__(self, config: PreTrainedConfig) -> None:
        super().__init__(config=config)
        self.columns: dict[int, Tensor] = {}

    def reorder_cache(self, beam_idx: LongTensor) -> None:
        """Put sequences into the order of a beam search."""
        super().reorder_cache(beam_idx)
        self.columns = {
            n: c.index_select(0, beam_idx.to(c.device)) for n, c in self.columns.items()
        }

    def crop(self, tokens_to_remove: int) -> None:
        """Refuse: the last tokens are not in every layer. Assisted decoding calls this.

        Raises:
            ValueError: Always.
        """
        raise ValueError("a cache with evicted tokens cannot be cropped: decode without assistance")


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
    """A static cache that continues from prompts in an :class:`EvictingCache`.

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

    def take(self, prompts: EvictingCache) -> None:
        """Copy the content of ``prompts`` into this cache, whose tensors stay where they are."""
        pairs: list[tuple[Any, Any]] = list(zip(self.layers, prompts.layers, strict=True))
        for number, (layer, source) in enumerate(pairs):
            keys, values = source.keys, source.values
            if not source.is_initialized:
                # No token executed this layer.
                keys = values = pairs[0][1].keys[:, :, :0]
            if not layer.is_initialized:
                layer.lazy_initialization(keys, values)
            length = keys.shape[2]
            layer.keys[:, :, :length] = keys
            layer.values[:, :, :length] = values
            columns = prompts.columns.get(number)
            layer.cumulative_length.copy_(
                torch.tensor(length) if columns is None else (columns >= 0).sum(dim=1)
            )
