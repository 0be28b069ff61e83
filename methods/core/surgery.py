"""Changes of a model's structure, once and for every static method."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from methods.core.backbone import attention, decoder, layers, projections


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
    gone = set(removed)
    stack = layers(model)
    unknown = sorted(gone - set(range(len(stack))))
    if unknown:
        raise ValueError(f"layers {unknown} do not exist (the model has {len(stack)})")
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
    # A cache is indexed by layer_idx: a gap would leave an empty slot or raise IndexError.
    for index, layer in enumerate(stack):
        attention(layer).layer_idx = index  # type: ignore[assignment]
    decoder(model).layers = nn.ModuleList(stack)
    config = model.config
    config.num_hidden_layers = len(stack)
    if getattr(config, "layer_types", None):
        config.layer_types = [config.layer_types[index] for index in origins]
    return model


@contextmanager
def layer_skipped(model: PreTrainedModel, index: int) -> Iterator[None]:
    """Within the context the model runs as if it lacked one layer; nothing is copied."""
    layer = layers(model)[index]
    layer.forward = lambda hidden, **_: hidden
    try:
        yield
    finally:
        del layer.forward


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
    columns = zip(*map(projections, (merged, first, *others)), strict=True)
    for target, base, *rest in columns:
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
