"""Fitting a routed model: training, then the threshold at which the budget is met."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

from methods.base import Request
from methods.core.data import Data
from methods.core.routing.calibration import HasThreshold, bypass_rates, calibrated, weighted
from methods.core.routing.routed import router_of
from methods.core.routing.steering import Steering
from methods.core.training.loop import KINDS, Penalty, Trainer, named, thinned
from methods.core.training.params import TrainingParams

# Share of the updates, the last ones, over which the rate at the end of training is taken.
ENDING = 0.1


def fit_routed(
    model: nn.Module,
    params: TrainingParams,
    data: Data,
    request: Request,
    steering: Callable[[], Steering],
    penalty: Callable[[str, Steering], Penalty] | None,
    reserved: int = 0,
) -> dict[str, Any]:
    """Train a routed model in place and, under a budget, calibrate its router's threshold.

    Args:
        model: Routed causal LM; what trains asks for a gradient.
        params: Of the training.
        data: Training documents, and probe documents for the calibration.
        request: Budget, the tokens that shall meet it, seed, folder of snapshots.
        steering: Makes what gives the weight of a kind's penalty; its budget is None where the
            penalty itself aims at one.
        penalty: Kind of position and its steering -> what routing adds to the loss; None: nothing.
        reserved: Tokens at the start of a document that the penalty leaves out.

    Returns:
        Decisions: training log, skip at the end of training by kind, threshold, trace of the
        calibration, share of tokens that skip each unit.
    """
    kinds = KINDS[request.match]
    steerings = {kind: steering() for kind in kinds}
    trainer = Trainer(
        model,
        params,
        data.training(),
        request.seed,
        request.workdir,
        steerings,
        {} if penalty is None else {kind: penalty(kind, each) for kind, each in steerings.items()},
        reserved,
        _survey(model, data, steerings),
    )
    log = trainer.run()
    last = log[-max(1, round(ENDING * len(log))) :]
    ended = {kind: sum(entry[named("skip", kind)] for entry in last) / len(last) for kind in kinds}
    decisions: dict[str, Any] = {"training": thinned(log), "trained_skip": ended}
    if request.budget is not None and isinstance(router_of(model), HasThreshold):
        decisions |= calibrated(model, data, steerings[kinds[0]].sizes, request)
    return decisions


def _survey(
    model: nn.Module, data: Data, steerings: Mapping[str, Steering]
) -> Callable[[], Mapping[str, float]] | None:
    """What inference skips on the probe documents, by kind; None where nothing is steered."""
    router = router_of(model)
    if not isinstance(router, HasThreshold) or any(s.budget is None for s in steerings.values()):
        return None
    probe = weighted(data.probe(), *steerings)

    def survey() -> dict[str, float]:
        model.eval()
        rates = zip(steerings.items(), bypass_rates(model, probe), strict=True)
        return {kind: float(skips @ steering.sizes) for (kind, steering), skips in rates}

    return survey
