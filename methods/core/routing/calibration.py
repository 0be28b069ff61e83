"""Calibration of a routed model: the search for the threshold that meets the budget."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from methods.base import Request
from methods.core.data import Batch, Data, Document, batches, task_weights
from methods.core.model.backbone import decoder
from methods.core.model.finite import check_finite
from methods.core.routing.routed import router_of
from methods.core.routing.router import Context

# Documents per forward pass.
BATCH = 32
# How far rounding may take a gate out of [0, 1].
TOLERANCE = 1e-3
MOST_TRIES = 10


@runtime_checkable
class HasThreshold(Protocol):
    """A router that compares its gates with a threshold."""

    threshold: float


def calibrate(
    model: nn.Module, data: Data, shares: Tensor, request: Request, batch_size: int = BATCH
) -> dict[str, Any]:
    """Calibrate the threshold of a routed model on the probe documents.

    Args:
        model: Routed causal LM; its router has a threshold.
        data: Has the probe documents.
        shares: Each unit's share of the dense parameters (U,).
        request: The budget, and which tokens must meet it: all tokens together, or under
            ``"split"`` the answer tokens, where every task counts the same.
        batch_size: As of :func:`skip_rates`.

    Returns:
        Decisions of the fit: the threshold, the trace of the calibration, and the share of those
        tokens that skip each unit.
    """
    router = router_of(model)
    assert isinstance(router, HasThreshold)
    assert request.budget is not None
    probe = weigh(data.probe(), "answer" if request.match == "split" else "pooled")
    trace, rates = calibrate_threshold(
        model, router, probe, shares, request.budget, batch_size=batch_size
    )
    return {
        "threshold": router.threshold,
        "calibration": trace,
        "bypass_rates": rates.tolist(),
    }


class WeightedDocuments(NamedTuple):
    """Documents, the shortest first, with weights of their positions.

    ``weights``: (T, K) per document, the weight of each position in K rates. ``answers``: (T,) per
    document, the weight of each answer token, 0 on prompt tokens.
    """

    documents: Sequence[Document]
    weights: Sequence[Tensor]
    answers: Sequence[Tensor]

    def batches(self, batch_size: int) -> Iterator[tuple[Batch, Tensor, Tensor]]:
        """Batches of like length with weights (B, T, K) and answers (B, T), 0 on pads."""
        starts = range(0, len(self.documents), batch_size)
        for start, batch in zip(starts, batches(self.documents, batch_size), strict=True):
            part = slice(start, start + batch_size)
            weights, answers = (
                pad_sequence(list(each[part]), batch_first=True)
                for each in (self.weights, self.answers)
            )
            yield batch, weights, answers


def weigh(documents: Sequence[Document], *kinds: str) -> WeightedDocuments:
    """Documents with the weights of K kinds: ``"pooled"``, ``"prompt"`` or ``"answer"``.

    The weight of a position is the number of scored tokens that it stands for
    (``Document.counts``). Weights of the kind ``"answer"`` are then scaled so that every task
    counts the same. Documents without a token are left out.
    """
    texts = sorted((d for d in documents if len(d.ids)), key=lambda d: len(d.ids))
    tasks = task_weights(texts) if "answer" in kinds else {}
    pooled = [_counts(document) for document in texts]
    prompts, answers = ([torch.zeros(len(d.ids)) for d in texts] for _ in range(2))
    for document, counts, prompt, answer in zip(texts, pooled, prompts, answers, strict=True):
        for first, stop in document.prompting:
            prompt[first:stop] = counts[first:stop]
        for first, stop in document.answers:
            answer[first:stop] = tasks.get(document.task, 1.0) * counts[first:stop]
    by_kind = {"pooled": pooled, "prompt": prompts, "answer": answers}
    by_document = zip(*(by_kind[kind] for kind in kinds), strict=True)
    return WeightedDocuments(texts, [torch.stack(parts, dim=1) for parts in by_document], answers)


def _counts(document: Document) -> Tensor:
    """The number of scored tokens that each position (T,) stands for."""
    of_prompt, of_rest = document.counts
    counts = torch.full((len(document.ids),), float(of_rest))
    counts[: document.prompt] = of_prompt
    return counts


@torch.no_grad()
def skip_rates(model: nn.Module, probe: WeightedDocuments, batch_size: int = BATCH) -> Tensor:
    """The weighted share of tokens that skip each unit, (K, U) float64.

    Args:
        model: Routed causal LM.
        probe: Documents, with K weights per position.
        batch_size: Documents per forward pass; 1 for a router that takes pads for tokens.
    """
    skipped, total = torch.zeros(()), torch.zeros(())
    device = next(model.parameters()).device
    for batch, weights, answers in probe.batches(batch_size):
        context = Context(answers=answers.to(device))
        output = decoder(model)(input_ids=batch.ids.to(device), use_cache=False, context=context)
        if output.soft is not None:
            check_finite(output.soft, "the gates of the router")
            low, high = output.soft.aminmax()
            if low < -TOLERANCE or high > 1 + TOLERANCE:
                raise ValueError(f"gates reach from {low:.4g} to {high:.4g}, must be in [0, 1]")
        skips = (~output.executed).double().cpu()
        skipped = skipped + torch.einsum("but,btk->ku", skips, weights.double())
        total = total + weights.double().sum(dim=(0, 1))
    return skipped / total[:, None]


def calibrate_threshold(
    model: nn.Module,
    router: HasThreshold,
    probe: WeightedDocuments,
    shares: Tensor,
    budget: float,
    batch_size: int = BATCH,
) -> tuple[list[dict[str, float]], Tensor]:
    """Set ``router.threshold`` so that the weighted skip rate meets the budget.

    A decision changes the input of later layers, so every try runs the model. The first try is 0.5,
    the threshold of training; the search ends at a try within 0.1 % of the parameters, or after
    ``MOST_TRIES``, of which the best is used.

    Args:
        model: Routed causal LM.
        router: Its router.
        probe: Documents, with weights of one kind.
        shares: Each unit's share of the dense parameters (U,).
        budget: Fraction to skip.
        batch_size: As of :func:`skip_rates`.

    Returns:
        The trace, with threshold and skip rate of every try, and for the best try the share of
        tokens that skip each unit, (U,) float64.
    """
    trace = list[dict[str, float]]()
    tries, rates = list[tuple[float, float]](), list[Tensor]()
    logit = 0.0
    while len(trace) < MOST_TRIES:
        router.threshold = 1 / (1 + math.exp(-logit))
        rates.append(skip_rates(model, probe, batch_size)[0])
        skip = float(rates[-1] @ shares)
        trace.append({"threshold": router.threshold, "skip": skip})
        tries.append((logit, skip - budget))
        if abs(skip - budget) <= 1e-3:
            break
        logit = next_logit(tries)
    best = min(range(len(trace)), key=lambda n: abs(trace[n]["skip"] - budget))
    router.threshold = trace[best]["threshold"]
    return trace, rates[best]


def next_logit(tries: Sequence[tuple[float, float]]) -> float:
    """The next logit to try for an error of zero.

    While all errors have one sign the search walks on; then it uses false position.

    Args:
        tries: Of each try the logit of the threshold and the error of the skip rate, which rises
            with the threshold.
    """
    below = max((pair for pair in tries if pair[1] < 0), default=None)
    above = min((pair for pair in tries if pair[1] > 0), default=None)
    if below is not None and above is not None:
        share = below[1] / (below[1] - above[1])
        # Not too close to either end: the interval must shrink even if the rate jumps inside it.
        return below[0] + min(0.9, max(0.1, share)) * (above[0] - below[0])
    logit, error = tries[-1]
    step = 1.0
    if len(tries) > 1 and abs(error) < abs(tries[-2][1]):
        # Along the line through the last two tries.
        step = error / (tries[-2][1] - error) * abs(logit - tries[-2][0])
    return logit - math.copysign(min(2.0, max(0.5, step)), error)
