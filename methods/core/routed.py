"""Per-token routing inside a Hugging Face causal LM.

``RoutedDecoder`` takes the place of the inner decoder only: generation, loss and head stay Hugging
Face's. It walks over the layers, asks the router at every routed unit which tokens execute it,
and threads the router's state through as tensors in and tensors out. Nothing is parked on modules,
so checkpointing, DDP and compilation see a pure function.

Units: ``"ffn"`` routes the feed-forward network of a layer; ``"block"`` routes the whole layer. A
token that skips a block still leaves its keys and values there, so that later tokens read a
complete cache and cached decoding equals the full forward; those projections count as used.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import Cache, DynamicCache, PreTrainedConfig, PreTrainedModel
from transformers.masking_utils import create_causal_mask, create_sliding_window_causal_mask
from transformers.modeling_outputs import BaseModelOutputWithPast

from methods.core.backbone import attention, attention_norm, count, decoder, ffn, ffn_norm, layers
from methods.core.dispatch import Branch, dispatch

Kind = Literal["ffn", "block"]


class Unit(NamedTuple):
    """A part of the backbone that a token may skip.

    ``layer`` is 0-based; ``parameters`` counts the dense parameters that do not run when skipped.
    """

    layer: int
    kind: Kind
    parameters: int


class Decision(NamedTuple):
    """What a router says about one unit, each (B, T).

    ``execute`` is bool. ``scale`` multiplies the branch that runs (None: 1). ``soft`` is the gate
    before the threshold, in [0, 1], for penalties (None where nothing is trained).
    """

    execute: Tensor
    scale: Tensor | None = None
    soft: Tensor | None = None


class Tokens(NamedTuple):
    """What is known of the tokens of one forward pass, each (B, T).

    ``ids`` are token ids (None when embeddings were given), ``positions`` count from 0 within a
    sequence whatever the padding, ``valid`` is False on pads.
    """

    ids: Tensor | None
    positions: Tensor
    valid: Tensor


@dataclass(frozen=True)
class Context:
    """Where training stands: ``progress`` in [0, 1] and the generator of the step's noise.

    Outside training progress is 1 and the generator None.
    """

    progress: float = 1.0
    generator: torch.Generator | None = None


class Router(nn.Module, ABC):
    """Decides per token which units run. Holds every parameter that routing adds."""

    units: Sequence[Unit]

    @abstractmethod
    def start(self, tokens: Tokens, hidden: Tensor) -> Any:
        """The routing state before the first unit; ``hidden`` (B, T, D) are the embeddings.

        The state is a tensor, None, or a tuple of such: one forward pass owns it.
        """

    @abstractmethod
    def gate(
        self,
        index: int,
        block_input: Tensor,
        post_attention: Tensor | None,
        state: Any,
        at: Context,
    ) -> tuple[Decision, Any]:
        """Decide unit ``index``.

        Args:
            index: Position in ``units``.
            block_input: Residual stream at the layer's input (B, T, D).
            post_attention: Residual stream behind attention (B, T, D); None for a block unit,
                which is decided before its attention runs.
            state: What ``start`` or the previous call returned.
            at: Training progress and noise.
        """

    def otherwise(self, index: int) -> Branch | None:
        """What runs instead of the FFN unit ``index``, (n, D) to (n, D); None means nothing."""
        return None


@dataclass
class RoutedOutput(BaseModelOutputWithPast):
    """The decoder's output with the decisions behind it.

    ``executed`` (B, U, T) bool; ``soft`` (B, U, T), the gates before the threshold, or None.
    """

    executed: Tensor | None = None
    soft: Tensor | None = None


class RoutedDecoder(nn.Module):
    """The inner decoder of a causal LM with a router in front of its units.

    Submodules keep their names, so the keys of the dense weights stay what they were.

    Args:
        dense: Inner decoder whose modules are taken over (not copied).
        router: Decides the units.
    """

    def __init__(self, dense: nn.Module, router: Router) -> None:
        super().__init__()
        self.config: PreTrainedConfig = dense.config  # type: ignore[assignment]
        self.embed_tokens: nn.Module = dense.embed_tokens  # type: ignore[assignment]
        self.layers: nn.ModuleList = dense.layers  # type: ignore[assignment]
        self.norm: nn.Module = dense.norm  # type: ignore[assignment]
        self.rotary_emb: nn.Module = dense.rotary_emb  # type: ignore[assignment]
        self.router = router
        # Recompute layers in the backward pass; set by the trainer.
        self.checkpointing = False
        self._routed = {unit.layer: (index, unit) for index, unit in enumerate(router.units)}
        if len(self._routed) != len(router.units):
            raise ValueError("a layer carries more than one routed unit")

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        gates: Tensor | None = None,
        context: Context | None = None,
        **kwargs: Any,
    ) -> RoutedOutput:
        """Run the layers.

        Args:
            input_ids: Token ids (B, T).
            attention_mask: 1 on tokens, 0 on pads, (B, past + T).
            position_ids: Positions (B, T); a reset starts a new packed document.
            past_key_values: Cache of earlier tokens.
            inputs_embeds: Embeddings (B, T, D) in place of ``input_ids``.
            use_cache: Whether to return a cache.
            gates: Forced decisions (B, U, T) bool. The router still runs, its decision and its
                scale are replaced (scale 1).
            context: Training progress and noise.

        Returns:
            Hidden states (B, T, D) and the decisions (B, U, T).
        """
        hidden = self.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds
        if use_cache and past_key_values is None:
            past_key_values = DynamicCache(config=self.config)
        if position_ids is None:
            past = 0 if past_key_values is None else past_key_values.get_seq_length()
            position_ids = (torch.arange(hidden.shape[1], device=hidden.device) + past)[None]
        masks = attention_masks(self.config, hidden, attention_mask, past_key_values, position_ids)
        shared = kwargs | {
            "position_embeddings": self.rotary_emb(hidden, position_ids=position_ids),
            "position_ids": position_ids,
            "past_key_values": past_key_values,
            "use_cache": use_cache,
        }
        state = self.router.start(_tokens(input_ids, attention_mask, position_ids, hidden), hidden)
        decisions: list[Decision] = []
        at = context or Context()
        for number, layer in enumerate(self.layers):
            arguments = {"attention_mask": masks[number], **shared}
            if number not in self._routed:
                hidden = self._run(layer, hidden, **arguments)
                continue
            forced = None if gates is None else gates[:, self._routed[number][0]]
            hidden, decision, state = self._run(
                self._routed_layer, number, hidden, state, at, forced, arguments
            )
            decisions.append(decision)
        soft = [d.soft for d in decisions if d.soft is not None]
        return RoutedOutput(
            last_hidden_state=self.norm(hidden),
            past_key_values=past_key_values,
            executed=torch.stack([d.execute for d in decisions], dim=1),
            soft=torch.stack(soft, dim=1) if soft else None,
        )

    def _run(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call a layer, under activation checkpointing if that is on and gradients flow."""
        if self.checkpointing and torch.is_grad_enabled():
            return checkpoint(function, *args, use_reentrant=False, **kwargs)
        return function(*args, **kwargs)

    def _routed_layer(
        self,
        number: int,
        hidden: Tensor,
        state: Any,
        at: Context,
        forced: Tensor | None,
        arguments: dict[str, Any],
    ) -> tuple[Tensor, Decision, Any]:
        """One layer with a routed unit; returns the residual stream, the decision, the state."""
        index, unit = self._routed[number]
        layer = self.layers[number]
        # Attention runs for every token, also where its block is skipped: it leaves the keys and
        # values that later tokens read.
        mixed, _ = attention(layer)(hidden_states=attention_norm(layer)(hidden), **arguments)
        middle = hidden + mixed
        seen = middle if unit.kind == "ffn" else None
        decision, state = self.router.gate(index, hidden, seen, state, at)
        if forced is not None:
            decision = Decision(forced, None, decision.soft)
        execute = decision.execute.reshape(-1)
        scale = None if decision.scale is None else decision.scale.reshape(-1)
        rows = ffn_norm(layer)(middle).reshape(-1, hidden.shape[-1])
        if unit.kind == "ffn":
            update = dispatch(rows, execute, ffn(layer), self.router.otherwise(index), scale)
            return middle + update.reshape(hidden.shape), decision, state
        update = dispatch(rows, execute, ffn(layer)).reshape(hidden.shape)
        change = torch.where(decision.execute[..., None], mixed + update, 0)
        if decision.scale is not None:
            change = change * decision.scale[..., None].to(change.dtype)
        return hidden + change, decision, state


def route(model: PreTrainedModel, router: Router) -> PreTrainedModel:
    """Put a routed decoder into a causal LM, in place."""
    model.model = RoutedDecoder(decoder(model), router)
    return model


def router_of(model: nn.Module) -> Router | None:
    """The router of a routed model, None for any other."""
    inner = getattr(model, "model", None)
    return inner.router if isinstance(inner, RoutedDecoder) else None


def ffn_units(model: nn.Module, which: Sequence[int]) -> list[Unit]:
    """The feed-forward networks of the layers ``which``."""
    return [Unit(n, "ffn", count(ffn(layers(model)[n]))) for n in which]


def block_units(model: nn.Module, which: Sequence[int]) -> list[Unit]:
    """The layers ``which`` as a whole: all but the input norm, keys and values can be skipped."""
    units = []
    for number in which:
        layer = layers(model)[number]
        heads = attention(layer)
        kept = count(attention_norm(layer), heads.k_proj, heads.v_proj)  # type: ignore[arg-type]
        # Qwen3 norms its keys; the key norm runs with them.
        kept += count(heads.k_norm) if hasattr(heads, "k_norm") else 0  # type: ignore[arg-type]
        units.append(Unit(number, "block", count(layer) - kept))
    return units


def _tokens(ids: Tensor | None, mask: Tensor | None, positions: Tensor, hidden: Tensor) -> Tokens:
    batch, length = hidden.shape[:2]
    if mask is None or mask.dim() != 2:
        valid = torch.ones(batch, length, dtype=torch.bool, device=hidden.device)
    else:
        valid = mask[:, -length:].bool()
    return Tokens(ids, positions.expand(batch, length), valid)


def attention_masks(
    config: PreTrainedConfig,
    hidden: Tensor,
    mask: Tensor | None,
    cache: Cache | None,
    positions: Tensor,
) -> list[Any]:
    """One attention mask per layer, full or sliding as the config says."""
    kinds = getattr(config, "layer_types", None)
    if not kinds:
        sliding = getattr(config, "sliding_window", None) is not None
        kinds = ["sliding_attention" if sliding else "full_attention"] * config.num_hidden_layers
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
