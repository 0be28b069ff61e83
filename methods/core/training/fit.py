"""Fitting a routed model: training, then the threshold at which the budget is met."""

from __future__ import annotations

from typing import Any

from torch import nn

from methods.base import Request
from methods.core.data import Data
from methods.core.routing.calibration import HasThreshold, calibrated
from methods.core.routing.routed import router_of
from methods.core.routing.steering import Steering
from methods.core.training.loop import Penalty, Trainer, TrainingParams, thinned


def fit_routed(
    model: nn.Module,
    params: TrainingParams,
    data: Data,
    request: Request,
    steering: Steering,
    penalty: Penalty | None,
    reserved: int = 0,
) -> dict[str, Any]:
    """Train a routed model in place and, under a budget, calibrate its router's threshold.

    Args:
        model: Routed causal LM; what trains asks for a gradient.
        params: Of the training.
        data: Training documents, and probe documents for the calibration.
        request: Budget, seed, folder of snapshots.
        steering: Weight of the penalty; its budget is None where the penalty itself aims at one.
        penalty: What routing adds to the loss.
        reserved: Tokens at the start of a document that the penalty leaves out.

    Returns:
        Decisions: training log, trace of the calibration, share of tokens that skip each unit.
    """
    trainer = Trainer(
        model, params, data.training(), request.seed, request.workdir, steering, penalty, reserved
    )
    decisions: dict[str, Any] = {"training": thinned(trainer.run())}
    if request.budget is not None and isinstance(router_of(model), HasThreshold):
        decisions |= calibrated(model, data, steering.sizes, request.budget)
    return decisions
