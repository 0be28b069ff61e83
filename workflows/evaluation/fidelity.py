"""Fidelity: how far the next-token distributions of a row lie from those of its dense model.

    KL = mean over positions of  sum over v of p_dense(v) (ln p_dense(v) - ln p_row(v)),   in nats
    top-1 agreement = share of positions at which both models hold the same token likeliest

Accuracy can stay equal while answers change; these two cannot (Dutta et al., Accuracy is Not All
You Need, arXiv 2407.09141). Both models read the same texts in one process, teacher forced. The
distributions are made in float32, whatever the dtype of the weights.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
import torch
from torch import Tensor, nn

from methods.core.model.backbone import decoder
from methods.core.model.finite import check_finite
from methods.core.model.ledger import Ledger, Tally
from methods.core.routing.calibration import weigh
from methods.core.routing.routed import RoutedDecoder
from methods.core.routing.router import Context
from methods.core.tokens import Document

# Positions whose distributions are held at once: of 128,256 words they take 1 GB in float32.
POSITIONS = 512


@dataclass(frozen=True)
class Fidelity:
    """What was measured over some documents.

    Args:
        documents: One line per document, shortest first: ``positions``, and sums over them of
            ``kl`` (nats), ``agreement``, and the next-token losses ``loss`` (row) and
            ``reference_loss`` (nats); losses are NaN over answers, whose last next token may not
            be there.
        skip: Share of the dense parameters that did not run on these positions.
    """

    documents: pd.DataFrame
    skip: float

    def mean(self, column: str) -> float:
        """Mean over all positions of a column."""
        return float(self.documents[column].sum() / self.documents["positions"].sum())

    def as_json(self) -> dict[str, Any]:
        """The means, for a record; perplexities are None where there are no losses."""
        loss, reference = self.mean("loss"), self.mean("reference_loss")
        lossless = bool(self.documents["loss"].isna().any())
        return {
            "documents": len(self.documents),
            "positions": int(self.documents["positions"].sum()),
            "kl": self.mean("kl"),
            "agreement": self.mean("agreement"),
            "perplexity": None if lossless else math.exp(loss),
            "reference_perplexity": None if lossless else math.exp(reference),
            "skip": self.skip,
        }


@torch.no_grad()
def measure(
    reference: nn.Module,
    model: nn.Module,
    ledger: Ledger,
    documents: Sequence[Document],
    answers: bool = False,
    batch_size: int = 16,
) -> Fidelity:
    """Compare a model with its dense reference on documents.

    Args:
        reference: Dense causal LM, in eval mode.
        model: The row, in eval mode, on the same device.
        ledger: Of the row.
        documents: Of two tokens or more; shorter ones have no position.
        answers: Count answer tokens alone. Otherwise each token counts that has a next one.
        batch_size: Documents per forward pass; 1 for a row whose decisions depend on pads.

    Raises:
        ValueError: No document has a position, or a model returns NaN.
    """
    device = next(model.parameters()).device
    tally, lines = Tally(ledger), []
    for batch, _, weights in weigh(documents, "pooled").batches(batch_size):
        counted = weights > 0 if answers else _has_next(batch.valid)
        if not counted.any():
            continue
        ids = batch.ids.to(device)
        places = counted.to(device)
        dense = decoder(reference)(input_ids=ids, use_cache=False).last_hidden_state[places]
        extra = {"context": Context(answers=weights.to(device))}
        routed = isinstance(decoder(model), RoutedDecoder)
        output = decoder(model)(input_ids=ids, use_cache=False, **(extra if routed else {}))
        states = output.last_hidden_state[places]
        check_finite(states, "what the last layer returns")
        targets = None if answers else ids.roll(-1, dims=1)[places]
        values = _compare(_head(reference), dense, _head(model), states, targets)
        rows = counted.nonzero()[:, 0]
        for row in rows.unique().tolist():
            number = int((rows == row).sum())
            executed = output.executed[row][:, places[row]] if routed else None
            tally.add(executed, number)
            sums = values[rows.to(device) == row].sum(dim=0).tolist()
            lines.append([number, *sums])
    if not lines:
        raise ValueError("no document has a position to compare at")
    columns = ["positions", "kl", "agreement", "loss", "reference_loss"]
    return Fidelity(pd.DataFrame(lines, columns=columns), tally.rates().skip)


def _has_next(valid: Tensor) -> Tensor:
    """Positions (B, T) whose next token is there."""
    return torch.cat([valid[:, 1:], torch.zeros_like(valid[:, :1])], dim=1)


def _head(model: nn.Module) -> nn.Module:
    head = model.lm_head
    assert isinstance(head, nn.Module)
    return head


def _compare(
    reference_head: nn.Module,
    dense: Tensor,
    head: nn.Module,
    states: Tensor,
    targets: Tensor | None,
) -> Tensor:
    """KL, agreement, loss and reference loss of each position, (n, 4) float64."""
    parts = []
    for start in range(0, len(states), POSITIONS):
        part = slice(start, start + POSITIONS)
        expected = reference_head(dense[part]).float().log_softmax(dim=-1)
        actual = head(states[part]).float().log_softmax(dim=-1)
        kl = (expected.exp() * (expected - actual)).sum(dim=-1)
        same = expected.argmax(dim=-1) == actual.argmax(dim=-1)
        losses = [torch.full_like(kl, math.nan)] * 2
        if targets is not None:
            words = targets[part, None]
            losses = [-scores.gather(1, words)[:, 0] for scores in (actual, expected)]
        parts.append(torch.stack([kl, same, *losses], dim=1).double())
    return torch.cat(parts)
