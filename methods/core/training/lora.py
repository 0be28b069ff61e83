"""Low-rank adapters on the backbone's projections, through peft."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from transformers import PreTrainedModel

from methods.core.seeds import seed_for


def add_lora(
    model: PreTrainedModel,
    projections: Sequence[str],
    layers: Sequence[int],
    rank: int,
    alpha: int,
    seed: int,
) -> PreTrainedModel:
    """Add (alpha / rank) B A x to the projections W x, in place; W stays frozen.

    A (rank, in) starts Kaiming-uniform and B (out, rank) as zero, so the model starts unchanged.

    Args:
        model: Causal LM.
        projections: Names such as ``q_proj``.
        layers: 0-based layers that get adapters.
        rank: Of A and B.
        alpha: Scale; ``alpha = rank`` scales by one.
        seed: Of the initial values.

    Raises:
        ValueError: ``rank`` is below 1.
    """
    # Imported here because only rows with LoRA need peft.
    from peft import LoraConfig, inject_adapter_in_model

    if rank < 1:
        raise ValueError(f"param 'rank' is {rank}, must be at least 1")
    config = LoraConfig(
        r=rank, lora_alpha=alpha, target_modules=list(projections),
        layers_to_transform=list(layers), lora_dropout=0.0,
    )  # fmt: skip
    model.requires_grad_(False)
    # peft draws from the global generator, whose state must be the same afterwards.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed_for(seed, "lora"))
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
