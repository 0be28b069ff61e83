"""Per-token routing inside a Hugging Face causal LM.

``RoutedDecoder`` takes the place of the inner decoder only: generation, loss and head stay Hugging
Face's. It walks over the layers, asks the router at every routed unit which tokens execute it,
and threads the router's state through as tensors in and tensors out. Nothing is parked on modules,
so checkpointing, DDP and compilation see a pure function.

A token that skips an attention or a block still leaves its keys and values there, so that later
tokens read a complete cache and cached decoding equals the full forward; those projections count
as used. Evicting blocks (``methods/core/routing/eviction.py``) leave nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import Cache, DynamicCache, PreTrainedConfig, PreTrainedModel, StaticCache
from transformers.modeling_outputs import BaseModelOutputWithPast

from methods.core.model.backbone import attention, attention_norm, decoder, ffn, ffn_norm
from methods.core.routing.attend import attend, attend_static
from methods.core.routing.caches import EvictingCache, StaticEvictingCache
from methods.core.routing.decisions import Decider, Decision
from methods.core.routing.dispatch import Branch, dispatch, scaled
from methods.core.routing.eviction import IMPLEMENTATION, evicting_block
from methods.core.routing.inputs import (
    HiddenStates,
    Mask,
    Places,
    attention_masks,
    check_call,
    tokens_of,
)
from methods.core.routing.recompute import recompute
from methods.core.routing.router import (
    Change,
    Context,
    Kind,
    Router,
    Unit,
    without_narrowing,
)
from methods.kernels.choose import MOST_ROWS, available, one_token
from methods.kernels.decode import decode_fused
from methods.kernels.grouped import dispatch_fused, kernels_run
from methods.kernels.weights import branches

# Units that are a layer.
_WHOLE: tuple[Kind, ...] = ("block", "evicting")


@dataclass
class RoutedOutput(BaseModelOutputWithPast):
    """The decoder's output with the decisions behind it.

    ``executed`` (B, U, T) bool; ``soft`` (B, U, T), the gates that penalties see, or None.
    """

    executed: Tensor | None = None
    soft: Tensor | None = None


class Call(NamedTuple):
    """What the layers of one forward pass share.

    ``static`` as in :meth:`RoutedDecoder.forward`; ``valid`` (B, T) is False on pads;
    ``arguments`` go to every layer.
    """

    decider: Decider
    static: bool
    valid: Tensor
    arguments: dict[str, Any]


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
        self._units = _by_layer(router.units)

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Mask = None,
        position_ids: Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        gates: Tensor | None = None,
        context: Context | None = None,
        static: bool = False,
        output_hidden_states: Places = None,
        return_dict: bool | None = None,
        **kwargs: Any,
    ) -> RoutedOutput | tuple[Any, ...]:
        """Run the layers.

        Args:
            input_ids: Token ids (B, T).
            attention_mask: 1 on tokens, 0 on pads, (B, past + T); or made for attention, as
                ``generate`` does for a static cache.
            position_ids: Positions (B, T); a reset starts a new packed document.
            past_key_values: Cache of earlier tokens.
            inputs_embeds: Embeddings (B, T, D) in place of ``input_ids``.
            use_cache: Whether to return a cache; None: as the config says, but not in training.
            gates: Forced decisions (B, U, T) bool. The router still runs, its decision and its
                scale are replaced (scale 1).
            context: Training progress and noise.
            static: Launches, shapes and addresses depend on no decision, and nothing reaches the
                host: a CUDA graph may hold the call. For one new token of each sequence, without
                gradients.
            output_hidden_states: ``asked`` of :class:`methods.core.routing.inputs.HiddenStates`.
            return_dict: False: a tuple of what is not None.
            kwargs: Handed to every layer.

        Returns:
            Hidden states (B, T, D) and the decisions (B, U, T).

        Raises:
            ValueError: Attention weights are asked for, or ``input_ids`` and ``inputs_embeds`` are
                both given, or neither.
        """
        check_call(self.config, input_ids, inputs_embeds, kwargs)
        hidden = self.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds
        if use_cache is None:
            use_cache = bool(self.config.use_cache) and not (self.training or self._recomputes)
        cached = use_cache or static or past_key_values is not None
        cache = self._cache(past_key_values, static, attention_mask) if cached else None
        if position_ids is None:
            past = 0 if cache is None else cache.get_seq_length()
            position_ids = (torch.arange(hidden.shape[1], device=hidden.device) + past)[None]
        masks = attention_masks(self.config, hidden, attention_mask, cache, position_ids)
        shared = kwargs | {
            "position_embeddings": self.rotary_emb(hidden, position_ids=position_ids),
            "position_ids": position_ids,
            "past_key_values": cache,
            "use_cache": use_cache,
        }
        tokens = tokens_of(input_ids, attention_mask, position_ids, hidden)
        at = context or Context()
        state = self.router.start(tokens, hidden, at)
        forced = None if gates is None else gates.unbind(dim=1)
        decider = Decider(self.router, at, forced, self._recomputes)
        call = Call(decider, static, tokens.valid, shared)
        decisions: dict[int, Decision] = {}
        seen = HiddenStates(self.config, output_hidden_states, len(self.layers) + 1)
        for number, layer in enumerate(self.layers):
            seen.add(hidden)
            arguments = {"attention_mask": masks[number], **shared}
            if number not in self._units:
                hidden = self._run(layer, hidden, **arguments)
                continue
            here = call._replace(arguments=arguments)
            run = partial(recompute, self._routed_layer) if self._recomputes else self._routed_layer
            hidden, decided, state = run(state, number, hidden, here)
            decisions |= decided
        hidden = self.norm(hidden)
        seen.add(hidden)
        output = _output(hidden, cache, seen, decisions)
        return output.to_tuple() if return_dict is False else output

    def _apply(self, fn: Change, recurse: bool = True) -> RoutedDecoder:
        """Convert and move; rotary frequencies stay in 32 bits, as transformers loads them."""
        for child in self.children() if recurse else ():
            child._apply(without_narrowing(fn) if child is self.rotary_emb else fn)
        super()._apply(fn, recurse=False)
        return self

    def _cache(self, given: Cache | None, static: bool, mask: Mask) -> Cache:
        """The cache of this call; evicting layers need one that keeps columns."""
        if not self.router.evicts:
            return DynamicCache(config=self.config) if given is None else given
        known = StaticEvictingCache if static else EvictingCache
        if isinstance(given, known):
            return given
        # Masks for attention have a column of each place in the cache that came with them.
        fixed = isinstance(given, StaticCache) and isinstance(mask, Tensor) and mask.dim() == 4
        if static or fixed or (given is not None and given.get_seq_length()):
            raise ValueError(
                f"evicting layers go on with {known.__name__}, not with {type(given).__name__}"
            )
        return EvictingCache(self.config)

    @property
    def _recomputes(self) -> bool:
        return self.checkpointing and torch.is_grad_enabled()

    def _run(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call a layer, under activation checkpointing if that is on and gradients flow."""
        if self._recomputes:
            return checkpoint(function, *args, use_reentrant=False, **kwargs)
        return function(*args, **kwargs)

    def _routed_layer(
        self, state: Any, number: int, hidden: Tensor, call: Call
    ) -> tuple[Tensor, dict[int, Decision], Any]:
        """One layer with routed units; the residual stream, decisions by unit, the state."""
        layer, units = self.layers[number], self._units[number]
        decided: dict[int, Decision] = {}

        def decide(kind: Kind, post_attention: Tensor | None) -> Decision:
            nonlocal state
            index = units[kind]
            decided[index], state = call.decider.decide(index, hidden, post_attention, state)
            return decided[index]

        if one_token(hidden) and not call.static and "evicting" not in units:
            after = _one_token_layer(layer, hidden, units, decide, self.router, call)
            return after, decided, state
        whole = next((decide(kind, None) for kind in _WHOLE if kind in units), None)
        reading = decide("attention", None) if "attention" in units else None
        if whole is not None and "evicting" in units and not call.static:
            after = evicting_block(layer, number, hidden, call.valid, whole, call.arguments)
            return after, decided, state
        mixed = _mixed(layer, hidden, whole or reading, call)
        if reading is not None:
            mixed = _gated(mixed, reading)
        middle = hidden + mixed
        rows = ffn_norm(layer)(middle)
        if whole is not None:
            inside = Decision(whole.execute, dense=whole.dense)
            update = _with_ffn(mixed, rows, inside, ffn(layer), None, call.static)
            return hidden + _gated(update, whole), decided, state
        if "ffn" not in units:
            return middle + ffn(layer)(rows), decided, state
        decision, alternative = decide("ffn", middle), self.router.alternative(units["ffn"])
        after = _with_ffn(middle, rows, decision, ffn(layer), alternative, call.static)
        return after, decided, state


def _output(
    hidden: Tensor, cache: Cache | None, seen: HiddenStates, decisions: Mapping[int, Decision]
) -> RoutedOutput:
    """What a pass gives; ``hidden`` (B, T, D) are normed, ``decisions`` by unit."""
    ordered = [decisions[index] for index in range(len(decisions))]
    soft = [d.soft for d in ordered if d.soft is not None]
    return RoutedOutput(
        last_hidden_state=hidden,
        past_key_values=cache,
        hidden_states=seen.states(),
        executed=torch.stack([d.execute for d in ordered], dim=1),
        soft=torch.stack(soft, dim=1) if soft else None,
    )


def _one_token_layer(
    layer: nn.Module,
    hidden: Tensor,
    units: Mapping[Kind, int],
    decide: Callable[[Kind, Tensor | None], Decision],
    router: Router,
    call: Call,
) -> Tensor:
    """A layer for one token: the host looks at each decision and runs what it says, alone."""
    whole = decide("block", None) if "block" in units else None
    reading = decide("attention", None) if "attention" in units else whole
    heads, normed = attention(layer), attention_norm(layer)(hidden)
    if reading is None or _runs(reading):
        mixed = heads(hidden_states=normed, **call.arguments)[0]
    else:
        # Leaves the token's key and value; the update is zero.
        attend(heads, normed, reading.execute, call.arguments)
        mixed = None
    if whole is not None:
        if mixed is None:
            return hidden
        return _onto(hidden, mixed + ffn(layer)(ffn_norm(layer)(hidden + mixed)), whole)
    middle = hidden if mixed is None else _onto(hidden, mixed, reading)
    decision = decide("ffn", middle) if "ffn" in units else None
    branch: Branch | None = ffn(layer)
    if decision is not None and not _runs(decision):
        branch = router.alternative(units["ffn"])
    return middle if branch is None else _onto(middle, branch(ffn_norm(layer)(middle)), decision)


def _runs(decision: Decision) -> bool:
    """Whether the unit of one token runs."""
    return decision.dense or bool(decision.execute)


def _onto(base: Tensor, update: Tensor, decision: Decision | None) -> Tensor:
    """The stream behind a unit of one token that ran."""
    return base + (update if decision is None else scaled(update, decision.scale))


def _by_layer(units: Sequence[Unit]) -> dict[int, dict[Kind, int]]:
    """Layer -> kind -> place in ``units``.

    Raises:
        ValueError: A layer carries units that overlap, or the first layer evicts.
    """
    table: dict[int, dict[Kind, int]] = {}
    for index, unit in enumerate(units):
        others = table.setdefault(unit.layer, {})
        if unit.kind in others or (others and {unit.kind, *others} != {"attention", "ffn"}):
            raise ValueError(f"layer {unit.layer} carries more than one routed unit")
        if unit.kind == "evicting" and unit.layer == 0:
            raise ValueError("the first layer cannot evict: its cache counts the tokens")
        others[unit.kind] = index
    return table


def _mixed(layer: nn.Module, hidden: Tensor, decision: Decision | None, call: Call) -> Tensor:
    """The update of attention (B, T, D), computed for the tokens that read."""
    heads, normed = attention(layer), attention_norm(layer)(hidden)
    if decision is None or decision.dense:
        update: Tensor = heads(hidden_states=normed, **call.arguments)[0]
        return update
    form = attend_static if call.static else attend
    return form(heads, normed, decision.execute, call.arguments)


def _with_ffn(
    base: Tensor,
    rows: Tensor,
    decision: Decision,
    network: nn.Module,
    alternative: Branch | None,
    static: bool,
) -> Tensor:
    """``base`` (B, T, D) and the update of a routed FFN, by kernels where they run.

    Args:
        base: What the update is added to.
        rows: The FFN's inputs (B, T, D).
        decision: Execute, scale (B, T).
        network: The FFN.
        alternative: What runs where it is skipped.
        static: Whether nothing may be asked of a decision.

    Raises:
        ValueError: ``static``, and kernels do not know the branches.
    """
    known = None
    if (static or available(rows)) and not decision.dense:
        known = branches(network, alternative)
    if static and known is None:
        raise ValueError("a static step takes gates of 0 and 1 on plain SwiGLU networks")
    if known is None or not (static or kernels_run(rows, known.ffn)):
        return base + _gated(rows, decision, network, alternative)
    flat, execute = rows.reshape(-1, rows.shape[-1]), decision.execute.reshape(-1)
    scale = None if decision.scale is None else decision.scale.reshape(-1)
    form = dispatch_fused if torch.is_grad_enabled() or len(flat) > MOST_ROWS else decode_fused
    return form(flat, execute, *known, scale, base.reshape(flat.shape)).reshape(base.shape)


def _gated(
    values: Tensor,
    decision: Decision,
    branch: Branch | None = None,
    alternative: Branch | None = None,
) -> Tensor:
    """The update of a unit: ``branch`` of the values (None: the values) where it executes.

    Args:
        values: Inputs of the branch (B, T, D).
        decision: Execute, scale (B, T).
        branch: Maps (n, D) to (n, D).
        alternative: What runs where the unit is skipped; None: the update is zero there.
    """
    if branch is not None and not decision.dense:
        scale = None if decision.scale is None else decision.scale.reshape(-1)
        rows, execute = values.reshape(-1, values.shape[-1]), decision.execute.reshape(-1)
        return dispatch(rows, execute, branch, alternative, scale).reshape(values.shape)
    if branch is not None:
        values = branch(values)
    if not decision.dense:
        values = torch.where(decision.execute[..., None], values, 0)
    return scaled(values, decision.scale)


def route(model: PreTrainedModel, router: Router) -> PreTrainedModel:
    """Put a routed decoder into a causal LM, in place; the router moves to the model's device."""
    if not any(parameter.is_meta for parameter in router.parameters()):
        nn.Module.to(router, model.device)
    model.model = RoutedDecoder(decoder(model), router)
    if router.evicts:
        model.config._attn_implementation = IMPLEMENTATION
    return model


def birthplace(model: nn.Module) -> torch.device:
    """Where a router is made: on the CPU, whose generators a GPU lacks, or nowhere (meta)."""
    meta = any(parameter.is_meta for parameter in model.parameters())
    return torch.device("meta" if meta else "cpu")


def router_of(model: nn.Module) -> Router | None:
    """The router of a routed model, None for any other."""
    inner = getattr(model, "model", None)
    return inner.router if isinstance(inner, RoutedDecoder) else None
