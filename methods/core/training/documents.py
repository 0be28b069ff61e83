"""Attention of packed documents: a token reads the earlier tokens of its own document alone.

On a CPU a mask (B, 1, T, T) sees to it. Flash attention takes no such mask, and a kernel of a GPU
that does reads T x T numbers in every layer. So there the rows become one sequence of documents of
known lengths.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.attention.varlen import varlen_attn
from torch.nn.functional import pad
from transformers import AttentionInterface

from methods.core.model.backbone import attention, attention_kinds, layers
from methods.core.routing.eviction import IMPLEMENTATION
from methods.core.routing.flash import attention_by, takes

DOCUMENTS = "skipbench_documents"


class Documents(NamedTuple):
    """The documents of a batch, whose rows follow each other as B T tokens.

    Args:
        starts: Where each of N documents starts, and where the last one ends (N + 1,), int32.
        longest: Tokens of the longest.
    """

    starts: Tensor
    longest: int


def attend_documents(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: None,
    documents: Documents,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Causal attention of each document by flash attention.

    Signature and shapes are those of transformers' AttentionInterface: query (B, H, T, d), key and
    value (B, H_kv, T, d); returns (B, T, H, d) and no weights.
    """
    batch, _, length, _ = query.shape
    starts, longest = documents
    device, dtype = query.device.type, query.dtype
    if torch.is_autocast_enabled(device):
        dtype = torch.get_autocast_dtype(device)
    query, key, value = (
        part.transpose(1, 2).flatten(0, 1).to(dtype) for part in (query, key, value)
    )
    read: Any = varlen_attn(
        query, key, value, starts, starts, longest, longest,
        scale=scaling, window_size=(-1, 0), enable_gqa=True,
    )  # fmt: skip
    return read.unflatten(0, (batch, length)), None


AttentionInterface.register(DOCUMENTS, attend_documents)


@contextmanager
def packed_attention(
    model: Any, positions: Tensor, device: torch.device
) -> Iterator[dict[str, Any]]:
    """The arguments of a forward pass by which packed documents stay apart.

    The backward pass belongs inside, too: with recomputation it calls attention again.

    Args:
        model: Causal LM.
        positions: (B, T), 0 at the start of each document, pads being one more; on the CPU.
        device: Of the model.
    """
    firsts = positions == 0
    if int(firsts.sum(dim=1).max()) == 1:
        yield {}
    elif flash_takes(model, device):
        end = torch.tensor([firsts.numel()])
        starts = torch.cat([firsts.flatten().nonzero().squeeze(1), end])
        with attention_by(model, DOCUMENTS):
            on_device = starts.int().to(device, non_blocking=True)
            yield {"documents": Documents(on_device, int(starts.diff().max()))}
    elif (dtype := mask_dtype(model, device)) is None:
        yield {}
    else:
        # One mask for all layers; from a boolean mask each layer would make its own.
        places = positions.to(device, non_blocking=True)
        yield {"attention_mask": document_mask(places, dtype)}


def flash_takes(model: Any, device: torch.device) -> bool:
    """Whether flash attention computes every layer of ``model`` on ``device``."""
    # A layer whose attention is removed has no width. The trainer's autocast is to bfloat16.
    widths = {getattr(attention(layer), "head_dim", 0) for layer in layers(model)}
    return _full(model) and takes(model, widths, torch.bfloat16, device)


def mask_dtype(model: Any, device: torch.device) -> torch.dtype | None:
    """Dtype of the masks that are made here for packed rows; None: transformers makes them.

    It does so for other implementations of attention than sdpa, and for sliding windows.
    """
    if model.config._attn_implementation not in ("sdpa", IMPLEMENTATION) or not _full(model):
        return None
    # The dtype in which autocast multiplies, or it would convert the mask in every layer.
    dtype: torch.dtype = torch.bfloat16 if device.type == "cuda" else model.dtype
    return dtype


def document_mask(positions: Tensor, dtype: torch.dtype) -> Tensor:
    """The attention mask (B, 1, T, T): 0 on earlier tokens of the same document, else -inf.

    It is a slice of rows whose length is a multiple of 8. A GPU would copy any other mask in every
    layer.

    Args:
        positions: (B, T), 0 at the start of each document.
        dtype: Of the mask.
    """
    document = (positions == 0).cumsum(dim=1)
    length = document.shape[1]
    keys = pad(document, (0, -length % 8))
    visible = (document[:, :, None] == keys[:, None, :]).tril()
    mask = torch.zeros((), dtype=dtype, device=visible.device).where(visible, -math.inf)
    return mask[:, None, :, :length]


def _full(model: Any) -> bool:
    return set(attention_kinds(model.config)) == {"full_attention"}
