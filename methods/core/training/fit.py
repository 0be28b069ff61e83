"""Training a routed model, its steering corrected by what inference skips."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

from methods.base import Request
from methods.core.data import Data
from methods.core.routing.calibration import HasThreshold, bypass_rates, weighted
from methods.core.routing.routed import router_of
from methods.core.routing.steering import Steering
from methods.core.training.loop import Penalty, Trainer, named, thinned
from methods.core.training.params import TrainingParams

# Share of the updates, the last ones, over which the rate at the end of training is taken.
ENDING = 0.1


def train_routed(
    model: nn.Module,
    params: TrainingParams,
    data: Data,
    request: Request,
    structure: Mapping[str, Any],
    steerings: Mapping[str, Steering],
    penalties: Mapping[str, Penalty],
    reserved: int = 0,
) -> dict[str, Any]:
    """Train a routed model in place.

    Args:
        model: Routed causal LM; what trains asks for a gradient.
        params: Of the training.
        data: Training documents, and probe documents that correct the steering.
        request: Seed, folder of snapshots.
        structure: Of the model; a snapshot of another one is left alone.
        steerings: Kind of position -> what gives the weight of its penalty; its budget is None
            where the penalty itself aims at one.
        penalties: Kind -> what routing adds to the loss.
        reserved: Tokens at the start of a document that the penalty leaves out.

    Returns:
        Decisions: training log, skip at the end of training by kind.
    """
    trainer = Trainer(
        model,
        params,
        data.training(),
        request.seed,
        request.workdir,
        steerings,
        penalties,
        reserved,
        _survey(model, data, steerings),
        structure,
    )
    log = trainer.run()
    last = log[-max(1, round(ENDING * len(log))) :]
    ended = {
        kind: sum(entry[named("skip", kind)] for entry in last) / len(last) for kind in steerings
    }
    return {"training": thinned(log), "trained_skip": ended}


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
