"""Calibrating a routed model: the threshold at which validation tokens meet the budget."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from methods.core.backbone import decoder
from methods.core.data import Data, Document, batches
from methods.core.routing.routed import router_of


@runtime_checkable
class HasThreshold(Protocol):
    """A router that executes where its gate is at least ``threshold``."""

    threshold: float


def calibrated(model: nn.Module, data: Data, shares: Tensor, budget: float) -> dict[str, Any]:
    """Calibrate the threshold of a routed model on the probe documents.

    Returns:
        Decisions: the trace of the calibration, and the share of tokens that skip each unit.
    """
    router = router_of(model)
    assert isinstance(router, HasThreshold)
    trace, rates = calibrate_threshold(model, router, data.probe(), shares, budget)
    return {"calibration": trace, "bypass_rates": rates.tolist()}


@torch.no_grad()
def bypass_rates(model: nn.Module, documents: Sequence[Document], batch_size: int = 32) -> Tensor:
    """Share of the documents' tokens that skip each unit, (U,) float64.

    Args:
        model: Routed causal LM.
        documents: Validation documents; batched by their lengths, so that few pads are computed.
        batch_size: Documents per forward pass.
    """
    skipped, tokens = torch.zeros(()), 0
    device = next(model.parameters()).device
    for batch in batches(sorted(documents, key=lambda d: len(d.ids)), batch_size):
        valid = batch.valid.to(device)
        output = decoder(model)(input_ids=batch.ids.to(device), use_cache=False)
        skipped = skipped + (~output.executed & valid[:, None]).sum(dim=(0, 2)).double().cpu()
        tokens += int(valid.sum())
    return skipped / tokens


def calibrate_threshold(
    model: nn.Module,
    router: HasThreshold,
    documents: Sequence[Document],
    shares: Tensor,
    budget: float,
    steps: int = 10,
) -> tuple[list[dict[str, float]], Tensor]:
    """Set ``router.threshold`` so that the skip rate over all tokens meets the budget.

    A decision changes what later blocks see, so every try runs the model. The trained threshold,
    0.5, stays where it already meets the budget within a tenth of a point.

    Args:
        model: Routed causal LM.
        router: Its router.
        documents: Validation documents.
        shares: Of the dense parameters in each unit (U,).
        budget: Fraction to skip.
        steps: Most tries; the best one counts.

    Returns:
        The trace, threshold and skip of every try, and the best try's share of tokens that skip
        each unit, (U,) float64.
    """
    trace = list[dict[str, float]]()
    tried, rates = list[tuple[float, float]](), list[Tensor]()
    logit = 0.0
    while len(trace) < steps:
        router.threshold = 1 / (1 + math.exp(-logit))
        rates.append(bypass_rates(model, documents))
        skip = float(rates[-1] @ shares)
        trace.append({"threshold": router.threshold, "skip": skip})
        tried.append((logit, skip - budget))
        if abs(skip - budget) <= 1e-3:
            break
        logit = next_logit(tried)
    best = min(range(len(trace)), key=lambda n: abs(trace[n]["skip"] - budget))
    router.threshold = trace[best]["threshold"]
    return trace, rates[best]


def next_logit(tried: Sequence[tuple[float, float]]) -> float:
    """Where to try next for an error of zero: false position, from wherever a root is enclosed.

    Args:
        tried: Logit of the threshold and error of the skip rate, which rises with it, of each try.
    """
    below = max((t for t in tried if t[1] < 0), default=None)
    above = min((t for t in tried if t[1] > 0), default=None)
    if below is not None and above is not None:
        share = below[1] / (below[1] - above[1])
        # Away from both ends, so that each try narrows even a leap.
        return below[0] + min(0.9, max(0.1, share)) * (above[0] - below[0])
    logit, error = tried[-1]
    step = 1.0
    if len(tried) > 1 and abs(error) < abs(tried[-2][1]):
        # On along the line through the last two tries.
        step = error / (tried[-2][1] - error) * abs(logit - tried[-2][0])
    return logit - math.copysign(min(2.0, max(0.5, step)), error)
