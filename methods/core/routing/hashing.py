"""Random numbers that follow from a token alone: the same in any batch, with and without cache."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def uniform_hash(seed: int, lanes: Sequence[int], positions: Tensor, ids: Tensor) -> Tensor:
    """Uniform numbers in [0, 1) that depend on nothing but their arguments.

    Args:
        seed: Of the run; taken modulo 2^64.
        lanes: Numbers of U independent draws per token, such as numbers of layers or units.
        positions: (B, T) integers.
        ids: Token ids (B, T) integers.

    Returns:
        (B, U, T) float64: the upper 53 bits of chained rounds of the splitmix64 finaliser.
    """
    positions, ids = positions.long(), ids.long()
    mixed = torch.full_like(ids, _signed(seed % 2**64))[:, None]
    # Filled on the device: a CUDA graph must not copy from the host.
    units = torch.cat([ids.new_full((1, 1), lane) for lane in lanes])
    for part in (units, positions[:, None], ids[:, None]):
        mixed = _splitmix(mixed ^ _splitmix(part))
    return _shift(mixed, 11).to(torch.float64) * 2.0**-53


def _splitmix(x: Tensor) -> Tensor:
    """The splitmix64 finaliser on int64; products wrap as unsigned ones do."""
    x = x + _signed(0x9E3779B97F4A7C15)
    x = (x ^ _shift(x, 30)) * _signed(0xBF58476D1CE4E5B9)
    x = (x ^ _shift(x, 27)) * _signed(0x94D049BB133111EB)
    return x ^ _shift(x, 31)


def _shift(x: Tensor, bits: int) -> Tensor:
    """Logical right shift of int64."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value
