"""Meeting a skip budget in training: targets, weights of penalties, and shared penalties."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from methods.core.routing.router import Unit

# First weight of a controlled penalty of HeRo's form: its paper's.
START = 1e-3


@dataclass
class Target:
    """A budget, corrected by what inference skips beside training.

    What trains is not what is scored: texts differ, and sampled gates differ from decided ones. So
    a few times the target is corrected by what the decisions of inference skip on probe texts;
    otherwise the threshold alone would have to bring the budget.

    Training is seen as y, a smoothed skip rate: of the gates before the threshold at first, of the
    decisions after ``ramp``, mixed linearly between. Decisions alone stay silent until gates cross
    the threshold, by when they may have saturated where no gradient reaches them.

    Args:
        budget: Fraction to skip.
        ramp: Share of training until decisions count alone.
        seen: y; None: nothing was observed.
        correction: By how much inference on probe texts skips more than training.
    """

    budget: float
    ramp: float = 0.5
    seen: float | None = None
    correction: float = 0.0

    @property
    def value(self) -> float:
        """The rate for training to aim at."""
        return self.budget - self.correction

    @property
    def scale(self) -> float:
        """Factor on a target in any measure that stands for the budget."""
        return 1 - self.correction / self.budget

    def share(self, progress: float) -> float:
        """How much of the ramp lies behind, for a progress of training in [0, 1]."""
        return min(1.0, progress / self.ramp)

    def observe(self, skip: float, soft_skip: float, progress: float) -> None:
        """Take note of an update.

        Args:
            skip: Share of the parameters that its decisions skipped.
            soft_skip: The same of its gates before the threshold.
            progress: Of training, in [0, 1].
        """
        share = self.share(progress)
        now = (1 - share) * soft_skip + share * skip
        last = now if self.seen is None else self.seen
        self.seen = last + 0.3 * (now - last)

    def correct(self, skip: float) -> None:
        """Take note of the share that inference skips on probe texts."""
        assert self.seen is not None
        self.correction = skip - self.seen

    def state(self) -> dict[str, Any]:
        """What a snapshot keeps."""
        return {"seen": self.seen, "correction": self.correction}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a snapshot."""
        self.seen, self.correction = state["seen"], state["correction"]


@dataclass
class FixedWeight:
    """A penalty's weight alpha that stays.

    Args:
        alpha: The weight.
        target: What the penalty itself aims at; None: nothing.
    """

    alpha: float
    target: Target | None = None

    def observe(self, skip: float, soft_skip: float, progress: float) -> None:
        """As :meth:`Target.observe`."""
        if self.target is not None:
            self.target.observe(skip, soft_skip, progress)

    def state(self) -> dict[str, Any]:
        """What a snapshot keeps."""
        return {} if self.target is None else self.target.state()

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a snapshot."""
        if self.target is not None:
            self.target.restore(state)


@dataclass
class Controller:
    """A penalty's weight alpha that brings the skip rate y of its target to the target's value.

    A discrete proportional-integral controller in its velocity form,

        alpha_{n+1} = alpha_n + integral * e_n + proportional * (e_n - e_{n-1})
        e_n = goal_n - y_n

    The goal rises linearly from the first y to the target's value over the target's ramp, so that
    adapters learn while few tokens need them. After the ramp alpha may go slightly negative, which
    reopens gates; during it the lower limit moves from 0 down to that. Untrained adapters let the
    loss open gates by itself, and a push on top of that can saturate all of them within twenty
    updates.

    Args:
        target: What is aimed at.
        alpha: First weight.
        integral: Change of alpha per update and unit of error.
        proportional: Change of alpha per unit of change of the error.
        limits: Lowest alpha after the ramp, and the highest.
        unit: Multiplies gains and limits, for penalties of another size than HeRo's.
        first: The first y; None: nothing was observed.
        error: The last e.
    """

    target: Target
    alpha: float
    integral: float = 2e-3
    proportional: float = 4e-2
    limits: tuple[float, float] = (-2e-3, 0.1)
    unit: float = 1.0
    first: float | None = None
    error: float | None = None

    def observe(self, skip: float, soft_skip: float, progress: float) -> None:
        """Move alpha after an update; arguments as of :meth:`Target.observe`."""
        self.target.observe(skip, soft_skip, progress)
        seen, share = self.target.seen, self.target.share(progress)
        assert seen is not None
        first = self.first = seen if self.first is None else self.first
        error = first + (self.target.value - first) * share - seen
        last = error if self.error is None else self.error
        change = self.integral * error + self.proportional * (error - last)
        self.error = error
        low, high = (self.unit * limit for limit in self.limits)
        self.alpha = min(high, max(share * low, self.alpha + self.unit * change))

    def state(self) -> dict[str, Any]:
        """What a snapshot keeps."""
        own = {"alpha": self.alpha, "first": self.first, "error": self.error}
        return own | self.target.state()

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a snapshot."""
        self.alpha, self.first, self.error = state["alpha"], state["first"], state["error"]
        self.target.restore(state)


Weight = FixedWeight | Controller


class Gates(NamedTuple):
    """What a penalty may read of a forward pass.

    ``soft`` (B, U, T) are the gates, in [0, 1] and with a gradient; ``executed`` (B, U, T) the
    decisions; ``counted`` (B, T) the weight of each position; ``progress`` that of training.
    """

    soft: Tensor
    executed: Tensor
    counted: Tensor
    progress: float


# A sum over positions.
Penalty = Callable[[Gates], Tensor]


class Term(NamedTuple):
    """What routing adds to the loss on positions of a kind: alpha times the mean penalty.

    Without a penalty rates are logged and nothing is added.
    """

    weight: Weight
    penalty: Penalty | None


def unit_shares(units: Sequence[Unit], total: int) -> Tensor:
    """Share of the ``total`` dense parameters in each unit, (U,) float64."""
    return torch.tensor([unit.parameters for unit in units], dtype=torch.float64) / total


def aim_of(skip: float, target: Target | None) -> float:
    """What to aim at for a fraction in a penalty's own measure: corrected as the budget is."""
    return skip if target is None else skip * target.scale


def mean_deviation(soft: Tensor, counted: Tensor, weights: Tensor, skip: float) -> Tensor:
    """|mean over counted positions of the skipped share - skip|, times their number.

    The mean is taken over all processes before the absolute value; micro-batches count one by one,
    weighted by their tokens.

    Args:
        soft: Gates (B, U, T), 0 or 1 with a soft gradient.
        counted: Weight of each position (B, T).
        weights: What skipping each unit counts (U,).
        skip: Fraction to skip, in the measure of the weights.
    """
    weights = weights.to(soft, non_blocking=True)[:, None]
    excess = (((1 - soft) * weights).sum(dim=1) - skip) * counted
    total = excess.detach().sum()
    if dist.is_initialized():
        dist.all_reduce(total)
    return excess.sum() * torch.sign(total)


def squared_use(soft: Tensor, counted: Tensor, units: int = 1) -> Tensor:
    """Sum over counted positions of (sum over routed blocks of the soft gate)^2.

    FlexiDepth's penalty, HeRo's as well.

    Args:
        soft: Gates (B, U, T) in (0, 1).
        counted: Weight of each position (B, T).
        units: Of a block, in turn; they hold the same gate.
    """
    return (soft[:, ::units].float().sum(dim=1).pow(2) * counted).sum()
