"""Low-rank adapters on the backbone's projections, through peft."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import nn
from transformers import PreTrainedModel

from methods.core.model.backbone import layers as decoder_layers
from methods.core.seeds import seed_for

# How far the trained parameters may lie from those that are asked for, as a share of them.
TOLERANCE = 0.02


class Ranks(NamedTuple):
    """Rank ``low`` for every matrix, but ``low + 1`` for those in ``wider``, by name."""

    low: int
    wider: frozenset[str] = frozenset()


def nearest_ranks(sizes: Mapping[str, int], parameters: int) -> Ranks:
    """The ranks r or r + 1 of matrices whose LoRA has a number of parameters, or nearly so.

    The last matrices have r + 1; so many of them that the total is nearest to ``parameters``.

    Args:
        sizes: Name of each matrix, in its order -> parameters of LoRA of rank 1, as
            :func:`lora_sizes` gives them.
        parameters: To train, over all matrices.

    Raises:
        ValueError: The nearest total is further away than ``TOLERANCE``.
    """
    each = sum(sizes.values())
    if not each:
        raise ValueError("the layers that LoRA trains have none of its matrices (param 'modules')")
    low, names = max(1, parameters // each), list(sizes)
    best, total, wider = 0, low * each, low * each
    for number, name in enumerate(reversed(names), 1):
        wider += sizes[name]
        if abs(wider - parameters) < abs(total - parameters):
            best, total = number, wider
    if abs(total - parameters) > TOLERANCE * parameters:
        raise ValueError(
            f"param 'parameters' is {parameters}; LoRA on these {len(names)} matrices trains "
            f"{total} at the nearest, and {each} at the least"
        )
    return Ranks(low, frozenset(names[len(names) - best :]))


def lora_sizes(
    model: PreTrainedModel, projections: Sequence[str], layers: Sequence[int]
) -> dict[str, int]:
    """Name of each matrix that gets LoRA -> parameters of LoRA of rank 1: inputs + outputs.

    By layer, the first one first, then in the order of ``projections``; layers may differ in width,
    and may lack projections.
    """
    stack, sizes = decoder_layers(model), dict[str, int]()
    for number in sorted(layers):
        maps = {name.rpartition(".")[2]: (name, m) for name, m in stack[number].named_modules()}
        for name, matrix in (maps[each] for each in projections if each in maps):
            assert isinstance(matrix, nn.Linear)
            size = matrix.in_features + matrix.out_features
            sizes[f"model.layers.{number}.{name}"] = size
    return sizes


def add_lora(
    model: PreTrainedModel,
    projections: Sequence[str],
    layers: Sequence[int],
    rank: int | Ranks,
    alpha: int | None,
    seed: int,
) -> PreTrainedModel:
    """Add (alpha / rank) B A x to the projections W x, in place; W stays frozen.

    A (rank, in) starts Kaiming-uniform and B (out, rank) as zero, so the model starts unchanged.

    Args:
        model: Causal LM.
        projections: Names such as ``q_proj``.
        layers: 0-based layers that get adapters.
        rank: Of A and B; where ranks differ, the lower one sets the scale of all.
        alpha: Scale; None: the rank, which scales by one.
        seed: Of the initial values.

    Raises:
        ValueError: ``rank`` is below 1.
    """
    # Imported here because only rows with LoRA need peft.
    from peft import LoraConfig, inject_adapter_in_model

    low, wider = rank if isinstance(rank, Ranks) else Ranks(rank)
    if low < 1:
        raise ValueError(f"param 'rank' is {low}, must be at least 1")
    alpha = low if alpha is None else alpha
    config = LoraConfig(
        r=low, lora_alpha=alpha, target_modules=list(projections),
        layers_to_transform=list(layers), lora_dropout=0.0,
        # peft divides each alpha by the rank of its matrix.
        rank_pattern=dict.fromkeys(sorted(wider), low + 1),
        alpha_pattern=dict.fromkeys(sorted(wider), alpha * (low + 1) / low),
    )  # fmt: skip
    model.requires_grad_(False)
    # peft draws from the global generator, whose state must be the same afterwards.
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed_for(seed, "lora"))
        # Adapters of a model on the meta device stay there: no memory, no draws.
        empty = model.device.type == "meta"
        inject_adapter_in_model(config, model, low_cpu_mem_usage=empty)
    # On a 16-bit backbone adapters would have 16 bits, and small updates would be lost.
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.float()
    return model


def fold_lora(model: PreTrainedModel) -> None:
    """Put W + (alpha / rank) B A in place of every W with LoRA, so that decoding is faster."""
    from peft.tuners.lora import LoraLayer

    for name, module in list(model.named_modules()):
        if isinstance(module, LoraLayer):
            module.merge()
            model.set_submodule(name, module.get_base_layer())
