"""HeRo's memory as the paper writes it: running sums over depth."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from methods.hero.memory import EPS, phi


class RecurrentMemory(NamedTuple):
    """The running sums: ``matrix`` S (B, T, M, M), [key feature, value feature]; ``mass`` zeta."""

    matrix: Tensor | None = None
    mass: Tensor | None = None

    def read(self, query: Tensor) -> Tensor:
        """As :meth:`ListMemory.read`."""
        if self.matrix is None or self.mass is None:
            return torch.zeros_like(query)
        similar = phi(query)
        above = torch.einsum("...k,...kv->...v", similar, self.matrix)
        return above / ((similar * self.mass).sum(-1, keepdim=True) + EPS)

    def write(self, key: Tensor, value: Tensor, rho: Tensor) -> RecurrentMemory:
        """As :meth:`ListMemory.write`."""
        outer = phi(key)[..., :, None] * value[..., None, :]
        if self.matrix is None or self.mass is None:
            return RecurrentMemory(outer, phi(key))
        return RecurrentMemory(rho * self.matrix + outer, rho * self.mass + phi(key))
