"""The language-model loss, computed without all logits in memory at the same time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint

from methods.core.data import Batch, Document
from methods.core.model.backbone import decoder
from methods.core.model.families import logits_of
from methods.core.training.packing import lay_out

CHUNK = 2048
Head = Callable[[Tensor], Tensor]


def lm_loss_sum(hidden: Tensor, head: Head, targets: Tensor, weights: Tensor) -> Tensor:
    """Weighted sum of next-token cross-entropies.

    Logits are computed for ``CHUNK`` positions at a time, and recomputed in the backward pass.
    With a vocabulary of 128,256 the logits of 2,048 positions take 1 GB in float32; those of a
    whole batch would take ten.

    Args:
        hidden: States (N, D) of the positions that predict.
        head: Maps (n, D) to logits (n, V).
        targets: Next tokens (N,).
        weights: Weight (N,) of each prediction, float32.

    Returns:
        Scalar, float32.
    """
    if len(hidden) <= CHUNK:
        return _chunk(hidden, head, targets, weights)
    total = hidden.new_zeros((), dtype=torch.float32)
    pieces = zip(hidden.split(CHUNK), targets.split(CHUNK), weights.split(CHUNK), strict=True)
    for part, words, weight in pieces:
        total = total + checkpoint(_chunk, part, head, words, weight, use_reentrant=False)
    return total


def next_token_loss(model: nn.Module, hidden: Tensor, batch: Batch) -> tuple[Tensor, int]:
    """Sum of the next-token cross-entropies of a batch, and their number.

    Args:
        model: Causal LM.
        hidden: Output of its last layer for the batch (B, T, D), before the final norm.
        batch: Right-padded documents. All real tokens are predicted except the first of each
            document. In a causal model no real token reads a pad.

    Returns:
        Scalar float32 with a gradient, and the number of predicted tokens.
    """
    norm, head = decoder(model).norm, logits_of(model)
    assert isinstance(norm, nn.Module)
    predicted = batch.valid[:, 1:].to(hidden.device)
    targets = batch.ids[:, 1:].to(hidden.device)[predicted]
    weights = torch.ones(len(targets), device=hidden.device)
    return lm_loss_sum(norm(hidden)[:, :-1][predicted], head, targets, weights), len(targets)


class Answers(NamedTuple):
    """How well a model predicts answers.

    ``right``: share of the documents in which every token of the answer is the likeliest one.
    ``loss``: mean next-token loss over the tokens of the answers.
    """

    right: float
    loss: float


@torch.no_grad()
def score_answers(model: nn.Module, documents: Sequence[Document], batch_size: int = 32) -> Answers:
    """Predict the answers of documents; in a document without prompt all tokens are the answer.

    Args:
        model: Causal LM in eval mode.
        documents: Each of two tokens or more. Those that were cut before their answer do not count.
        batch_size: Documents per forward pass.

    Raises:
        ValueError: No document has a token of an answer.
    """
    device, head = next(model.parameters()).device, logits_of(model)
    losses, right = list[Tensor](), list[Tensor]()
    for start in range(0, len(documents), batch_size):
        rows = lay_out(documents[start : start + batch_size], 0, prompt_weight=0.0).to(device)
        states = decoder(model)(
            input_ids=rows.ids, position_ids=rows.positions, use_cache=False
        ).last_hidden_state
        predicting = rows.weights > 0
        targets = rows.ids[:, 1:][predicting[:, :-1]]
        whole = torch.ones(len(rows.ids), dtype=torch.bool, device=device)
        pieces = zip(
            states[predicting].split(CHUNK),
            targets.split(CHUNK),
            predicting.nonzero()[:, 0].split(CHUNK),
            strict=True,
        )
        for part, words, document in pieces:
            logits = head(part).float()
            losses.append(cross_entropy(logits, words, reduction="none").double())
            whole[document[logits.argmax(dim=-1) != words]] = False
        right.append(whole[predicting.any(dim=1)])
    all_right = torch.cat(right)
    if not len(all_right):
        raise ValueError("no document has an answer within max_length; raise it")
    return Answers(float(all_right.double().mean()), float(torch.cat(losses).mean()))


def _chunk(hidden: Tensor, head: Head, targets: Tensor, weights: Tensor) -> Tensor:
    losses = cross_entropy(head(hidden).float(), targets, reduction="none")
    return (losses * weights).sum()
