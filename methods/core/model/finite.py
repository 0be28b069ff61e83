"""Checks against NaN and infinity, which would be sorted, rounded and reported like numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import chain
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
    """Refuse NaN and infinity in the parameters and buffers of a model.

    Raises:
        ValueError: One has them; the message names the tensor and ``where`` it is from.
    """
    for name, tensor in chain(model.named_parameters(), model.named_buffers()):
        check_finite(tensor.detach(), f"{where}: tensor '{name}'")


def check_buffers(model: nn.Module, where: object) -> None:
    """Refuse buffers that a file of weights would hold: a skip counts parameters.

    Raises:
        ValueError: There is one; the message names it.
    """
    parameters = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    for name in model.state_dict().keys() - parameters:
        raise ValueError(f"{where}: buffer '{name}' holds weights; make it a parameter")
