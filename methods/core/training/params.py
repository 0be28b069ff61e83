"""Hyper-parameters of the training loop."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from methods.base import check_least


@dataclass(frozen=True)
class TrainingParams:
    """Hyper-parameters that every trained row shares; defaults are HeRo's on Llama-3.1-8B.

    Args:
        updates: Optimizer steps. 7,339 are one epoch of Tulu-3 at 128 examples per update.
        batch_tokens: Tokens per update, all processes together: 128 examples of about 650.
        learning_rate: Peak, reached after the warm-up.
        lora_rate: Learning rate of LoRA's matrices, relative to that of other parameters.
        schedule: How the learning rate changes after the warm-up.
        warmup: Share of the updates in which the learning rate rises.
        weight_decay: Of matrices, those of one row too; biases, norms and scalars never decay.
        clip: Largest gradient norm.
        row_length: Tokens per packed row; 0: one document per row.
        micro_tokens: Most positions of a forward pass, pads included; 0: an update is one pass.
        prompt_weight: Loss weight of predictions inside prompts, relative to answers. In a
            conversation all words count as a prompt except the assistant's.
        checkpointing: Whether layers are recomputed in the backward pass.
        snapshot_minutes: Time between snapshots; a signal and the last update also write one.
    """

    updates: int = 7339
    batch_tokens: int = 83_200
    learning_rate: float = 1e-4
    lora_rate: float = 1.0
    schedule: Literal["cosine", "linear", "constant"] = "cosine"
    warmup: float = 0.03
    weight_decay: float = 0.01
    clip: float = 1.0
    row_length: int = 2048
    micro_tokens: int = 0
    prompt_weight: float = 1.0
    checkpointing: bool = False
    snapshot_minutes: float = 10.0

    def __post_init__(self) -> None:
        check_least(self, 1, "updates", "batch_tokens")
        check_least(self, 0, "weight_decay", "row_length", "micro_tokens", "snapshot_minutes")
        for name in ("learning_rate", "lora_rate", "clip"):
            if not getattr(self, name) > 0:
                raise ValueError(f"param '{name}' is {getattr(self, name)}, must be positive")
        for name in ("warmup", "prompt_weight"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"param '{name}' is {getattr(self, name)}, must be from 0 to 1")
