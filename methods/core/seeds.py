"""Random generators, one per purpose: a new purpose does not change the numbers of another."""

from __future__ import annotations

import hashlib

import torch
from torch import nn


def seed_for(seed: int, purpose: str) -> int:
    """A 63-bit seed derived from the run's seed and what the numbers are for."""
    digest = hashlib.sha256(f"{seed}/{purpose}".encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1


def generator(seed: int, purpose: str) -> torch.Generator:
    """A CPU generator for one purpose of a run."""
    return torch.Generator().manual_seed(seed_for(seed, purpose))


def draw_linear(linear: nn.Linear, generator: torch.Generator | None) -> None:
    """Draw torch's own initial values of a linear layer; on meta nothing is drawn.

    Args:
        linear: Gets a new weight, and a bias if it has one.
        generator: None: torch's own.
    """
    if linear.weight.is_meta:
        return
    nn.init.kaiming_uniform_(linear.weight, a=5**0.5, generator=generator)
    if linear.bias is not None:
        bound = linear.in_features**-0.5
        nn.init.uniform_(linear.bias, -bound, bound, generator=generator)
