"""What a call of the decoder says beside its numbers: tokens, masks, what is to be returned."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import Cache, PreTrainedConfig
from transformers.masking_utils import create_causal_mask, create_sliding_window_causal_mask

from methods.core.backbone import attention_kinds
from methods.core.routing.router import Tokens


def tokens_of(ids: Tensor | None, mask: Tensor | None, positions: Tensor, hidden: Tensor) -> Tokens:
    """What is known of the tokens.

    Args:
        ids: Token ids (B, T), if the call gives them.
        mask: 1 on tokens, 0 on pads, (B, past + T); other shapes tell of no pads.
        positions: (B or 1, T).
        hidden: Embeddings (B, T, D).
    """
    batch, length = hidden.shape[:2]
    if mask is None or mask.dim() != 2:
        valid = torch.ones(batch, length, dtype=torch.bool, device=hidden.device)
        return Tokens(ids, positions.expand(batch, length), valid)
    # Counted from the first real token, whatever the side of the padding.
    places = (mask.long().cumsum(dim=1) - 1).clamp(min=0)
    return Tokens(ids, places[:, -length:], mask[:, -length:].bool())


def attention_masks(
    config: PreTrainedConfig,
    hidden: Tensor,
    mask: Tensor | None,
    cache: Cache | None,
    positions: Tensor,
) -> list[Any]:
    """One attention mask per layer, full or sliding as the config says."""
    kinds = attention_kinds(config)
    makers = {
        "full_attention": create_causal_mask,
        "sliding_attention": create_sliding_window_causal_mask,
    }
    made = {
        kind: makers[kind](
            config=config,
            inputs_embeds=hidden,
            attention_mask=mask,
            past_key_values=cache,
            position_ids=positions,
        )
        for kind in set(kinds)
    }
    return [made[kind] for kind in kinds]
