"""HeRo's memory as the paper writes it: running sums over depth."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from methods.kernels.hero.formulas import EPS


class RecurrentMemory(NamedTuple):
    """The running sums behind ``written`` blocks with decays ``rho`` (R,).

    ``sums`` (B, T, M, M + 1) are S, [key feature, value feature], and zeta as its last column.
    """

    rho: Tensor
    written: int = 0
    sums: Tensor | None = None

    def read(self, query: Tensor, decays: Tensor) -> Tensor:
        """As :meth:`Memory.read`; the decays are already in the sums."""
        assert self.sums is not None
        read = torch.einsum("...k,...kv->...v", query, self.sums)
        return read[..., :-1] / (read[..., -1:] + EPS)

    def write(self, key: Tensor, value: Tensor) -> RecurrentMemory:
        """As :meth:`Memory.write`."""
        sums = key[..., :, None] * value[..., None, :]
        if self.sums is not None:
            sums = self.rho[self.written] * self.sums + sums
        return self._replace(written=self.written + 1, sums=sums)
