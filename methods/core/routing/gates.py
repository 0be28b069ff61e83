"""Binary gates that are sampled in training: Gumbel-softmax with a straight-through gradient.

Each gate has two logits, z_execute and z_skip, with Gumbel noise on both. Only their difference
matters, and the difference of two Gumbel variables is logistic. So with d = z_execute - z_skip and
logistic noise G:

    y = softmax((z + noise) / T)_execute = sigmoid((d + G) / T),  execute where y >= 1/2
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from methods.core.routing.hashing import uniform_hash
from methods.core.routing.router import Context, Tokens


def logistic_noise(units: int, tokens: Tokens, at: Context) -> Tensor | None:
    """Noise of a training pass (B, U, T) in float32; None outside training."""
    if at.generator is None:
        return None
    batch, length = tokens.valid.shape
    # Drawn on the CPU, so that a run on a GPU gets the same noise.
    uniform = torch.rand(batch, units, length, generator=at.generator, dtype=torch.float64)
    return _logit(uniform).to(tokens.valid.device, non_blocking=True)


def hashed_noise(seed: int, units: int, tokens: Tokens) -> Tensor:
    """Noise (B, U, T) from a hash of each token: the same with and without a cache.

    Raises:
        ValueError: The tokens have no ids.
    """
    if tokens.ids is None:
        raise ValueError("sampled gates hash token ids, so they need input_ids")
    return _logit(uniform_hash(seed, range(units), tokens.positions, tokens.ids))


def sample_gates(difference: Tensor, noise: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """Decisions (B, T) of a training pass, and y (B, T).

    Args:
        difference: d = z_execute - z_skip (B, T), float32.
        noise: Logistic noise G (B, T).
        temperature: T; it changes y, but no decision.
    """
    return difference + noise >= 0, torch.sigmoid((difference + noise) / temperature)


def decide_gates(difference: Tensor, threshold: float) -> Tensor:
    """Decisions outside training: sigmoid(difference) >= threshold; a tie executes.

    Args:
        difference: Logit of running minus that of skipping, of any shape.
        threshold: In (0, 1).

    Returns:
        Whether to run, in the shape of ``difference``.
    """
    return difference >= math.log(threshold / (1 - threshold))


def _logit(uniform: Tensor) -> Tensor:
    uniform = uniform.clamp(1e-9, 1 - 1e-9)
    return (uniform.log() - torch.log1p(-uniform)).float()
