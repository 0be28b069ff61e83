"""Random generators, one per purpose: a new purpose does not change the numbers of another."""

from __future__ import annotations

import hashlib

import torch


def seed_for(seed: int, purpose: str) -> int:
    """A 63-bit seed derived from the run's seed and what the numbers are for."""
    digest = hashlib.sha256(f"{seed}/{purpose}".encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1


def generator(seed: int, purpose: str) -> torch.Generator:
    """A CPU generator for one purpose of a run."""
    return torch.Generator().manual_seed(seed_for(seed, purpose))
