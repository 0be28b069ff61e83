"""The rule by which parameters learn: weight decay, learning rate and its schedule."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from torch import nn

from methods.core.training.params import TrainingParams


def parameter_groups(
    trained: Mapping[str, nn.Parameter], params: TrainingParams
) -> list[dict[str, Any]]:
    """Parameters by weight decay and by ``share``, their factor on the learning rate."""
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    for name, parameter in trained.items():
        decay = params.weight_decay if parameter.dim() > 1 else 0.0
        share = params.lora_rate if "lora_" in name else 1.0
        groups.setdefault((decay, share), []).append(parameter)
    return [
        {"params": members, "weight_decay": decay, "share": share}
        for (decay, share), members in groups.items()
    ]


def learning_rate(update: int, params: TrainingParams) -> float:
    """Learning rate of an update: linear warm-up, then the schedule.

    Cosine and linear go down to 0, constant stays.
    """
    warm = max(1, round(params.warmup * params.updates))
    if update < warm:
        return params.learning_rate * (update + 1) / warm
    share = (update - warm) / max(1, params.updates - warm)
    factor = {"cosine": 0.5 * (1 + math.cos(math.pi * share)), "linear": 1 - share}
    return params.learning_rate * factor.get(params.schedule, 1.0)
