"""HeRo's memory over depth: what earlier routed blocks wrote, read by similarity.

Per token, with phi(x) = ELU(x) + 1 and rho_j in (0, 1):

    read   c_j = (phi(q_j)^T S_{j-1}) / (phi(q_j)^T zeta_{j-1} + eps)
    write  S_j = rho_j S_{j-1} + phi(k_j) v_j^T,   zeta_j = rho_j zeta_{j-1} + phi(k_j)

Unrolled, this is attention over the at most R - 1 earlier blocks with decayed, positive weights:

    w_ji = (prod_{r=i+1}^{j-1} rho_r) phi(q_j).phi(k_i),   c_j = sum_i w_ji v_i / (sum_i w_ji + eps)

``ListMemory`` computes the second form: 128 numbers per token and block instead of 4,160, and a
quarter of the multiplications. ``StackedMemory`` reads all entries at once, for a GPU, where an
operation more costs more than a copy. The tests hold both to the first form, to rounding.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import elu

EPS = 1e-6


def phi(x: Tensor) -> Tensor:
    """ELU + 1, elementwise, strictly positive."""
    return elu(x) + 1.0


class ListMemory(NamedTuple):
    """Written entries, oldest first.

    ``keys`` hold phi(k_i) (B, T, M), ``values`` v_i (B, T, M), ``decays`` the product of rho since
    the write (scalars); an entry is not decayed by its own write.
    """

    keys: tuple[Tensor, ...] = ()
    values: tuple[Tensor, ...] = ()
    decays: tuple[Tensor, ...] = ()

    def read(self, query: Tensor) -> Tensor:
        """The context c (B, T, M) for a query (B, T, M); exactly zero before the first write."""
        if not self.keys:
            return torch.zeros_like(query)
        similar = phi(query)
        above, below = torch.zeros_like(query), query.new_full((*query.shape[:-1], 1), EPS)
        for key, value, decay in zip(*self, strict=True):
            weight = decay * (similar * key).sum(-1, keepdim=True)
            above = above + weight * value
            below = below + weight
        return above / below

    def write(self, key: Tensor, value: Tensor, rho: Tensor) -> ListMemory:
        """The memory after block j wrote key and value (B, T, M) with its decay ``rho``."""
        decays = (*(decay * rho for decay in self.decays), torch.ones_like(rho))
        return ListMemory((*self.keys, phi(key)), (*self.values, value), decays)


class StackedMemory(NamedTuple):
    """The same; ``decays`` are one tensor (n,) of as many as there are entries, at first None."""

    keys: tuple[Tensor, ...] = ()
    values: tuple[Tensor, ...] = ()
    decays: Tensor | None = None

    def read(self, query: Tensor) -> Tensor:
        """As of ``ListMemory``; some ten operations, however many entries there are."""
        if self.decays is None:
            return torch.zeros_like(query)
        alike = (phi(query) * torch.stack(self.keys)).sum(-1, keepdim=True)
        weights = self.decays.view(-1, *[1] * query.dim()) * alike
        return (weights * torch.stack(self.values)).sum(0) / (weights.sum(0) + EPS)

    def write(self, key: Tensor, value: Tensor, rho: Tensor) -> StackedMemory:
        """As of ``ListMemory``."""
        newest = rho.new_ones(1)
        decays = newest if self.decays is None else torch.cat([self.decays * rho, newest])
        return StackedMemory((*self.keys, phi(key)), (*self.values, value), decays)
