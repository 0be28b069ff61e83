"""Which tokens win, the k of a document with the largest weights; the capacity for a budget."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy

from methods.api import Tokens


class Taus(NamedTuple):
    """For each token (B, T): the k-th largest weight of its document, and k."""

    value: Tensor
    k: Tensor


def membership(soft: Tensor, executed: Tensor, share: Tensor) -> Tensor:
    """Sum over positions of the cross-entropy between gates and winners, a mean over units.

    Args:
        soft: Gates (B, U, T) in (0, 1): one half if the weight equals the answer tokens' tau.
        executed: Which tokens won (B, U, T).
        share: Weight of each position (B, T).
    """
    losses = binary_cross_entropy(soft, executed.to(soft.dtype), reduction="none")
    return (losses.mean(dim=1) * share).sum()


def upper_quantile(weights: Tensor, counts: Tensor, share: float) -> Tensor:
    """The weight, a scalar, that is exceeded by ``share`` of the tokens.

    Args:
        weights: (B, T) float32.
        counts: How much each token counts (B, T), not negative.
        share: In (0, 1).
    """
    falling, order = weights.flatten().sort(descending=True, stable=True)
    sums = counts.flatten()[order].double().cumsum(dim=0)
    return falling[torch.searchsorted(sums, share * sums[-1]).clamp(max=len(sums) - 1)]


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
    # Tokens that do not compete form one more document, after all others.
    document = torch.where(among, starts.cumsum(dim=1), length + 1)
    falling = weights.argsort(dim=1, descending=True, stable=True)
    order = falling.gather(1, document.gather(1, falling).argsort(dim=1, stable=True))
    sizes = torch.zeros(batch, length + 2, dtype=torch.int64, device=weights.device)
    sizes.scatter_add_(1, document, torch.ones_like(document))
    firsts = sizes.cumsum(dim=1) - sizes
    # In double precision 0.29 * 100 is below 29.
    k = (capacity * sizes.double() + 1e-9).floor().long().clamp(min=1)
    position = (firsts + k - 1).clamp(max=length - 1)
    values = weights.gather(1, order).gather(1, position)
    return Taus(values.gather(1, document), k.gather(1, document))


def capacity_for(share: float, lengths: Sequence[int], compare: str) -> float:
    """The capacity at which documents of these lengths run ``share`` of their tokens.

    Found by bisection. The strict comparison skips one more token per document, which matters for
    short documents.
    """
    sizes = torch.tensor(lengths, dtype=torch.float64)

    def share_that_runs(capacity: float) -> float:
        k = (capacity * sizes + 1e-9).floor().clamp(min=1)
        if compare == "strict":
            k = torch.where(k > 1, k - 1, k)
        return float(k.sum() / sizes.sum())

    low, high = 0.0, 1.0
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if share_that_runs(middle) < share else (low, middle)
    return high
