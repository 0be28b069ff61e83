"""Training a routed model towards its targets, which are corrected by what inference skips."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import nn

from methods.base import Request
from methods.core.data import Data, Document
from methods.core.routing.calibration import BATCH, HasThreshold, skip_rates, weigh
from methods.core.routing.routed import router_of
from methods.core.training.loop import Trainer, thin
from methods.core.training.objective import Routing, log_key
from methods.core.training.params import TrainingParams

# Shares of training at which targets are corrected: from within the ramp of the targets on, and
# early enough that rates can still move. Where two kinds meet the budget one threshold can bring
# only one of them there afterwards, so training must bring both; it is corrected up to its end.
SURVEYS = {
    "pooled": (0.35, 0.5, 0.6, 0.7, 0.8),
    "split": (0.35, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95),
}
# The skip rate at the end of training is the mean over this share of the updates, the last ones.
ENDING = 0.1


def train_routed(
    model: nn.Module,
    params: TrainingParams,
    data: Data,
    request: Request,
    routing: Routing,
    batch_size: int = BATCH,
) -> dict[str, Any]:
    """Train a routed model in place; targets are corrected if its router has a threshold.

    Args:
        model: Routed causal LM; the parameters that ask for a gradient are trained.
        params: Of the training.
        data: Has training documents, and probe documents by which targets are corrected.
        request: Has the seed and the folder of snapshots.
        routing: Without a survey.
        batch_size: Of the surveys, as of :func:`methods.core.routing.calibration.skip_rates`.

    Returns:
        Decisions of the fit: the training log, and by kind the skip rate at the end of training.

    Raises:
        ValueError: No update had a token of a kind.
    """
    survey = _survey(model, data, routing, batch_size)
    probe = [] if survey is None else data.probe()
    surveys = SURVEYS[request.match]
    routing = replace(routing, survey=survey, surveys=surveys, probe=probe)
    trainer = Trainer(model, params, data.training(), request.seed, request.workdir, routing)
    log, kinds = trainer.run(), routing.terms
    count = max(1, round(ENDING * len(log)))
    ended = {}
    for kind in kinds:
        key = log_key("skip", kind)
        last = [entry[key] for entry in log if key in entry][-count:]
        if not last:
            raise ValueError(f"no update had {kind} tokens; raise batch_tokens or updates")
        ended[kind] = sum(last) / len(last)
    return {"training": thin(log), "trained_skip": ended}


def check_kinds(part: str, documents: Sequence[Document]) -> None:
    """Under ``match: split`` prompts and answers have a rate each, so a part must have both.

    Raises:
        ValueError: No document has a token of one of them.
    """
    for name, spans in (("prompts", "prompting"), ("answers", "answers")):
        if not any(getattr(document, spans) for document in documents):
            raise ValueError(
                f"match 'split' needs {part} documents with {name} (prompt and completion, or "
                "messages)"
            )


def _survey(
    model: nn.Module, data: Data, routing: Routing, batch_size: int
) -> Callable[[], Mapping[str, float]] | None:
    """A function that gives the skip rate of inference on the probe documents, by kind.

    None where targets cannot be corrected: there are none, or the router has no threshold.
    """
    aimless = any(term.weight.target is None for term in routing.terms.values())
    if aimless or not isinstance(router_of(model), HasThreshold):
        return None
    probe = weigh(data.probe(), *routing.terms)

    def survey() -> dict[str, float]:
        model.eval()
        rates = zip(routing.terms, skip_rates(model, probe, batch_size), strict=True)
        return {kind: float(skips @ routing.shares) for kind, skips in rates}

    return survey
