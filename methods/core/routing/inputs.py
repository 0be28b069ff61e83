"""Arguments of a call of the decoder, checked and brought into one form."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import Cache, PreTrainedConfig
from transformers.masking_utils import create_causal_mask, create_sliding_window_causal_mask

from methods.core.model.backbone import attention_kinds
from methods.core.routing.router import Context, Tokens

# 1 on tokens and 0 on pads, (B, past + T); or a mask in the form that attention takes, for all
# layers or by kind of layer.
Mask = Tensor | dict[str, Tensor | None] | None
# Which hidden states are returned: all, none, or some, counted from either end.
StateChoice = bool | int | Sequence[int] | None


class Options(NamedTuple):
    """What a call of the decoder may ask for beside its inputs.

    Args:
        forced: Decisions (B, U, T), bool, in place of the router's. The router still runs;
            updates are scaled in training alone.
        context: Training progress, noise, and which tokens are answer tokens.
        capturable: Whether a CUDA graph may capture the pass. Then launches, shapes and addresses
            do not depend on decisions, and the host reads no tensor. For one new token of each
            sequence, without gradients; a cache of evicting layers must be a
            ``StaticEvictingCache``.
        output_hidden_states: See :class:`HiddenStates`.
        return_dict: False: return a tuple of the entries that are not None.
    """

    forced: Tensor | None = None
    context: Context | None = None
    capturable: bool = False
    output_hidden_states: StateChoice = None
    return_dict: bool | None = None

    @classmethod
    def take(cls, arguments: dict[str, Any]) -> Options:
        """The options among the arguments of a call, which loses them."""
        return cls(**{name: arguments.pop(name) for name in cls._fields if name in arguments})


def check_call(
    config: PreTrainedConfig, ids: Tensor | None, embeddings: Tensor | None, options: dict[str, Any]
) -> None:
    """Refuse a call that a routed decoder cannot answer.

    Raises:
        ValueError: Attention weights are asked for, or there is not exactly one input.
    """
    if (ids is None) == (embeddings is None):
        raise ValueError("give either input_ids or inputs_embeds")
    if options.get("output_attentions", getattr(config, "output_attentions", False)):
        raise ValueError(
            "a routed model gives no attention weights (output_attentions): a token that skips an "
            "attention has none"
        )


class HiddenStates:
    """The hidden states that a caller asks for, in the order of transformers.

    State 0 enters the first layer, state n leaves layer n (counted from 1), state L is normed.

    Args:
        config: Its ``output_hidden_states`` decides where ``choice`` is None.
        choice: Argument ``output_hidden_states``: all states or some of them.
        number: Number of all states, L + 1.
    """

    def __init__(self, config: PreTrainedConfig, choice: StateChoice, number: int) -> None:
        if choice is None:
            choice = getattr(config, "output_hidden_states", None)
        self.places: set[int] | None = None
        if choice:
            some = [choice] if isinstance(choice, int) else choice
            self.places = set(range(-number, number)) if choice is True else set(some)
        self.number, self.states = number, list[Tensor | None]()

    def add(self, hidden: Tensor) -> None:
        """Take the next state (B, T, D)."""
        if self.places is not None:
            place = len(self.states)
            chosen = not self.places.isdisjoint((place, place - self.number))
            self.states.append(hidden if chosen else None)

    def result(self) -> tuple[Any, ...] | None:
        """All states, None in place of those that nobody asked for; None if none was asked for."""
        return None if self.places is None else tuple(self.states)


def tokens_of(ids: Tensor | None, mask: Mask, positions: Tensor, hidden: Tensor) -> Tokens:
    """The tokens of a call.

    Args:
        ids: Token ids (B, T); None: the call has embeddings in their place.
        mask: 1 on tokens, 0 on pads, (B, past + T); with any other form no token counts as a pad.
        positions: (B or 1, T).
        hidden: Embeddings (B, T, D).
    """
    batch, length = hidden.shape[:2]
    if not isinstance(mask, Tensor) or mask.dim() != 2:
        valid = torch.ones(batch, length, dtype=torch.bool, device=hidden.device)
        return Tokens(ids, positions.expand(batch, length), valid)
    # Positions start at the first real token, with pads on either side.
    places = (mask.long().cumsum(dim=1) - 1).clamp(min=0)
    return Tokens(ids, places[:, -length:], mask[:, -length:].bool())


def attention_masks(
    config: PreTrainedConfig,
    hidden: Tensor,
    mask: Mask,
    cache: Cache | None,
    positions: Tensor,
) -> list[Any]:
    """One attention mask per layer, full or sliding as the config says.

    Args:
        config: Of the backbone.
        hidden: Embeddings of the new tokens (B, T, D).
        mask: Padding (B, past + T), a whole mask (B, 1, T, past + T), or one per kind of attention.
        cache: Keys and values of earlier tokens.
        positions: Of the new tokens (B, T).
    """
    kinds = attention_kinds(config)
    if isinstance(mask, dict):
        return [mask[kind] for kind in kinds]
    makers = {
        "full_attention": create_causal_mask,
        "sliding_attention": create_sliding_window_causal_mask,
    }
    masks = {
        kind: makers[kind](
            config=config,
            inputs_embeds=hidden,
            attention_mask=mask,
            past_key_values=cache,
            position_ids=positions,
        )
        for kind in set(kinds)
    }
    return [masks[kind] for kind in kinds]


def rotary_positions(
    rotary: nn.Module, config: PreTrainedConfig, hidden: Tensor, positions: Tensor
) -> list[tuple[Tensor, Tensor]]:
    """Cosines and sines of the rotary positions, for each layer; some families have two kinds."""
    kinds = attention_kinds(config)
    if not hasattr(rotary, "layer_types"):
        return [rotary(hidden, position_ids=positions)] * len(kinds)
    turned = {kind: rotary(hidden, positions, kind) for kind in set(kinds)}
    return [turned[kind] for kind in kinds]
