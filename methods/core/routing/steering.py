"""Meeting a skip budget in training: the weight of the penalty follows the realised skip."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from methods.core.routing.router import Unit

# First weight of a steered penalty of HeRo's form: its paper's.
START = 1e-3


@dataclass
class Steering:
    """The penalty's weight alpha, fixed or steered.

    Steered: a discrete proportional-integral controller in its velocity form,

        alpha_{n+1} = alpha_n + integral * e_n + proportional * (e_n - e_{n-1})
        e_n = target_n - y_n

    y is a smoothed skip rate: of the gates before the threshold at first, of the decisions behind
    ``ramp``, mixed linearly between. Decisions alone stay silent until gates cross the threshold,
    by when they may have saturated where no gradient reaches them. The target rises linearly from
    the first y to the budget over ``ramp``, so that adapters learn while few tokens need them.
    Behind the ramp alpha may turn slightly negative, which reopens gates; its floor falls from 0
    along the ramp. Untrained adapters let the loss open gates by itself, and a push on top of that
    can saturate all of them within twenty updates.

    What trains is not what is scored: texts differ, and sampled gates differ from decided ones. So
    the target is corrected a few times by what the decisions of inference skip on probe texts;
    otherwise the threshold alone would have to bring the budget.

    Args:
        sizes: Share of the dense parameters in each unit (U,), float64.
        budget: Fraction to skip; None: alpha stays.
        alpha: Its first value.
        integral: Change of alpha per update and unit of error.
        proportional: Change of alpha per unit of change of the error.
        ramp: Share of training until the target is the budget.
        limits: Lowest alpha behind the ramp, and the highest.
        unit: Multiplies gains and limits, for penalties of another size than HeRo's.
    """

    sizes: Tensor
    budget: float | None
    alpha: float
    integral: float = 2e-3
    proportional: float = 4e-2
    ramp: float = 0.5
    limits: tuple[float, float] = (-2e-3, 0.1)
    unit: float = 1.0
    memory: dict[str, float] = field(default_factory=dict)

    @property
    def correction(self) -> float:
        """By how much inference on probe texts skips more than training."""
        return self.memory.get("correction", 0.0)

    @property
    def scale(self) -> float:
        """Factor on a target in any measure that stands for the budget."""
        return 1.0 if self.budget is None else 1 - self.correction / self.budget

    def correct(self, seen: float) -> None:
        """Take note of the share that inference skips on probe texts."""
        self.memory["correction"] = seen - self.memory["smoothed"]

    def observe(self, skip: float, soft_skip: float, progress: float) -> None:
        """Move alpha after an update.

        Args:
            skip: Share of the parameters that its decisions skipped.
            soft_skip: The same of its gates before the threshold.
            progress: Of training, in [0, 1].
        """
        if self.budget is None:
            return
        share = min(1.0, progress / self.ramp)
        seen = (1 - share) * soft_skip + share * skip
        first = self.memory.setdefault("first", seen)
        smoothed = self.memory.get("smoothed", seen)
        smoothed += 0.3 * (seen - smoothed)
        target = first + (self.budget - self.correction - first) * share
        error = target - smoothed
        change = self.integral * error + self.proportional * (
            error - self.memory.get("error", error)
        )
        self.memory |= {"smoothed": smoothed, "error": error}
        low, high = (self.unit * limit for limit in self.limits)
        self.alpha = min(high, max(share * low, self.alpha + self.unit * change))

    def state(self) -> dict[str, Any]:
        """What a snapshot keeps."""
        return {"alpha": self.alpha, "memory": self.memory}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a snapshot."""
        self.alpha, self.memory = state["alpha"], dict(state["memory"])


def unit_shares(units: Sequence[Unit], total: int) -> Tensor:
    """Share of the ``total`` dense parameters in each unit, (U,) float64."""
    return torch.tensor([unit.parameters for unit in units], dtype=torch.float64) / total


@dataclass(frozen=True)
class Aim:
    """A penalty with a target of its own: |mean over counted tokens of the skipped share - target|.

    The mean is taken over all processes before the absolute value; micro-batches count one by one,
    weighted by their tokens. Times a fixed weight it needs no steering.

    Args:
        weights: What skipping each unit counts (U,).
        target: Fraction to skip, in the measure of the weights.
        steering: Scales the target.
    """

    weights: Tensor
    target: float
    steering: Steering

    def __call__(self, soft: Tensor, executed: Tensor, counted: Tensor, progress: float) -> Tensor:
        """Sum over counted positions (B, T); gates (B, U, T), 0 or 1 with a soft gradient."""
        weights = self.weights.to(soft, non_blocking=True)[:, None]
        target = self.target * self.steering.scale
        excess = (((1 - soft) * weights).sum(dim=1) - target) * counted
        total = excess.detach().sum()
        if dist.is_initialized():
            dist.all_reduce(total)
        return excess.sum() * torch.sign(total)


def squared_use(
    soft: Tensor, executed: Tensor, counted: Tensor, progress: float, units: int = 1
) -> Tensor:
    """Sum over counted positions of (sum over routed blocks of the soft gate)^2.

    FlexiDepth's penalty, HeRo's as well.

    Args:
        soft: Gates (B, U, T) in (0, 1).
        executed: Decisions (B, U, T); they do not enter.
        counted: Positions that predict a token (B, T).
        progress: Of training; it does not enter.
        units: Of a block, in turn; they hold the same gate.
    """
    return (soft[:, ::units].float().sum(dim=1).pow(2) * counted).sum()


def steered_use(shares: Tensor, budget: float | None, alpha: float | None) -> Steering:
    """The steering of :func:`squared_use`.

    Args:
        shares: Of the dense parameters in each unit (U,).
        budget: Fraction to skip.
        alpha: Weight of the penalty; None: steered to the budget, where there is one.
    """
    return Steering(shares, budget, START) if alpha is None else Steering(shares, None, alpha)
