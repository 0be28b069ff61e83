"""Changes of a model's structure, once and for every static method."""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterable, Sequence
from typing import Any, Literal

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
    projections,
    put_sublayer,
    widths,
)

Sublayer = Literal["attention", "ffn"]
MIXED_KINDS = "its layers attend in different ways (layer_types), which their cache slots follow"

# The two maps of a layer that write to the residual stream: heads and channels are their columns.
WRITERS = ("o_proj", "down_proj")


def remove_layers(model: PreTrainedModel, removed: Iterable[int]) -> PreTrainedModel:
    """Delete decoder layers in place; config and cache slots follow.

    Args:
        model: Causal LM with L layers.
        removed: 0-based layers to delete, in any order.

    Returns:
        The same model with the surviving layers renumbered from 0.

    Raises:
        ValueError: A layer does not exist, or none would be left.
    """
    stack = layers(model)
    gone = _existing(removed, len(stack))
    if len(gone) == len(stack):
        raise ValueError(f"removing all {len(stack)} layers leaves no model")
    kept = [index for index in range(len(stack)) if index not in gone]
    return replace_layers(model, [stack[index] for index in kept], kept)


def replace_layers(
    model: PreTrainedModel, stack: Sequence[nn.Module], origins: Sequence[int]
) -> PreTrainedModel:
    """Give a model other decoder layers in place; config and cache slots follow.

    Args:
        model: Causal LM.
        stack: Its new layers.
        origins: The present layer whose place each of them takes, ascending.
    """
    _renumber(stack)
    decoder(model).layers = nn.ModuleList(stack)
    config = model.config
    config.num_hidden_layers = len(stack)
    if getattr(config, "layer_types", None):
        config.layer_types = [config.layer_types[index] for index in origins]
    return model


class NoAttention(nn.Module):
    """In place of an attention: it adds nothing and leaves no keys and values."""

    def forward(self, hidden_states: Tensor, **kwargs: Any) -> tuple[Tensor, None]:
        """Zeros (B, T, D), and no attention weights.

        Raises:
            ValueError: These are asked for.
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
    """Parameters of the attention or the feed-forward network of a layer with its norm."""
    if kind == "attention":
        return count(attention(layer), attention_norm(layer))
    return count(ffn(layer), ffn_norm(layer))


def empty_sublayer(layer: nn.Module, kind: Sublayer) -> None:
    """Take attention or feed-forward network out of a layer, in place; its norm goes with it."""
    put_sublayer(layer, kind, NoAttention() if kind == "attention" else NoFfn())


def remove_sublayers(
    model: PreTrainedModel, attentions: Iterable[int], ffns: Iterable[int]
) -> PreTrainedModel:
    """Delete attentions and feed-forward networks with their norms in place; all layers stay.

    Only :func:`methods.load_model` reads the saved folder: no config says which layers lack what.

    Args:
        model: Causal LM with L layers.
        attentions: 0-based layers that lose their attention, in any order.
        ffns: Those that lose their feed-forward network.

    Returns:
        The same model; the attentions that are left take the first slots of a cache.

    Raises:
        ValueError: A layer does not exist, or attention goes where layers attend in different ways.
    """
    stack = layers(model)
    gone: dict[Sublayer, set[int]] = {
        "attention": _existing(attentions, len(stack)),
        "ffn": _existing(ffns, len(stack)),
    }
    if gone["attention"] and len(set(attention_kinds(model.config))) > 1:
        raise ValueError(f"no attention can be removed: {MIXED_KINDS}")
    for kind, numbers in gone.items():
        for number in numbers:
            empty_sublayer(stack[number], kind)
    _renumber(stack)
    return model


def _existing(numbers: Iterable[int], total: int) -> set[int]:
    """Numbers of layers, each once.

    Raises:
        ValueError: One does not exist.
    """
    found = set(numbers)
    unknown = sorted(found - set(range(total)))
    if unknown:
        raise ValueError(f"layers {unknown} do not exist (the model has {total})")
    return found


def _renumber(stack: Iterable[nn.Module]) -> None:
    """Give the attentions of a stack the slots of a cache from 0 on.

    A gap would leave an empty slot or raise IndexError; the first slot says how long the cache is.
    """
    attending = [a for a in map(attention, stack) if not isinstance(a, NoAttention)]
    for slot, heads in enumerate(attending):
        heads.layer_idx = slot  # type: ignore[assignment]


@torch.no_grad()
def merge_layers(first: nn.Module, others: Sequence[nn.Module], merge: str) -> nn.Module:
    """One layer in place of m + 1 consecutive ones, its seven projections merged (LaCo).

    Norms are those of the first layer; biases are treated as the matrices beside them. Tensors
    that do not change are shared with the given layers, which stay as they are.

    Args:
        first: The layer that stays in place.
        others: The m >= 1 layers behind it.
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
    """Remove key/value heads with the query heads that read them, and FFN channels, in place.

    A config has one width for all layers: it follows where they still share one, and keeps the
    dense widths where they do not (then only :func:`methods.load_model` reads the saved folder).

    Args:
        model: Causal LM with L layers.
        dropped_heads: L collections of 0-based key/value heads, in any order; empty for a layer
            that stays whole.
        dropped_channels: L collections of 0-based FFN channels.

    Returns:
        The same model.

    Raises:
        ValueError: A head or channel does not exist, or a layer would keep none.
    """
    for layer, heads, channels in zip(layers(model), dropped_heads, dropped_channels, strict=True):
        _narrow_layer(layer, heads, channels)
    _update_widths(model)
    return model


def unit_sizes(layer: nn.Module) -> tuple[int, int]:
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
    """Give attention and FFN of every layer a bias (D,) on what they write, zeros, in place.

    A map that has one keeps it. No config says so: only :func:`methods.load_model` reads the saved
    folder. The biases count as parameters of the model, so that ``skip`` is charged with them.
    """
    for linear in missing_biases(model):
        linear.bias = nn.Parameter(linear.weight.new_zeros(linear.out_features))
    return model


def missing_biases(model: PreTrainedModel) -> list[nn.Linear]:
    """The maps that write to the stream without a bias."""
    writers = [projections(layer)[name] for layer in layers(model) for name in WRITERS]
    return [linear for linear in writers if linear.bias is None]


def _narrow_layer(layer: nn.Module, heads: Collection[int], channels: Collection[int]) -> None:
    size, maps = widths(layer), projections(layer)
    group = size.query_heads // size.key_value_heads
    kept = _survivors(size.key_value_heads, heads, "key/value heads")
    # repeat_kv repeats each head in place: head j serves the query heads from j * group on.
    queries = _spread(kept, group)
    survivors = _survivors(size.channels, channels, "FFN channels")
    outputs = {
        "q_proj": _spread(queries, size.head),
        "k_proj": _spread(kept, size.head),
        "v_proj": _spread(kept, size.head),
        "gate_proj": survivors,
        "up_proj": survivors,
    }
    for name, rows in outputs.items():
        _keep_outputs(maps[name], rows)
    _keep_inputs(maps["o_proj"], _spread(queries, size.head))
    _keep_inputs(maps["down_proj"], survivors)


def _survivors(total: int, dropped: Collection[int], what: str) -> list[int]:
    unknown = sorted(set(dropped) - set(range(total)))
    if unknown:
        raise ValueError(f"{what} {unknown} do not exist (the layer has {total})")
    if len(set(dropped)) == total:
        raise ValueError(f"removing all {total} {what} of a layer leaves it nothing to compute")
    return sorted(set(range(total)) - set(dropped))


def _spread(units: Iterable[int], size: int) -> list[int]:
    """The members of units that hold ``size`` members each."""
    return [unit * size + member for unit in units for member in range(size)]


def _keep_outputs(linear: nn.Linear, kept: Sequence[int]) -> None:
    _keep(linear, "weight", 0, kept)
    if linear.bias is not None:
        _keep(linear, "bias", 0, kept)
    linear.out_features = len(kept)


def _keep_inputs(linear: nn.Linear, kept: Sequence[int]) -> None:
    _keep(linear, "weight", 1, kept)
    linear.in_features = len(kept)


def _keep(linear: nn.Linear, name: str, dimension: int, kept: Sequence[int]) -> None:
    dense = linear.get_parameter(name)
    if len(kept) < dense.shape[dimension]:
        index = torch.tensor(kept, device=dense.device)
        setattr(linear, name, nn.Parameter(dense.detach().index_select(dimension, index)))


def _update_widths(model: PreTrainedModel) -> None:
    """Let the config say the widths, where all layers share them and its class allows them."""
    shared = {widths(layer) for layer in layers(model)}
    size, config = min(shared), model.config
    # Llama's config refuses a number of heads that does not divide the model width.
    if len(shared) == 1 and config.hidden_size % size.query_heads == 0:
        config.num_attention_heads = size.query_heads
        config.num_key_value_heads = size.key_value_heads
        config.head_dim = size.head
        config.intermediate_size = size.channels
