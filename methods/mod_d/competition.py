"""Which tokens win, the k of a document with the largest weights; the capacity for a budget."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy

from methods.api import Tokens


class Taus(NamedTuple):
    """Per token, of its document: the k-th largest weight and k, each (B, T)."""

    value: Tensor
    k: Tensor


def membership(soft: Tensor, executed: Tensor, share: Tensor) -> Tensor:
    """Sum over positions of the cross-entropy between gates and who won, the mean over units.

    Args:
        soft: Gates (B, U, T) in (0, 1): one half where the weight is the answer tokens' tau.
        executed: Who ran (B, U, T).
        share: Weight of each position (B, T).
    """
    losses = binary_cross_entropy(soft, executed.to(soft.dtype), reduction="none")
    return (losses.mean(dim=1) * share).sum()


def upper_quantile(weights: Tensor, shares: Tensor, running: float) -> Tensor:
    """The weight that tokens holding ``running`` of all shares exceed, a scalar.

    Args:
        weights: (B, T) float32.
        shares: What each token counts (B, T), not negative.
        running: In (0, 1).
    """
    falling, order = weights.flatten().sort(descending=True, stable=True)
    held = shares.flatten()[order].double().cumsum(dim=0)
    return falling[torch.searchsorted(held, running * held[-1]).clamp(max=len(held) - 1)]


def kth_largest(weights: Tensor, tokens: Tokens, capacity: float, among: Tensor) -> Taus:
    """Tau and k = max(1, floor(capacity * n)) of the document that each token belongs to.

    Args:
        weights: (B, T) float32.
        tokens: Documents begin where positions are 0.
        capacity: C in (0, 1].
        among: Tokens that compete (B, T); no pads.
    """
    batch, length = weights.shape
    starts = (tokens.positions == 0) & tokens.valid
    # The others form a last document of their own, behind all.
    document = torch.where(among, starts.cumsum(dim=1), length + 1)
    falling = weights.argsort(dim=1, descending=True, stable=True)
    order = falling.gather(1, document.gather(1, falling).argsort(dim=1, stable=True))
    sizes = torch.zeros(batch, length + 2, dtype=torch.int64, device=weights.device)
    sizes.scatter_add_(1, document, torch.ones_like(document))
    firsts = sizes.cumsum(dim=1) - sizes
    # In double precision 0.29 * 100 falls below 29.
    k = (capacity * sizes.double() + 1e-9).floor().long().clamp(min=1)
    place = (firsts + k - 1).clamp(max=length - 1)
    values = weights.gather(1, order).gather(1, place)
    return Taus(values.gather(1, document), k.gather(1, document))


def capacity_for(share: float, lengths: Sequence[int], compare: str) -> float:
    """The capacity at which documents of these lengths run ``share`` of their tokens, by bisection.

    The comparison costs one token per document, which matters where documents are short.
    """
    sizes = torch.tensor(lengths, dtype=torch.float64)

    def ran(capacity: float) -> float:
        k = (capacity * sizes + 1e-9).floor().clamp(min=1)
        if compare == "strict":
            k = torch.where(k > 1, k - 1, k)
        return float(k.sum() / sizes.sum())

    low, high = 0.0, 1.0
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if ran(middle) < share else (low, middle)
    return high
