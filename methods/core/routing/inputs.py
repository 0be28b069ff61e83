"""What a call of the decoder says beside its numbers: tokens, masks, what is to be returned."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import Cache, PreTrainedConfig
from transformers.masking_utils import create_causal_mask, create_sliding_window_causal_mask

from methods.core.model.backbone import attention_kinds
from methods.core.routing.router import Tokens

# 1 on tokens, 0 on pads, (B, past + T), or what attention takes, at once or by kind of layer.
Mask = Tensor | dict[str, Tensor | None] | None
# Of states: all, none, or some of them counted from either end.
Places = bool | int | Sequence[int] | None


def check_call(
    config: PreTrainedConfig, ids: Tensor | None, embeddings: Tensor | None, options: dict[str, Any]
) -> None:
    """Refuse what a routed decoder does not give.

    Raises:
        ValueError: Attention weights are asked for, or there is not one input.
    """
    if (ids is None) == (embeddings is None):
        raise ValueError("give either input_ids or inputs_embeds")
    if options.get("output_attentions", getattr(config, "output_attentions", False)):
        raise ValueError(
            "a routed model gives no attention weights (output_attentions): a token that skips an "
            "attention has none"
        )


class HiddenStates:
    """What a caller wants to see of the residual stream, in the order of transformers.

    Args:
        config: Says it where ``asked`` is None.
        asked: ``output_hidden_states``: of what enters the first layer and leaves each, all or
            some; the others are None.
        number: Of all states, L + 1.
    """

    def __init__(self, config: PreTrainedConfig, asked: Places, number: int) -> None:
        if asked is None:
            asked = getattr(config, "output_hidden_states", None)
        self.places: set[int] | None = None
        if asked:
            some = [asked] if isinstance(asked, int) else asked
            self.places = set(range(-number, number)) if asked is True else set(some)
        self.number, self.kept = number, list[Tensor | None]()

    def add(self, hidden: Tensor) -> None:
        """The next state (B, T, D)."""
        if self.places is not None:
            place = len(self.kept)
            wanted = not self.places.isdisjoint((place, place - self.number))
            self.kept.append(hidden if wanted else None)

    def states(self) -> tuple[Any, ...] | None:
        """All that were added, None where nobody asked."""
        return None if self.places is None else tuple(self.kept)


def tokens_of(ids: Tensor | None, mask: Mask, positions: Tensor, hidden: Tensor) -> Tokens:
    """What is known of the tokens.

    Args:
        ids: Token ids (B, T), if the call gives them.
        mask: 1 on tokens, 0 on pads, (B, past + T); other shapes tell of no pads.
        positions: (B or 1, T).
        hidden: Embeddings (B, T, D).
    """
    batch, length = hidden.shape[:2]
    if not isinstance(mask, Tensor) or mask.dim() != 2:
        valid = torch.ones(batch, length, dtype=torch.bool, device=hidden.device)
        return Tokens(ids, positions.expand(batch, length), valid)
    # Counted from the first real token, whatever the side of the padding.
    places = (mask.long().cumsum(dim=1) - 1).clamp(min=0)
    return Tokens(ids, places[:, -length:], mask[:, -length:].bool())


def attention_masks(
    config: PreTrainedConfig,
    hidden: Tensor,
    mask: Mask,
    cache: Cache | None,
    positions: Tensor,
) -> list[Any]:
    """One attention mask per layer, full or sliding as the config says."""
    kinds = attention_kinds(config)
    if isinstance(mask, dict):
        return [mask[kind] for kind in kinds]
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
