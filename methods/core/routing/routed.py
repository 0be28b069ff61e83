"""A causal LM of Hugging Face whose inner decoder decides for each token which units run.

``RoutedDecoder`` takes the place of the inner decoder alone: generation, loss and head stay those
of Hugging Face. It walks over the layers (``layer.py`` runs one of them) and hands the router's
state on from unit to unit. A forward pass stores nothing on modules: whatever it computes is an
argument or a result. Activation checkpointing, DDP and compilation need that.

A token that skips an attention or a whole layer still leaves its key and value there. So later
tokens read a complete cache, cached decoding equals the full forward pass, and the projections that
make keys and values count as used. Only evicting layers (``eviction.py``) leave nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import Cache, DynamicCache, PreTrainedConfig, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutputWithPast

from methods.core.model.backbone import decoder
from methods.core.model.families import embedding_factor
from methods.core.routing.caches import StaticEvictingCache, evict_from
from methods.core.routing.decisions import Decider, Decision
from methods.core.routing.eviction import IMPLEMENTATION
from methods.core.routing.inputs import (
    HiddenStates,
    Mask,
    Options,
    attention_masks,
    check_call,
    rotary_positions,
    tokens_of,
)
from methods.core.routing.layer import Call, RoutedLayer, units_by_layer
from methods.core.routing.recompute import recompute
from methods.core.routing.router import Change, Context, Router, without_narrowing


@dataclass
class RoutedOutput(BaseModelOutputWithPast):
    """The decoder's output and the decisions that it follows from.

    ``executed`` (B, U, T) bool; ``soft`` (B, U, T), the gates that penalties see, or None.
    """

    executed: Tensor | None = None
    soft: Tensor | None = None


class RoutedDecoder(nn.Module):
    """The inner decoder of a causal LM, with a router that decides its units.

    Submodules have the names that they have in the dense decoder, so its weights keep their keys.

    Args:
        dense: Inner decoder; its modules are used, not copied.
        router: Decides which units run for each token.
    """

    def __init__(self, dense: nn.Module, router: Router) -> None:
        super().__init__()
        self.config: PreTrainedConfig = dense.config  # type: ignore[assignment]
        self.embed_tokens: nn.Module = dense.embed_tokens  # type: ignore[assignment]
        self.layers: nn.ModuleList = dense.layers  # type: ignore[assignment]
        self.norm: nn.Module = dense.norm  # type: ignore[assignment]
        self.rotary_emb: nn.Module = dense.rotary_emb  # type: ignore[assignment]
        self.router = router
        # Whether the backward pass runs each layer again; the trainer sets it.
        self.checkpointing = False
        self._units = units_by_layer(router.units, len(self.layers))
        self._embedding_factor = embedding_factor(self.config)

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Mask = None,
        position_ids: Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        **kwargs: Any,
    ) -> RoutedOutput | tuple[Any, ...]:
        """Run the layers, called as an inner decoder of transformers.

        Args:
            input_ids: Token ids (B, T).
            attention_mask: 1 on tokens, 0 on pads, (B, past + T); or a mask in the form that
                attention takes, as ``generate`` makes it for a static cache.
            position_ids: Positions (B, T); where they start again at 0, a new document starts.
            past_key_values: Cache of earlier tokens.
            inputs_embeds: Embeddings (B, T, D) in place of ``input_ids``.
            use_cache: Whether to return a cache; None: as the config says, but not in training.
                Where layers are recomputed there is no new one.
            kwargs: The fields of :class:`methods.core.routing.inputs.Options`; all else is handed
                to every layer.

        Returns:
            Hidden states (B, T, D) and the decisions (B, U, T).

        Raises:
            ValueError: Attention weights are asked for, or ``input_ids`` and ``inputs_embeds`` are
                both given, or neither; or layers evict and attention is not theirs.
        """
        check_call(self.config, input_ids, inputs_embeds, kwargs)
        options = Options.take(kwargs)
        implementation = self.config._attn_implementation
        if self.router.evicts and not options.capturable and implementation != IMPLEMENTATION:
            raise ValueError(
                f"evicting layers need the attention '{IMPLEMENTATION}', which loading sets, not "
                f"'{implementation}'"
            )
        hidden = self.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds
        if self._embedding_factor != 1.0:
            hidden = hidden * self._embedding_factor
        if use_cache is None:
            use_cache = bool(self.config.use_cache) and not self.training
        use_cache = use_cache and not self._recomputes
        needs_cache = use_cache or options.capturable or past_key_values is not None
        cache = None
        if needs_cache:
            cache = self._cache(past_key_values, options.capturable)
        if position_ids is None:
            past = 0 if cache is None else cache.get_seq_length()
            position_ids = (torch.arange(hidden.shape[1], device=hidden.device) + past)[None]
        by_layer = self._by_layer(hidden, attention_mask, cache, position_ids)
        arguments = kwargs | {
            "position_ids": position_ids,
            "past_key_values": cache,
            "use_cache": use_cache,
        }
        tokens = tokens_of(input_ids, attention_mask, position_ids, hidden)
        at = options.context or Context()
        state = self.router.start(tokens, hidden, at)
        by_unit = None if options.forced is None else options.forced.unbind(dim=1)
        decider = Decider(self.router, at, by_unit, self._recomputes)
        call = Call(decider, options.capturable, tokens.valid, arguments)
        states = HiddenStates(self.config, options.output_hidden_states, len(self.layers) + 1)
        hidden, decisions = self._run_layers(hidden, state, by_layer, call, states)
        output = _output(hidden, cache, states, decisions)
        return output.to_tuple() if options.return_dict is False else output

    def _by_layer(
        self, hidden: Tensor, mask: Mask, cache: Cache | None, positions: Tensor
    ) -> list[dict[str, Any]]:
        """The arguments that each layer has for itself: its mask and its rotary positions."""
        static = isinstance(cache, StaticEvictingCache)
        if self.router.evicts and cache is not None and not static:
            mask = _first_columns(mask, int(cache.get_seq_length()) + hidden.shape[1])
        masks = attention_masks(self.config, hidden, mask, cache, positions)
        rotary = rotary_positions(self.rotary_emb, self.config, hidden, positions)
        return [
            {"attention_mask": mask, "position_embeddings": turned}
            for mask, turned in zip(masks, rotary, strict=True)
        ]

    def _run_layers(
        self,
        hidden: Tensor,
        state: Any,
        by_layer: Sequence[dict[str, Any]],
        call: Call,
        states: HiddenStates,
    ) -> tuple[Tensor, dict[int, Decision]]:
        """Run all layers and the last norm.

        Args:
            hidden: Embeddings (B, T, D).
            state: Of the router, before the first unit.
            by_layer: The arguments that each layer has for itself.
            call: What the layers share.
            states: Collects what enters each layer, and the result.

        Returns:
            Hidden states (B, T, D), and the decision about each unit.
        """
        decisions: dict[int, Decision] = {}
        for number, layer in enumerate(self.layers):
            states.add(hidden)
            arguments = by_layer[number] | call.arguments
            units = self._units.get(number)
            if units is None:
                hidden = self._run_unrouted(layer, hidden, **arguments)
                continue
            run = RoutedLayer(layer, number, units, self.router).run
            if self._recomputes:
                run = partial(recompute, run)
            here = call._replace(arguments=arguments)
            hidden, of_layer, state = run(state, hidden, here)
            decisions |= of_layer
        hidden = self.norm(hidden)
        states.add(hidden)
        return hidden, decisions

    def _apply(self, fn: Change, recurse: bool = True) -> RoutedDecoder:
        """Convert and move; rotary frequencies stay in 32 bits, as transformers loads them."""
        for child in self.children() if recurse else ():
            child._apply(without_narrowing(fn) if child is self.rotary_emb else fn)
        super()._apply(fn, recurse=False)
        return self

    def _cache(self, cache: Cache | None, capturable: bool) -> Cache:
        """The cache of this call: the caller's, or a new one.

        Raises:
            ValueError: The router evicts, and the caller's cache cannot hold its keys and values.
        """
        if capturable and self.router.evicts:
            if not isinstance(cache, StaticEvictingCache):
                raise ValueError(
                    f"evicting layers are captured with a StaticEvictingCache, not with "
                    f"{type(cache).__name__}"
                )
            return cache
        cache = DynamicCache(config=self.config) if cache is None else cache
        if self.router.evicts:
            evict_from(cache, len(self.layers), {unit.layer for unit in self.router.units})
        return cache

    @property
    def _recomputes(self) -> bool:
        if not torch.is_grad_enabled():
            return False
        return self.checkpointing or (self.training and any(map(_checkpoints, self.layers)))

    def _run_unrouted(self, layer: nn.Module, hidden: Tensor, **arguments: Any) -> Any:
        """Run a layer without units; the backward pass runs it again if layers are recomputed."""
        if self._recomputes and not _checkpoints(layer):
            return checkpoint(layer, hidden, use_reentrant=False, **arguments)
        return layer(hidden, **arguments)


def _checkpoints(layer: nn.Module) -> bool:
    """Whether ``gradient_checkpointing_enable`` of transformers has told a layer to checkpoint."""
    return bool(getattr(layer, "gradient_checkpointing", False))


def _first_columns(mask: Mask, number: int) -> Mask:
    """The mask for so many columns; one made for a static cache, which now grows, has more."""
    if isinstance(mask, dict):
        return {kind: _first_columns(part, number) for kind, part in mask.items()}  # type: ignore[misc]
    return mask[..., :number] if isinstance(mask, Tensor) and mask.dim() == 4 else mask


def _output(
    hidden: Tensor, cache: Cache | None, states: HiddenStates, decisions: Mapping[int, Decision]
) -> RoutedOutput:
    """The result of a pass; ``hidden`` (B, T, D) are normed, ``decisions`` by unit."""
    ordered = [decisions[index] for index in range(len(decisions))]
    soft = [d.soft for d in ordered if d.soft is not None]
    return RoutedOutput(
        last_hidden_state=hidden,
        past_key_values=cache,
        hidden_states=states.result(),
        executed=torch.stack([d.execute for d in ordered], dim=1),
        soft=torch.stack(soft, dim=1) if soft else None,
    )


def route(model: PreTrainedModel, router: Router) -> PreTrainedModel:
    """Put a routed decoder into a causal LM, in place; the router moves to the model's device.

    Raises:
        ValueError: A parameter of the router is the model's too, or the router has an alternative
            of a unit that is no FFN, which would never run.
    """
    own = {id(parameter) for parameter in model.parameters()}
    for name, parameter in router.named_parameters():
        if id(parameter) in own:
            raise ValueError(
                f"{type(router).__name__}: its parameter '{name}' is the backbone's; a module that "
                "the router only reads belongs in a tuple"
            )
    for index, unit in enumerate(router.units):
        if unit.kind != "ffn" and router.alternative(index) is not None:
            raise ValueError(
                f"{type(router).__name__}: unit {index} is of kind '{unit.kind}' and has an "
                "alternative; only an FFN has one"
            )
    if not any(parameter.is_meta for parameter in router.parameters()):
        nn.Module.to(router, model.device)
    model.model = RoutedDecoder(decoder(model), router)
    if router.evicts:
        model.config._attn_implementation = IMPLEMENTATION
    return model


def birthplace(model: nn.Module) -> torch.device:
    """The device to make a router on: meta for a model without weights, else the CPU.

    Not the GPU: its random generators draw other initial values.
    """
    meta = any(parameter.is_meta for parameter in model.parameters())
    return torch.device("meta" if meta else "cpu")


def router_of(model: nn.Module) -> Router | None:
    """The router of a routed model, None for any other."""
    inner = getattr(model, "model", None)
    return inner.router if isinstance(inner, RoutedDecoder) else None
