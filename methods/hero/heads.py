"""The small networks of HeRo's router: variants, widths, and parameters by the formulas' names."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from methods.kernels.hero.formulas import HIDDEN_OUT, PATH, PATH_HIDDEN, PATH_OUT, STATE, Variant

# Variants without a history; TWINS have a second local head in its place.
LOCAL: tuple[Variant, ...] = ("no-history", "same-size", "difference")
TWINS: tuple[Variant, ...] = ("same-size", "difference")


class Sizes(NamedTuple):
    """Widths: ``hidden`` D, ``head`` of both heads and W_hd, ``memory`` M, ``adapter``."""

    hidden: int
    head: int
    memory: int
    adapter: int


def mlp(inputs: int, hidden: int, outputs: int) -> nn.Sequential:
    """Two linear maps with SiLU between them."""
    return nn.Sequential(nn.Linear(inputs, hidden), nn.SiLU(), nn.Linear(hidden, outputs))


def mlp_parameters(network: nn.Sequential, prefix: str) -> dict[str, Tensor]:
    """The parameters of a network of :func:`mlp`, by the formulas' names with this prefix."""
    first, last = network[0], network[2]
    assert isinstance(first, nn.Linear)
    assert isinstance(last, nn.Linear)
    return {
        f"{prefix}_W1": first.weight,
        f"{prefix}_b1": first.bias,
        f"{prefix}_W2": last.weight,
        f"{prefix}_b2": last.bias,
    }


def cosine(product: Tensor, size: Tensor, other: Tensor, eps: Tensor) -> Tensor:
    """The cosine of two vectors from their product and their lengths; eps in the denominator."""
    return product / torch.addcmul(eps, size, other)


def history_parameters(sizes: Sizes, routed: int) -> int:
    """How many parameters the history adds to the local head."""
    width, head, memory = sizes.hidden, sizes.head, sizes.memory
    encoder = width + width * head + head * HIDDEN_OUT
    path = PATH * PATH_HIDDEN + PATH_HIDDEN + PATH_HIDDEN * PATH_OUT + PATH_OUT
    reading = 3 * STATE * memory + STATE * STATE + STATE * memory
    history = (STATE + memory + 1) * head + head + head + 1
    return encoder + path + reading + history + routed
