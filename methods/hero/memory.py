"""HeRo's memory over depth: what earlier routed FFNs wrote, read by similarity.

Per token, with phi(x) = ELU(x) + 1 and rho_j in (0, 1):

    read   c_j = (phi(q_j)^T S_{j-1}) / (phi(q_j)^T zeta_{j-1} + eps)
    write  S_j = rho_j S_{j-1} + phi(k_j) v_j^T,   zeta_j = rho_j zeta_{j-1} + phi(k_j)

Unrolled, this is attention over the at most R - 1 earlier FFNs with decayed, positive weights:

    w_ji = (prod_{r=i+1}^{j-1} rho_r) phi(q_j).phi(k_i),   c_j = sum_i w_ji v_i / (sum_i w_ji + eps)

``Memory`` computes the second form. It stores 129 numbers per token and FFN instead of 4,160,
multiplies a quarter as often, and takes the same number of operations for any number of entries.
Tests compare it with the first form.

This is the reference. Two others keep the same memory in buffers of their own, and tests compare
them with it: ``methods/hero/host.py`` (one token on a CPU) and ``methods/kernels/hero/`` (GPU).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from methods.kernels.hero.formulas import EPS


class Memory(NamedTuple):
    """Entries, oldest first: keys phi(k_i) (B, T, M), values [v_i ; 1] (B, T, M + 1)."""

    keys: tuple[Tensor, ...] = ()
    values: tuple[Tensor, ...] = ()

    def read(self, query: Tensor, decays: Tensor) -> Tensor:
        """The context c (B, T, M).

        Args:
            query: phi(q) (B, T, M).
            decays: The factor of each entry (n,), n at least 1.
        """
        alike = (query * torch.stack(self.keys)).sum(-1, keepdim=True)
        weights = alike * decays.view(-1, *[1] * query.dim())
        sums = (weights * torch.stack(self.values)).sum(0)
        return sums[..., :-1] / (sums[..., -1:] + EPS)

    def write(self, key: Tensor, value: Tensor) -> Memory:
        """The memory with one more entry: phi(k) (B, T, M) and [v ; 1] (B, T, M + 1)."""
        return Memory((*self.keys, key), (*self.values, value))
