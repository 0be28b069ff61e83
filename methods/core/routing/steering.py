"""Meeting a budget in training: targets, weights of penalties, and penalties that rows share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from methods.core.routing.router import Unit

# The weight of HeRo's penalty in its paper; a controller starts from it.
START = 1e-3
# Of an update in the smoothed skip rate of training.
SHARE = 0.3
# The same in what inference is compared with, where positions of a kind are few.
STEADY_SHARE = 0.03


@dataclass
class Target:
    """The skip rate for training to aim at: the budget, corrected by what inference skips.

    Inference skips more or less than training: its texts differ, and its gates are not sampled. So
    a few times in training the target is corrected by the skip rate of inference on probe texts.
    Without that the threshold alone would have to bring the skip rate to the budget.

    The skip rate of training is measured by a smoothed value y. At first it is the rate of the
    gates before the threshold, after ``ramp`` that of the decisions, and between a linear mixture.
    Decisions alone would be of no use at first: they do not change until gates cross the threshold,
    and by then gates may be so close to 0 or 1 that no gradient reaches them. Gates with a
    straight-through gradient are decisions at once, and for them both rates are the same.

    The skip rate of inference is compared with a mean of the same kind, whose ``share`` may be
    smaller. Where an update has few positions of a kind, as of answer tokens, y is noisy: what it
    happens to be at a correction would go into the target, and stay there up to the next one.

    Args:
        budget: Fraction to skip.
        ramp: Share of training after which y follows decisions alone.
        share: Of an update in the mean that inference is compared with; in y it is ``SHARE``.
        rate: y; None before the first update.
        mean: What inference is compared with; None before the first update.
        correction: Skip rate of inference on probe texts, minus ``mean``.
    """

    budget: float
    ramp: float = 0.5
    share: float = SHARE
    rate: float | None = None
    mean: float | None = None
    correction: float = 0.0

    @property
    def value(self) -> float:
        """The rate for training to aim at."""
        return self.budget - self.correction

    @property
    def scale(self) -> float:
        """``value`` / ``budget``: corrects a target that is given in another measure."""
        return 1 - self.correction / self.budget

    def ramped(self, progress: float) -> float:
        """The finished share of the ramp, for a progress of training in [0, 1]."""
        return min(1.0, progress / self.ramp)

    def observe(self, skip: float, soft_skip: float, progress: float) -> None:
        """Take note of an update.

        Args:
            skip: Share of the parameters that decisions skipped.
            soft_skip: The same by the gates before the threshold.
            progress: Of training, in [0, 1].
        """
        ramped = self.ramped(progress)
        now = (1 - ramped) * soft_skip + ramped * skip
        last = now if self.rate is None else self.rate
        self.rate = last + SHARE * (now - last)
        last = now if self.mean is None else self.mean
        self.mean = last + self.share * (now - last)

    def correct(self, skip: float) -> None:
        """Take note of the share of the parameters that inference skips on probe texts."""
        if self.mean is not None:
            self.correction = skip - self.mean

    def state(self) -> dict[str, Any]:
        """JSON value for a snapshot."""
        return {"seen": self.rate, "mean": self.mean, "correction": self.correction}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a snapshot."""
        self.rate, self.mean, self.correction = state["seen"], state["mean"], state["correction"]


@dataclass
class FixedWeight:
    """A weight alpha of a penalty that does not change.

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
        """JSON value for a snapshot."""
        return {} if self.target is None else self.target.state()

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a snapshot."""
        if self.target is not None:
            self.target.restore(state)


@dataclass
class Controller:
    """A weight alpha of a penalty that moves until the skip rate y reaches the target's value.

    It is a discrete proportional-integral controller in its velocity form:

        alpha_{n+1} = alpha_n + integral * e_n + proportional * (e_n - e_{n-1})
        e_n = goal_n - y_n

    During the target's ramp the goal rises linearly from the first y to the target's value, so that
    adapters learn while few tokens need them. After the ramp alpha may go slightly negative, which
    reopens gates; during the ramp the lower limit moves from 0 down to that value. A negative alpha
    at the start would do harm: while adapters are untrained the loss opens gates anyway, and both
    together can drive all gates to 1 within twenty updates.

    Args:
        target: What y is brought to.
        alpha: The weight; at first that of the first update.
        integral: Change of alpha per update and unit of error.
        proportional: Change of alpha per unit of change of the error.
        gain: Multiplies changes and limits of alpha, for penalties of another size than HeRo's.
        first: The first y; None: nothing was observed.
        error: The last e.
    """

    # Lowest alpha after the ramp, and the highest.
    limits: ClassVar[tuple[float, float]] = (-2e-3, 0.1)

    target: Target
    alpha: float
    integral: float = 2e-3
    proportional: float = 4e-2
    gain: float = 1.0
    first: float | None = None
    error: float | None = None

    def observe(self, skip: float, soft_skip: float, progress: float) -> None:
        """Move alpha after an update; arguments as of :meth:`Target.observe`."""
        self.target.observe(skip, soft_skip, progress)
        rate, share = self.target.rate, self.target.ramped(progress)
        assert rate is not None
        first = self.first = rate if self.first is None else self.first
        error = first + (self.target.value - first) * share - rate
        last = error if self.error is None else self.error
        change = self.integral * error + self.proportional * (error - last)
        self.error = error
        low, high = (self.gain * limit for limit in self.limits)
        self.alpha = min(high, max(share * low, self.alpha + self.gain * change))

    def state(self) -> dict[str, Any]:
        """JSON value for a snapshot."""
        own = {"alpha": self.alpha, "first": self.first, "error": self.error}
        return own | self.target.state()

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a snapshot."""
        self.alpha, self.first, self.error = state["alpha"], state["first"], state["error"]
        self.target.restore(state)


Weight = FixedWeight | Controller


class Gates(NamedTuple):
    """What a penalty may read of a forward pass.

    ``soft`` (B, U, T): the gates, in [0, 1], with a gradient. ``executed`` (B, U, T): the
    decisions. ``counted`` (B, T): the weight of each position. ``progress``: of training,
    in [0, 1].
    """

    soft: Tensor
    executed: Tensor
    counted: Tensor
    progress: float


# Its result is a sum over positions.
Penalty = Callable[[Gates], Tensor]


class Term(NamedTuple):
    """What routing adds to the loss on positions of a kind: alpha times the mean penalty.

    If ``penalty`` is None nothing is added, and rates are logged only.
    """

    weight: Weight
    penalty: Penalty | None


def unit_shares(units: Sequence[Unit], total: int) -> Tensor:
    """Each unit's share of the ``total`` dense parameters, (U,) float64."""
    return torch.tensor([unit.parameters for unit in units], dtype=torch.float64) / total


def aim_of(skip: float, target: Target | None) -> float:
    """A fraction to skip in a penalty's own measure, corrected as the budget is."""
    return skip if target is None else skip * target.scale


def mean_deviation(soft: Tensor, counted: Tensor, weights: Tensor, skip: float) -> Tensor:
    """|mean over counted positions of the skipped share - skip|, times the number of positions.

    The mean is over the micro-batches that all processes run at the same time. The absolute value
    is taken of each such mean; the penalty of an update is their sum, weighted by tokens.

    Args:
        soft: Gates (B, U, T), 0 or 1 with a soft gradient.
        counted: Weight of each position (B, T).
        weights: What a skip of each unit counts (U,).
        skip: Fraction to skip, in the measure of ``weights``.
    """
    weights = weights.to(soft, non_blocking=True)[:, None]
    excess = (((1 - soft) * weights).sum(dim=1) - skip) * counted
    total = excess.detach().sum()
    if dist.is_initialized():
        dist.all_reduce(total)
    return excess.sum() * torch.sign(total)


def check_penalty(penalty: Penalty, units: int, device: torch.device) -> None:
    """Refuse what is no penalty, by its values on gates made up for a few positions.

    Raises:
        ValueError: It is no scalar tensor with a gradient, or with doubled weights not doubled.
    """
    soft = torch.linspace(0.1, 0.9, 6 * units, device=device).view(2, units, 3).requires_grad_()
    gates = Gates(soft, soft.detach() > 0.5, torch.ones(2, 3, device=device), 0.5)
    value = penalty(gates)
    if not isinstance(value, Tensor) or not value.requires_grad:
        raise ValueError("a penalty must be a tensor that has a gradient in gates.soft")
    if value.shape:
        raise ValueError(
            f"a penalty has the shape {tuple(value.shape)}, must be a sum over positions, weighted "
            "by gates.counted"
        )
    twice = penalty(gates._replace(counted=2 * gates.counted))
    if not torch.allclose(twice, 2 * value, rtol=1e-4):
        raise ValueError(
            "a penalty must be a sum over positions, weighted by gates.counted: with doubled "
            f"weights it goes from {value:.4g} to {twice:.4g}"
        )


def squared_use(soft: Tensor, counted: Tensor, units: int = 1) -> Tensor:
    """Sum over counted positions of (sum over routed layers of the soft gate)^2.

    The penalty of FlexiDepth and of HeRo.

    Args:
        soft: Gates (B, U, T) in (0, 1).
        counted: Weight of each position (B, T).
        units: Units per layer; they stand side by side and have the same gate.
    """
    return (soft[:, ::units].float().sum(dim=1).pow(2) * counted).sum()
