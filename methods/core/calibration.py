"""Fitting a routed model: training, then a threshold at which validation tokens meet the budget."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from methods.base import Request
from methods.core.backbone import decoder
from methods.core.data import Data, Document, batches
from methods.core.routed import router_of
from methods.core.steering import Steering
from methods.core.training import Penalty, Trainer, TrainingParams, thinned


@runtime_checkable
class HasThreshold(Protocol):
    """A router that executes where its gate is at least ``threshold``."""

    threshold: float


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


def calibrated(model: nn.Module, data: Data, shares: Tensor, budget: float) -> dict[str, Any]:
    """Calibrate the threshold of a routed model on the probe documents.

    Returns:
        Decisions: the trace of the calibration, and the share of tokens that skip each unit.
    """
    router = router_of(model)
    assert isinstance(router, HasThreshold)
    trace = calibrate_threshold(model, router, data.probe(), shares, budget)
    return {"calibration": trace, "bypass_rates": bypass_rates(model, data.probe()).tolist()}


@torch.no_grad()
def bypass_rates(model: nn.Module, documents: Sequence[Document], batch_size: int = 32) -> Tensor:
    """Share of the documents' tokens that skip each unit, (U,) float64.

    Args:
        model: Routed causal LM.
        documents: Validation documents.
        batch_size: Documents per forward pass.
    """
    skipped, tokens = torch.zeros(()), 0
    device = next(model.parameters()).device
    for batch in batches(documents, batch_size):
        valid = batch.valid.to(device)
        output = decoder(model)(input_ids=batch.ids.to(device), use_cache=False)
        skipped = skipped + (~output.executed & valid[:, None]).sum(dim=(0, 2)).double().cpu()
        tokens += int(valid.sum())
    return skipped / tokens


def validation_skip(
    model: nn.Module, documents: Sequence[Document], shares: Tensor, batch_size: int = 32
) -> float:
    """Skip rate over all tokens of the documents; ``shares`` (U,) of the dense parameters."""
    return float(bypass_rates(model, documents, batch_size) @ shares)


def calibrate_threshold(
    model: nn.Module,
    router: HasThreshold,
    documents: Sequence[Document],
    shares: Tensor,
    budget: float,
    steps: int = 12,
) -> list[dict[str, float]]:
    """Set ``router.threshold`` by bisection so that the skip rate meets the budget.

    A decision changes what later blocks see, so every try runs the model. The trained threshold,
    0.5, stays where it already meets the budget within a tenth of a point.

    Returns:
        The trace: threshold and skip of every try.
    """
    trace: list[dict[str, float]] = []

    def error_at(logit: float) -> float:
        router.threshold = 1 / (1 + math.exp(-logit))
        skip = validation_skip(model, documents, shares)
        trace.append({"threshold": router.threshold, "skip": skip})
        return skip - budget

    low, high, logit = -8.0, 8.0, 0.0
    while len(trace) < steps:
        error = error_at(logit)
        if abs(error) <= 1e-3:
            break
        low, high = (logit, high) if error < 0 else (low, logit)
        # The right threshold is near the trained one: step by 1 until it is bracketed.
        bracketed = low > -8.0 and high < 8.0
        logit = (low + high) / 2 if bracketed else logit + (1 if error < 0 else -1)
    best = min(trace, key=lambda row: abs(row["skip"] - budget))
    router.threshold = best["threshold"]
    return trace
