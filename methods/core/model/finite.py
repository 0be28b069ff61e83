"""Checks against NaN and infinity, which would be sorted, rounded and reported like numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn


def check_finite(value: Any, name: str) -> None:
    """Refuse NaN and infinity in a number, a tensor, or mappings and sequences of them.

    Args:
        value: Anything; a value that is no number passes.
        name: Its name, for the message.

    Raises:
        ValueError: A number is NaN or infinite; the message names the first one.
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
    """Refuse NaN and infinity in the parameters of a model.

    Raises:
        ValueError: A parameter has one; the message names the tensor and ``where`` it is from.
    """
    for name, parameter in model.named_parameters():
        check_finite(parameter.detach(), f"{where}: tensor '{name}'")
