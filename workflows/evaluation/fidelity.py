"""Fidelity: how far the next-token distributions of a row lie from those of its dense model.

    KL = mean over positions of  sum over v of p_dense(v) (ln p_dense(v) - ln p_row(v)),   in nats
    top-1 agreement = share of positions at which both models hold the same token likeliest

Accuracy can stay equal while answers change; these two cannot (Dutta et al., Accuracy is Not All
You Need, arXiv 2407.09141). Both models read the same texts in one process, teacher forced. The
distributions are made in float32, whatever the dtype of the weights. Kinds of positions: ``"all"``
that have a next token, and ``"answer"``, the answer tokens among them and at the end of a text.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor, nn

from methods.core.data import Data, check_file
from methods.core.model.backbone import decoder, load_backbone
from methods.core.model.card import CARD
from methods.core.model.checkpoint import Loaded, dense_folder
from methods.core.model.families import logits_of
from methods.core.model.finite import check_finite
from methods.core.model.folder import hash_folder, window_of
from methods.core.model.ledger import Ledger, Tally
from methods.core.routing.calibration import weigh
from methods.core.routing.routed import RoutedDecoder
from methods.core.routing.router import Context
from methods.core.tokens import Document
from workflows.runtime.contents import Contents

# Positions whose distributions are held at once: of 128,256 words they take 1 GB in float32.
POSITIONS = 512
# Kind of position -> what is summed over the positions of a text. An answer token at its end has no
# next token, so no loss.
SUMS = {
    "all": ["tokens", "kl", "agreement", "loss", "reference_loss"],
    "answer": ["tokens", "kl", "agreement"],
}


@dataclass(frozen=True)
class Comparison:
    """What was measured over some texts.

    Args:
        texts: Hash of their token ids and answer tokens.
        sums: Kind of position -> one line per text, shortest first: ``tokens`` (positions of the
            kind), and sums over them of ``kl`` (nats), ``agreement``, and under ``"all"`` of the
            next-token losses ``loss`` (row) and ``reference_loss`` (nats). Texts without an answer
            have no ``"answer"``.
        skips: Kind of position -> share of the dense parameters that did not run there.
    """

    texts: str
    sums: Mapping[str, pd.DataFrame]
    skips: Mapping[str, float]

    def mean(self, column: str, kind: str = "all") -> float:
        """Mean over all positions of a kind."""
        return float(self.sums[kind][column].sum() / self.sums[kind]["tokens"].sum())

    def means(self) -> dict[str, Any]:
        """The means as JSON."""
        return {
            "documents": len(self.sums["all"]),
            **{
                kind: {
                    "tokens": int(sums["tokens"].sum()),
                    "kl": self.mean("kl", kind),
                    "agreement": self.mean("agreement", kind),
                    "skip": self.skips[kind],
                }
                for kind, sums in self.sums.items()
            },
            "perplexity": math.exp(self.mean("loss")),
            "reference_perplexity": math.exp(self.mean("reference_loss")),
        }

    def as_json(self) -> dict[str, Any]:
        """Sums of each text, for a record: whoever resamples texts needs them."""
        whole = ("tokens", "agreement")
        distances = {
            kind: {
                "skip": self.skips[kind],
                **{name: sums[name].astype(int).tolist() for name in whole},
                "kl": sums["kl"].tolist(),
            }
            for kind, sums in self.sums.items()
        }
        return {"texts": self.texts, "distances": distances}


def check_texts(path: Path, option: str) -> None:
    """Check that a file of texts exists and is .jsonl.

    Raises:
        ValueError: It is not.
    """
    if path.suffix != ".jsonl":
        raise ValueError(f"{option} {path} must end in .jsonl")
    check_file(path, option)


def reference_of(model: Path, reference: Path | None) -> Path:
    """The folder of the dense model that a model is compared with.

    Args:
        model: Compressed or plain folder.
        reference: What was asked for, or a model made from it; None: the dense model that ``model``
            was made from.

    Raises:
        ValueError: ``model`` is plain and nothing was asked for, or the dense model is not there.
    """
    if reference is None and not (model / CARD).is_file():
        raise ValueError(f"{model} is a plain model: say with --reference which one is dense")
    return dense_folder(model if reference is None else reference)


def identity(
    row: Mapping[str, Any], reference: Path, texts: Path, length: int, contents: Contents
) -> dict[str, Any]:
    """Everything on which a measurement depends, as a JSON value.

    Args:
        row: What the row's own numbers depend on: model, batch size, device, code.
        reference: Folder of the dense model.
        texts: The .jsonl.
        length: Tokens to which texts are cut.
        contents: Hashes of files.
    """
    return {
        **row,
        "reference": hash_folder(reference),
        "texts": contents.of([texts]),
        "length": length,
    }


def compare_with_dense(
    loaded: Loaded, reference: Path, texts: Path, length: int, batch_size: int
) -> Comparison:
    """Load the dense model, read the texts, measure.

    Args:
        loaded: The row.
        reference: Folder of the dense model.
        texts: .jsonl as for a fit.
        length: Tokens to which texts are cut; they are cut to the model's window too.
        batch_size: Texts per forward pass, where pads do not change the row's decisions.

    Raises:
        ValueError: A folder or the file cannot be read, or :func:`measure` refuses.
    """
    model, config = loaded.model, loaded.model.config
    dtype = str(model.dtype).removeprefix("torch.")
    dense = load_backbone(reference, dtype, str(model.device))
    data = Data(loaded.tokenizer, config.vocab_size, length, window_of(config))
    size = batch_size if loaded.method.batchable() else 1
    return measure(dense.model, model, loaded.ledger, list(data.documents(texts)), size)


@torch.no_grad()
def measure(
    reference: nn.Module,
    model: nn.Module,
    ledger: Ledger,
    documents: Sequence[Document],
    batch_size: int = 16,
) -> Comparison:
    """Compare a model with its dense reference on documents.

    Args:
        reference: Dense causal LM, in eval mode.
        model: The row, in eval mode, on the same device.
        ledger: Of the row.
        documents: Of two tokens or more; shorter ones have no position.
        batch_size: Documents per forward pass; 1 for a row whose decisions depend on pads.

    Raises:
        ValueError: No document has a next token, or a model returns NaN.
    """
    device = next(model.parameters()).device
    routed = isinstance(decoder(model), RoutedDecoder)
    tallies = {kind: Tally(ledger) for kind in SUMS}
    lines: dict[str, list[Tensor]] = {kind: [] for kind in SUMS}
    # In any batch size the same texts get a line.
    texts = [document for document in documents if len(document.ids) > 1 or document.answer_tokens]
    for batch, _, answers in weigh(texts, "pooled").batches(batch_size):
        marks = {"all": _has_next(batch.valid), "answer": answers > 0}
        counted = marks["all"] | marks["answer"]
        ids, places = batch.ids.to(device), counted.to(device)
        dense = decoder(reference)(input_ids=ids, use_cache=False).last_hidden_state[places]
        extra = {"context": Context(answers=answers.to(device))} if routed else {}
        output = decoder(model)(input_ids=ids, use_cache=False, **extra)
        states = output.last_hidden_state[places]
        check_finite(states, "what the last layer returns")
        words = ids.roll(-1, dims=1)[places]
        values = _compare(logits_of(reference), dense, logits_of(model), states, words).cpu()
        executed = output.executed.transpose(0, 1).cpu() if routed else None
        of_text = counted.nonzero()[:, 0]
        for kind, mark in marks.items():
            number, own = mark.sum(dim=1, keepdim=True), mark[counted]
            tallies[kind].add(None if executed is None else executed[:, mark], int(number.sum()))
            sums = torch.zeros(len(ids), values.shape[1], dtype=values.dtype)
            sums.index_add_(0, of_text[own], values[own])
            lines[kind].append(torch.cat([number, sums], dim=1)[:, : len(SUMS[kind])])
    if not tallies["all"].tokens:
        raise ValueError("no document has a next token to compare at")
    kinds = [kind for kind in SUMS if tallies[kind].tokens]
    return Comparison(
        _hash(documents),
        {kind: pd.DataFrame(torch.cat(lines[kind]), columns=SUMS[kind]) for kind in kinds},
        {kind: tallies[kind].rates().skip for kind in kinds},
    )


def _hash(documents: Sequence[Document]) -> str:
    """Of what both models read, and of which tokens are answer tokens; 16 hex digits."""
    digest = hashlib.sha256()
    for document in documents:
        digest.update(f"{list(document.ids)} {list(document.answers)}\n".encode())
    return digest.hexdigest()[:16]


def _has_next(valid: Tensor) -> Tensor:
    """Positions (B, T) whose next token is there."""
    return torch.cat([valid[:, 1:], torch.zeros_like(valid[:, :1])], dim=1)


def _compare(
    reference_head: Callable[[Tensor], Tensor],
    dense: Tensor,
    head: Callable[[Tensor], Tensor],
    states: Tensor,
    words: Tensor,
) -> Tensor:
    """KL, agreement, loss and reference loss of each position, (n, 4) float64.

    Losses are those of ``words`` (n,).
    """
    parts = []
    for start in range(0, len(states), POSITIONS):
        part = slice(start, start + POSITIONS)
        expected = reference_head(dense[part]).float().log_softmax(dim=-1)
        actual = head(states[part]).float().log_softmax(dim=-1)
        kl = (expected.exp() * (expected - actual)).sum(dim=-1)
        same = expected.argmax(dim=-1) == actual.argmax(dim=-1)
        nexts = words[part, None]
        losses = [-scores.gather(1, nexts)[:, 0] for scores in (actual, expected)]
        parts.append(torch.stack([kl, same, *losses], dim=1).double())
    return torch.cat(parts)
