"""Changes of a model's structure, once and for every static method."""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn
from transformers import PreTrainedModel

from methods.core.backbone import attention, decoder, layers


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
    kept = [layer for index, layer in enumerate(stack) if index not in gone]
    # A cache is indexed by layer_idx: a gap would leave an empty slot or raise IndexError.
    for index, layer in enumerate(kept):
        attention(layer).layer_idx = index  # type: ignore[assignment]
    decoder(model).layers = nn.ModuleList(kept)
    config = model.config
    config.num_hidden_layers = len(kept)
    if getattr(config, "layer_types", None):
        config.layer_types = [t for i, t in enumerate(config.layer_types) if i not in gone]
    return model
