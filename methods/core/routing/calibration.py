"""Calibrating a routed model: the threshold at which validation tokens meet the budget."""

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
from methods.core.routing.routed import router_of
from methods.core.routing.router import Context


@runtime_checkable
class HasThreshold(Protocol):
    """A router that executes where its gate is at least ``threshold``."""

    threshold: float


def calibrated(model: nn.Module, data: Data, shares: Tensor, request: Request) -> dict[str, Any]:
    """Calibrate the threshold of a routed model on the probe documents.

    Args:
        model: Routed causal LM; its router has a threshold.
        data: Probe documents.
        shares: Of the dense parameters in each unit (U,).
        request: The budget, and which tokens shall meet it: all of them together, or under
            ``"split"`` the answer tokens, every task counting the same.

    Returns:
        Decisions: the threshold, the trace of the calibration, and the share of those tokens that
        skip each unit.
    """
    router = router_of(model)
    assert isinstance(router, HasThreshold)
    assert request.budget is not None
    probe = weighted(data.probe(), "answer" if request.match == "split" else "pooled")
    trace, rates = calibrate_threshold(model, router, probe, shares, request.budget)
    return {
        "threshold": router.threshold,
        "calibration": trace,
        "bypass_rates": rates.tolist(),
    }


class Weighted(NamedTuple):
    """Documents, by their lengths, with two numbers for each of their positions.

    ``weights`` (T, K): what the position counts in K rates; ``answers`` (T,): the weight of a
    answer token, 0 on prompts.
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


def weighted(documents: Sequence[Document], *kinds: str) -> Weighted:
    """Documents with the weights of K kinds: ``"pooled"``, ``"prompt"`` or ``"answer"``.

    A position counts as many scored tokens as it stands for (``Document.counts``), answer tokens
    such that every task counts the same.
    """
    texts = sorted(documents, key=lambda document: len(document.ids))
    tasks = task_weights(texts) if "answer" in kinds else {}
    every = [_counts(document) for document in texts]
    prompts, answers = ([torch.zeros(len(d.ids)) for d in texts] for _ in range(2))
    for document, counts, prompt, answer in zip(texts, every, prompts, answers, strict=True):
        for first, stop in document.prompting:
            prompt[first:stop] = counts[first:stop]
        for first, stop in document.answers:
            answer[first:stop] = tasks.get(document.task, 1.0) * counts[first:stop]
    found = {"pooled": every, "prompt": prompts, "answer": answers}
    chosen = zip(*(found[kind] for kind in kinds), strict=True)
    return Weighted(texts, [torch.stack(parts, dim=1) for parts in chosen], answers)


def _counts(document: Document) -> Tensor:
    """How many scored tokens each position (T,) stands for."""
    of_prompt, behind = document.counts
    counts = torch.full((len(document.ids),), behind)
    counts[: document.prompt] = of_prompt
    return counts


@torch.no_grad()
def skip_rates(model: nn.Module, probe: Weighted, batch_size: int = 32) -> Tensor:
    """Weighted shares of the documents' tokens that skip each unit, (K, U) float64.

    Args:
        model: Routed causal LM.
        probe: Documents.
        batch_size: Documents per forward pass.
    """
    skipped, total = torch.zeros(()), torch.zeros(())
    device = next(model.parameters()).device
    for batch, each, answers in probe.batches(batch_size):
        context = Context(answers=answers.to(device))
        output = decoder(model)(input_ids=batch.ids.to(device), use_cache=False, context=context)
        skips = (~output.executed).double().cpu()
        skipped = skipped + torch.einsum("but,btk->ku", skips, each.double())
        total = total + each.double().sum(dim=(0, 1))
    return skipped / total[:, None]


def calibrate_threshold(
    model: nn.Module,
    router: HasThreshold,
    probe: Weighted,
    shares: Tensor,
    budget: float,
    steps: int = 10,
) -> tuple[list[dict[str, float]], Tensor]:
    """Set ``router.threshold`` so that the skip rate over weighted tokens meets the budget.

    A decision changes what later blocks see, so every try runs the model. The trained threshold,
    0.5, stays where it already meets the budget within a tenth of a point.

    Args:
        model: Routed causal LM.
        router: Its router.
        probe: Validation documents, with weights of one kind.
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
        rates.append(skip_rates(model, probe)[0])
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
