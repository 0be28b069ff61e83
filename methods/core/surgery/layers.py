"""Changes of a model's structure, which static methods share."""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from methods.core.model.backbone import (
    attention,
    attention_kinds,
    attention_norm,
    count,
    decoder,
    ffn,
    ffn_norm,
    layers,
    norm_behind,
    projections,
    put_sublayer,
    widths,
)
from methods.core.model.families import BY_LAYER, Sublayer

MIXED_KINDS = "its layers attend in different ways (layer_types), which their cache slots follow"

# The two maps of a layer whose outputs are added to the hidden states; heads and channels are their
# input columns.
WRITERS = ("o_proj", "down_proj")


def remove_layers(model: PreTrainedModel, removed: Iterable[int]) -> PreTrainedModel:
    """Delete decoder layers in place; config and cache slots are adapted.

    Args:
        model: Causal LM with L layers.
        removed: 0-based layers to delete, in any order.

    Returns:
        The same model; its layers are numbered from 0 again.

    Raises:
        ValueError: A layer does not exist, or no layer would stay.
    """
    stack = layers(model)
    numbers = _existing(removed, len(stack))
    if len(numbers) == len(stack):
        raise ValueError(f"removing all {len(stack)} layers leaves no model")
    others = [index for index in range(len(stack)) if index not in numbers]
    return replace_layers(model, [stack[index] for index in others], others)


def replace_layers(
    model: PreTrainedModel, stack: Sequence[nn.Module], origins: Sequence[int]
) -> PreTrainedModel:
    """Give a model other decoder layers in place; config and cache slots are adapted.

    Args:
        model: Causal LM.
        stack: Its new layers; each has ``self_attn``, ``NoAttention`` where it does not attend.
        origins: For each new layer the present layer whose place it takes, ascending.
    """
    _renumber(stack)
    decoder(model).layers = nn.ModuleList(stack)
    config = model.config
    config.num_hidden_layers = len(stack)
    for name in BY_LAYER:
        if values := getattr(config, name, None):
            setattr(config, name, [values[index] for index in origins])
    return model


class NoAttention(nn.Module):
    """In place of an attention: it adds nothing and leaves no keys and values."""

    def forward(self, hidden_states: Tensor, **kwargs: Any) -> tuple[Tensor, None]:
        """Zeros (B, T, D), and no attention weights.

        Raises:
            ValueError: Attention weights are asked for.
        """
        if kwargs.get("output_attentions"):
            raise ValueError("a layer without attention has no attention weights")
        return torch.zeros_like(hidden_states), None


class NoFfn(nn.Module):
    """In place of a feed-forward network: it adds nothing."""

    def forward(self, hidden: Tensor) -> Tensor:
        """Zeros (B, T, D)."""
        return torch.zeros_like(hidden)


def sublayer_size(layer: nn.Module, kind: Sublayer) -> int:
    """Parameters of the attention or the feed-forward network of a layer, with its norms."""
    behind = norm_behind(layer, kind)
    if kind == "attention":
        return count(attention(layer), attention_norm(layer), behind)
    return count(ffn(layer), ffn_norm(layer), behind)


def empty_sublayer(layer: nn.Module, kind: Sublayer) -> None:
    """Remove attention or feed-forward network from a layer, with its norms, in place."""
    put_sublayer(layer, kind, NoAttention() if kind == "attention" else NoFfn())


def remove_sublayers(
    model: PreTrainedModel, attentions: Iterable[int], ffns: Iterable[int]
) -> PreTrainedModel:
    """Delete attentions and feed-forward networks with their norms in place; all layers stay.

    Only :func:`methods.load_model` can read the saved folder, as no config can say which layers
    lack what.

    Args:
        model: Causal LM with L layers.
        attentions: 0-based layers that lose their attention, in any order.
        ffns: 0-based layers that lose their feed-forward network.

    Returns:
        The same model; the remaining attentions use the first slots of a cache.

    Raises:
        ValueError: A layer does not exist, or an attention is to go and layers attend in different
            ways.
    """
    stack = layers(model)
    removed: dict[Sublayer, set[int]] = {
        "attention": _existing(attentions, len(stack)),
        "ffn": _existing(ffns, len(stack)),
    }
    if removed["attention"] and len(set(attention_kinds(model.config))) > 1:
        raise ValueError(f"no attention can be removed: {MIXED_KINDS}")
    for kind, numbers in removed.items():
        for number in numbers:
            empty_sublayer(stack[number], kind)
    _renumber(stack)
    return model


def _existing(numbers: Iterable[int], total: int) -> set[int]:
    """Numbers of layers, each once.

    Raises:
        ValueError: One does not exist.
    """
    distinct = set(numbers)
    unknown = sorted(distinct - set(range(total)))
    if unknown:
        raise ValueError(f"layers {unknown} do not exist (the model has {total})")
    return distinct


def _renumber(stack: Iterable[nn.Module]) -> None:
    """Number the cache slots of the attentions of a stack from 0 on.

    With gaps a number could be too large for the cache, or slot 0, which says how long the cache
    is, could stay empty.
    """
    attending = [a for a in map(attention, stack) if not isinstance(a, NoAttention)]
    for slot, heads in enumerate(attending):
        heads.layer_idx = slot  # type: ignore[assignment]


@torch.no_grad()
def merge_layers(first: nn.Module, others: Sequence[nn.Module], merge: str) -> nn.Module:
    """One layer in place of m + 1 consecutive ones; its seven projections are merged (LaCo).

    Norms are those of the first layer; biases are merged as matrices are. The layers do not change;
    the new layer shares with them the tensors that are the same.

    Args:
        first: The first of the layers.
        others: The m >= 1 layers after it.
        merge: ``"reference"``: the weights of the last layer. ``"rdsc"``: weight + sum over others
            of (their weight - weight), added up in float32.
    """
    shared = [*first.parameters(), attention(first).config]
    merged = copy.deepcopy(first, {id(part): part for part in shared})
    table = [projections(layer).values() for layer in (merged, first, *others)]
    for target, base, *rest in zip(*table, strict=True):
        for name, tensor in base.named_parameters():
            parts = [module.get_parameter(name) for module in rest]
            whole = parts[-1] if merge == "reference" else nn.Parameter(_collapse(tensor, parts))
            setattr(target, name, whole)
    return merged


def _collapse(base: Tensor, parts: Sequence[Tensor]) -> Tensor:
    """The sum base + (part - base) + ..., exact for one part and for parts equal to the base."""
    total = parts[0].float()
    for part in parts[1:]:
        total = total + (part.float() - base.float())
    return total.to(base.dtype)


def narrow(
    model: PreTrainedModel,
    dropped_heads: Sequence[Collection[int]],
    dropped_channels: Sequence[Collection[int]],
) -> PreTrainedModel:
    """Remove key/value heads with their query heads, and FFN channels, in place.

    A config has one width for all layers. It is adapted if all layers still have the same width.
    Otherwise it keeps the dense widths, and only :func:`methods.load_model` can read the saved
    folder.

    Args:
        model: Causal LM with L layers.
        dropped_heads: L collections of 0-based key/value heads, in any order; empty for a layer
            that stays whole.
        dropped_channels: L collections of 0-based FFN channels.

    Returns:
        The same model.

    Raises:
        ValueError: A head or channel does not exist, a layer would keep none, or there are more or
            fewer collections than layers.
    """
    total = len(layers(model))
    for what, dropped in (("heads", dropped_heads), ("channels", dropped_channels)):
        if len(dropped) != total:
            raise ValueError(f"dropped {what} are given for {len(dropped)} of {total} layers")
    for layer, heads, channels in zip(layers(model), dropped_heads, dropped_channels, strict=True):
        _narrow_layer(layer, heads, channels)
    _update_widths(model)
    return model


def narrow_reason(model: PreTrainedModel) -> str | None:
    """Why heads cannot be removed, or None."""
    for layer in layers(model):
        norm, size = getattr(attention(layer), "q_norm", None), widths(layer)
        if norm is not None and count(norm) != size.head:
            return "one norm covers the queries of all heads, so no head can go without the others"
    return None


def head_and_channel_sizes(layer: nn.Module) -> tuple[int, int]:
    """Parameters of a key/value head with its query heads, and of an FFN channel."""
    size, maps = widths(layer), projections(layer)
    cost = {
        name: linear.out_features
        if name in WRITERS
        else linear.in_features + (linear.bias is not None)
        for name, linear in maps.items()
    }
    group = size.query_heads // size.key_value_heads
    rows = group * (cost["q_proj"] + cost["o_proj"]) + cost["k_proj"] + cost["v_proj"]
    return size.head * rows, cost["gate_proj"] + cost["up_proj"] + cost["down_proj"]


def add_output_biases(model: PreTrainedModel) -> PreTrainedModel:
    """Give the outputs of attention and FFN in every layer a bias (D,) of zeros, in place.

    A map that has a bias keeps it. No config can say this, so only :func:`methods.load_model` can
    read the saved folder. The biases count as parameters of the model and reduce ``skip``.
    """
    for linear in missing_biases(model):
        linear.bias = nn.Parameter(linear.weight.new_zeros(linear.out_features))
    return model


def missing_biases(model: PreTrainedModel) -> list[nn.Linear]:
    """The output maps of attentions and FFNs that have no bias."""
    writers = [projections(layer)[name] for layer in layers(model) for name in WRITERS]
    return [linear for linear in writers if linear.bias is None]


def _narrow_layer(layer: nn.Module, heads: Collection[int], channels: Collection[int]) -> None:
    size, maps = widths(layer), projections(layer)
    group = size.query_heads // size.key_value_heads
    key_heads = _survivors(size.key_value_heads, heads, "key/value heads")
    # repeat_kv repeats each head in place, so head j serves the query heads from j * group on.
    query_heads = _members(key_heads, group)
    remaining_channels = _survivors(size.channels, channels, "FFN channels")
    outputs = {
        "q_proj": _members(query_heads, size.head),
        "k_proj": _members(key_heads, size.head),
        "v_proj": _members(key_heads, size.head),
        "gate_proj": remaining_channels,
        "up_proj": remaining_channels,
    }
    for name, rows in outputs.items():
        _keep_outputs(maps[name], rows)
    _keep_inputs(maps["o_proj"], _members(query_heads, size.head))
    _keep_inputs(maps["down_proj"], remaining_channels)


def _survivors(total: int, dropped: Collection[int], what: str) -> list[int]:
    """The numbers below ``total`` that are not dropped.

    Raises:
        ValueError: A dropped one does not exist, or all are dropped.
    """
    unknown = sorted(set(dropped) - set(range(total)))
    if unknown:
        raise ValueError(f"{what} {unknown} do not exist (the layer has {total})")
    if len(set(dropped)) == total:
        raise ValueError(f"removing all {total} {what} of a layer leaves it nothing to compute")
    return sorted(set(range(total)) - set(dropped))


def _members(groups: Iterable[int], size: int) -> list[int]:
    """The numbers of the members of these groups; each group has ``size`` members."""
    return [group * size + member for group in groups for member in range(size)]


def _keep_outputs(linear: nn.Linear, places: Sequence[int]) -> None:
    _keep(linear, "weight", 0, places)
    if linear.bias is not None:
        _keep(linear, "bias", 0, places)
    linear.out_features = len(places)


def _keep_inputs(linear: nn.Linear, places: Sequence[int]) -> None:
    _keep(linear, "weight", 1, places)
    linear.in_features = len(places)


def _keep(linear: nn.Linear, name: str, dimension: int, places: Sequence[int]) -> None:
    dense = linear.get_parameter(name)
    if len(places) < dense.shape[dimension]:
        index = torch.tensor(places, device=dense.device)
        setattr(linear, name, nn.Parameter(dense.detach().index_select(dimension, index)))


def _update_widths(model: PreTrainedModel) -> None:
    """Write the widths into the config, if all layers share them and its class allows them."""
    shared = {widths(layer) for layer in layers(model)}
    size, config = min(shared), model.config
    # Llama's config refuses a number of heads that does not divide the model width.
    if len(shared) == 1 and config.hidden_size % size.query_heads == 0:
        config.num_attention_heads = size.query_heads
        config.num_key_value_heads = size.key_value_heads
        config.head_dim = size.head
        config.intermediate_size = size.channels
