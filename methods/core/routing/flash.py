"""Attention of a decode step over a static cache, by flash attention.

The sdpa attention of such a step has one program for each key head, 8 of them for the 132
multiprocessors of an H100 at the shape of Llama-3.1-8B, and reads all columns of the cache. Flash
attention reads the columns in use and splits them among programs. It takes sequences of different
lengths that follow each other; here each key head of each sequence is one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.attention.varlen import varlen_attn
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward

IMPLEMENTATION = "skipbench_flash_decoding"
WIDEST_HEAD = 256


class Columns(NamedTuple):
    """Where the keys that the new tokens read are, among B H_kv C; int32, on the device.

    Args:
        tokens: 0, 1, ... B H_kv: the new token of each key head.
        starts: First column of each key head, and the end (B H_kv + 1,).
        lengths: Columns that the new token reads (B H_kv,).
    """

    tokens: Tensor
    starts: Tensor
    lengths: Tensor

    @classmethod
    def of(cls, first: Tensor, stored: int, heads: int, capacity: int) -> Columns:
        """After prompts of ``stored`` columns, the first ``first`` (B,) of each being pads."""
        number = len(first) * heads
        first = first.int().repeat_interleave(heads)
        tokens = torch.arange(number + 1, dtype=torch.int32, device=first.device)
        starts = tokens * capacity
        starts[:-1] += first
        return cls(tokens, starts, stored - first)


def attend_to_columns(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    columns: dict[int, Columns] | None = None,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attention of one token per sequence to ``columns`` of a cache, by number of key heads.

    Signature and shapes are those of transformers' AttentionInterface: query (B, H, 1, d), key and
    value (B, H_kv, C, d); returns (B, 1, H, d) and no weights. Without ``columns`` it is sdpa.
    """
    if columns is None:
        read, _ = sdpa_attention_forward(
            module, query, key, value, attention_mask, scaling=scaling, **kwargs
        )
        return read, None
    batch, heads, _, width = query.shape
    shared, capacity = key.shape[1:3]
    tokens, starts, lengths = columns[shared]
    rows = query.reshape(batch * shared, heads // shared, width)
    key, value = (part.reshape(-1, 1, width) for part in (key, value))
    found: Any = varlen_attn(
        rows, key, value, tokens, starts, 1, capacity,
        scale=scaling, enable_gqa=True, seqused_k=lengths,
    )  # fmt: skip
    return found.view(batch, 1, heads, width), None


AttentionInterface.register(IMPLEMENTATION, attend_to_columns)


def takes(model: Any, widths: Iterable[int], dtype: torch.dtype, device: torch.device) -> bool:
    """Whether flash attention computes heads of all ``widths`` in ``dtype`` on ``device``.

    It stands in for sdpa, and for no other attention that ``model`` may have.
    """
    return (
        model.config._attn_implementation == "sdpa"
        and dtype in (torch.bfloat16, torch.float16)
        and capable(device)
        and all(width % 8 == 0 and width <= WIDEST_HEAD for width in widths)
    )


def capable(device: torch.device) -> bool:
    """Whether ``device`` runs flash attention."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0)


@contextmanager
def attention_by(model: Any, implementation: str) -> Iterator[None]:
    """Another implementation of attention while the context lasts."""
    config, before = model.config, model.config._attn_implementation
    config._attn_implementation = implementation
    try:
        yield
    finally:
        config._attn_implementation = before
