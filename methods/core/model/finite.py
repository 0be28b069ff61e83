"""Finite or refused: a NaN that enters would be sorted, rounded and reported like a number."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn


def check_finite(value: Any, name: str) -> None:
    """Hold a number, a tensor, or what mappings and sequences hold of them, against NaN.

    Args:
        value: Anything; what is no number passes.
        name: What to call it.

    Raises:
        ValueError: Names the first that is NaN or infinite.
    """
    if isinstance(value, Mapping):
        for key, part in value.items():
            check_finite(part, f"{name}, {key}")
    elif isinstance(value, (list, tuple)):
        for place, part in enumerate(value):
            check_finite(part, f"{name}, {place}")
    elif isinstance(value, Tensor):
        if value.is_floating_point() and not value.isfinite().all():
            raise ValueError(f"{name} holds NaN or infinity")
    elif isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{name} is {value}")


def check_parameters(model: nn.Module, where: object) -> None:
    """Hold every parameter against NaN and infinity.

    Raises:
        ValueError: Names the tensor and ``where`` it was read.
    """
    for name, parameter in model.named_parameters():
        check_finite(parameter.detach(), f"{where}: tensor '{name}'")
