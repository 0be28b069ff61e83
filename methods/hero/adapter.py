"""The bottleneck adapters that run where a token skips a feed-forward network."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from methods.api import Router, Unit, draw_linear
from methods.hero.heads import Sizes
from methods.kernels.operands import AdapterWeights


class Adapter(nn.Module):
    """W2 SiLU(W1 u), without biases.

    W1 (width, D) starts as Kaiming, W2 (D, width) as zero: at first a skip plainly removes the FFN
    and adds no noise to the residual stream.

    Args:
        hidden_size: D.
        width: Of the bottleneck; 896 at D = 4096 in the paper.
        generator: Of the initial values.
    """

    def __init__(self, hidden_size: int, width: int, generator: torch.Generator | None) -> None:
        super().__init__()
        self.down = nn.Linear(hidden_size, width, bias=False)
        self.up = nn.Linear(width, hidden_size, bias=False)
        draw_linear(self.down, generator)
        nn.init.zeros_(self.up.weight)

    def forward(self, rows: Tensor) -> Tensor:
        """Normed states (n, D) to updates (n, D), in the dtype of the states."""
        # On a 16-bit backbone the weights stay float32, for the optimizer.
        return self.matrices().update(rows)

    def matrices(self) -> AdapterWeights:
        """W1 and W2, for kernels."""
        return AdapterWeights(self.down.weight, self.up.weight)


class AdaptedRouter(Router):
    """A router whose FFNs have adapters; none if their width is 0."""

    def add_adapters(
        self, units: list[Unit], sizes: Sizes, generator: torch.Generator | None
    ) -> None:
        """Make the adapters of ``units``, R feed-forward networks."""
        adapted = units if sizes.adapter else []
        self.adapters = nn.ModuleList(
            Adapter(sizes.hidden, sizes.adapter, generator) for _ in adapted
        )

    def alternative(self, index: int) -> Adapter | None:
        """The adapter of FFN ``index``."""
        if not len(self.adapters):
            return None
        adapter = self.adapters[index]
        assert isinstance(adapter, Adapter)
        return adapter
