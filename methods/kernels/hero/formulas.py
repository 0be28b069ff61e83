"""Widths and constants of HeRo's formulas, and two functions that all their forms share."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import elu

TEMPERATURE = 0.9
PATH, PATH_HIDDEN, PATH_OUT, HIDDEN_OUT = 6, 64, 16, 48
STATE = HIDDEN_OUT + PATH_OUT
# Added to every denominator.
EPS = 1e-6
Variant = Literal[
    "full", "no-history", "no-memread", "no-aux", "no-position", "same-size", "difference"
]


def phi(x: Tensor) -> Tensor:
    """ELU + 1, elementwise: positive, in float32 0 below about -17."""
    return elu(x) + 1.0


def decays(rho: Tensor) -> Tensor:
    """(R, R) of rho (R,): for i < j, [j, i] is the product of rho over the FFNs between."""
    ffns = torch.arange(len(rho), device=rho.device)
    later = ffns[:, None] > ffns
    products = torch.where(later, rho[:, None], 1.0).cumprod(0)
    return torch.cat([torch.ones_like(products[:1]), products[:-1]])
