"""Meeting a skip budget in training: the weight of the penalty follows the realised skip."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor


@dataclass
class Steering:
    """The penalty's weight alpha, fixed or steered.

    Steered: alpha_{n+1} = alpha_n + gain * (target_n - skip_n) * scale, a discrete integral
    controller. The target rises linearly from 0 to the budget over the first ``ramp`` of training,
    so that adapters learn while few tokens need them; alpha may turn negative, which reopens gates.

    Args:
        sizes: Share of the dense parameters in each unit (U,), float64.
        budget: Fraction to skip; None: alpha stays.
        alpha: Its first value.
        gain: Change of alpha per update and unit of error.
        ramp: Share of training until the target is the budget.
        limit: Largest absolute alpha.
    """

    sizes: Tensor
    budget: float | None
    alpha: float
    gain: float = 2e-3
    ramp: float = 0.5
    limit: float = 0.1
    smoothed: float = field(default=0.0)

    def observe(self, skip: float, progress: float) -> None:
        """Move alpha after an update that skipped ``skip`` of the parameters."""
        if self.budget is None:
            return
        before = self.smoothed
        self.smoothed += 0.1 * (skip - self.smoothed)
        target = self.budget * min(1.0, progress / self.ramp)
        # The proportional term answers the trend, so that the integral does not overshoot.
        change = self.gain * (target - self.smoothed) - 20 * self.gain * (self.smoothed - before)
        self.alpha = min(self.limit, max(-self.limit, self.alpha + change))

    def state(self) -> dict[str, Any]:
        """What a snapshot keeps."""
        return {"alpha": self.alpha, "smoothed": self.smoothed}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a snapshot."""
        self.alpha, self.smoothed = state["alpha"], state["smoothed"]


def unit_shares(parameters: list[int], total: int) -> Tensor:
    """Share of the dense parameters in each unit, (U,) float64."""
    return torch.tensor(parameters, dtype=torch.float64) / total
