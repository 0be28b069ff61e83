"""The loss of an update, and what routing adds to it.

    sum(weight * cross-entropy) / sum(weight)
        +  sum over kinds of alpha_kind * sum(share * penalty) / sum(share)

All denominators are sums over the whole update. So the gradient does not depend on how an update is
split, into micro-batches, over processes, into packed or padded rows, if a penalty is a sum over
positions; ``mean_deviation`` is not, and sees each micro-batch alone.

A kind is a set of positions that meets the budget on its own. Under ``"pooled"`` there is one kind,
all counted positions. Under ``"split"`` there are two, prompt tokens and answer tokens; answer
tokens are weighted so that every task counts the same. ``alpha`` is fixed, as in papers, or a
controller moves it until the budget is met (``methods/core/routing/steering.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from methods.core.data import Document
from methods.core.model.backbone import decoder
from methods.core.model.families import logits_of
from methods.core.routing.router import Context
from methods.core.routing.steering import Gates, Term
from methods.core.training.documents import packed_attention
from methods.core.training.losses import lm_loss_sum
from methods.core.training.packing import Rows

# Protocol -> the kinds of positions that must meet the budget, each on its own.
MATCH_KINDS = {"pooled": ("pooled",), "split": ("prompt", "answer")}
# Sums per kind that a pass returns: penalty, skip, skip of the gates before the threshold, executed
# units.
FIGURES = 4


@dataclass(frozen=True)
class Routing:
    """What training knows of a routed model.

    Args:
        shares: Each unit's share of the dense parameters (U,).
        terms: Kind -> what routing adds to the loss on its positions; the kinds are those of
            ``MATCH_KINDS["pooled"]`` or ``MATCH_KINDS["split"]``.
        reserved: Number of tokens at the start of a document that no penalty counts.
        structure: What the fit decided before training; a snapshot of another one is not used.
        survey: Kind -> share of the parameters that inference skips on probe texts. It is called to
            correct the targets.
        surveys: Shares of training after which it is called.
        probe: The documents of the survey; a snapshot of a run with others is not used.
    """

    shares: Tensor
    terms: Mapping[str, Term]
    reserved: int = 0
    structure: Mapping[str, Any] = field(default_factory=dict)
    survey: Callable[[], Mapping[str, float]] | None = None
    surveys: Sequence[float] = ()
    probe: Sequence[Document] = ()


# Of a model that routes nothing.
NO_ROUTING = Routing(torch.empty(0), {})


@dataclass
class Objective:
    """Runs micro-batches forward and backward.

    Args:
        model: Causal LM in training mode.
        routing: What routing adds to the loss.
        device: Of the model.
    """

    model: nn.Module
    routing: Routing
    device: torch.device

    def totals(self, rows: Rows) -> Tensor:
        """The denominators of the loss on these rows, float64.

        The sum of the loss weights; then for each kind the sum of its shares, with and without
        reserved tokens.
        """
        sums = [rows.weights.sum()]
        for kind in self.routing.terms:
            sums += [rows.share(kind).sum(), self._unreserved(rows, kind).sum()]
        return torch.stack(sums).double()

    def backward(
        self, rows: Rows, totals: Tensor, progress: float, noise: torch.Generator
    ) -> Tensor:
        """Run a micro-batch forward and backward; its gradients are added to the parameters'.

        The host waits for the device only in ``dispatch`` and ``attend``: rows are counted before
        they are moved there.

        Args:
            rows: On the CPU.
            totals: Of the whole update, see :meth:`totals`; on the device.
            progress: Of training, in [0, 1].
            noise: Generator for sampled gates.

        Returns:
            What this micro-batch adds to the loss and to the ``FIGURES`` of each kind, float64.
        """
        # The last position of the tensor predicts nothing: counted is False there.
        predicting = rows.counted.flatten().nonzero().squeeze(1)
        predicting = predicting.to(self.device, non_blocking=True)
        with packed_attention(self.model, rows.positions, self.device) as apart:
            rows = rows.to(self.device)
            loss, figures = self._loss(
                rows, predicting, totals, Context(progress, noise, rows.answers), apart
            )
            loss.backward()
        return torch.stack(figures)

    def _loss(
        self,
        rows: Rows,
        predicting: Tensor,
        totals: Tensor,
        context: Context,
        apart: dict[str, Any],
    ) -> tuple[Tensor, list[Tensor]]:
        """The loss of a micro-batch, and what :meth:`backward` returns of it."""
        extra = {"context": context} if self.routing.terms else {}
        device = self.device.type
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            output = decoder(self.model)(
                input_ids=rows.ids, position_ids=rows.positions, use_cache=False, **apart, **extra
            )
            hidden = output.last_hidden_state.flatten(0, 1)[predicting]
            targets = rows.ids.flatten()[predicting + 1]
            weights = rows.weights.flatten()[predicting]
            loss = lm_loss_sum(hidden, logits_of(self.model), targets, weights)
        loss = loss / totals[0].float()
        figures = [loss.detach().double()]
        for kind, sums in zip(self.routing.terms, totals[1:].view(-1, 2), strict=True):
            added, of_kind = self._term(kind, rows, output, sums, context.progress)
            if added is not None:
                loss = loss + added
            figures += of_kind
        return loss, figures

    def _term(
        self, kind: str, rows: Rows, output: Any, totals: Tensor, progress: float
    ) -> tuple[Tensor | None, list[Tensor]]:
        """What a kind adds to the loss, None without a penalty; and its ``FIGURES``, float64."""
        term, (total, unreserved) = self.routing.terms[kind], totals
        share, counted = rows.share(kind), self._unreserved(rows, kind)
        penalty, added = totals.new_zeros((), dtype=torch.float32), None
        if term.penalty is not None:
            if output.soft is None or output.soft.shape != output.executed.shape:
                raise ValueError(
                    "a router that trains must return the value of every gate (Gate.value), "
                    "since a penalty is a function of these"
                )
            gates = Gates(output.soft, output.executed, counted, progress)
            penalty = term.penalty(gates) / unreserved.float()
            added = term.weight.alpha * penalty
        executed = output.executed.double()
        soft = executed if output.soft is None else output.soft.detach().double()
        sizes = self.routing.shares.to(self.device, non_blocking=True)
        weights = share.double()[:, None]
        skips = [
            ((1 - gates) * weights).sum(dim=(0, 2)) @ sizes / total for gates in (executed, soft)
        ]
        ran = (executed * counted.double()[:, None]).sum() / unreserved
        return added, [penalty.detach().double(), *skips, ran]

    def _unreserved(self, rows: Rows, kind: str) -> Tensor:
        """Weight (B, T) of each position in the penalty of a kind."""
        return rows.share(kind) * (rows.positions >= self.routing.reserved)


def log_key(name: str, kind: str) -> str:
    """The key of a kind's figure in the training log; the pooled kind has no suffix."""
    return name if kind == "pooled" else f"{name}_{kind}"
