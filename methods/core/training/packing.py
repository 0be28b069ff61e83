"""From documents to batches: which documents, in which order, on which rows of a tensor."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from methods.core.data import Document
from methods.core.seeds import generator

Row = list[Document]


class Rows(NamedTuple):
    """Documents laid out for one forward pass; each tensor is (B, T).

    ``ids``, int64.
    ``positions``, int64: start again at 0 with every document; by this the attention mask separates
    packed documents.
    ``counted``, bool: True where a position predicts a token of its own document.
    ``weights``, float32: the loss weight of that prediction.
    ``prompting``, float32: 1 on counted prompt tokens, 0 elsewhere.
    ``answers``, float32: on answer tokens the weight of their task, 0 elsewhere.
    """

    ids: Tensor
    positions: Tensor
    counted: Tensor
    weights: Tensor
    prompting: Tensor
    answers: Tensor

    def share(self, kind: str) -> Tensor:
        """Weight (B, T) of each position in a kind: ``"pooled"``, ``"prompt"`` or ``"answer"``."""
        if kind == "pooled":
            return self.counted.float()
        return self.prompting if kind == "prompt" else self.answers

    def to(self, device: torch.device) -> Rows:
        """The same rows on a device."""
        return Rows(*(part.to(device, non_blocking=True) for part in self))


def document_batches(lengths: Sequence[int], batch_tokens: int, seed: int) -> Iterator[list[int]]:
    """Endless batches of document numbers; every epoch has a new order of all documents.

    Args:
        lengths: Tokens per document.
        batch_tokens: A batch ends before it would hold more tokens than this.
        seed: Of the order.
    """
    epoch, batch, filled = 0, list[int](), 0
    while True:
        rng = generator(seed, f"order of epoch {epoch}")
        for number in torch.randperm(len(lengths), generator=rng).tolist():
            if batch and filled + lengths[number] > batch_tokens:
                yield batch
                batch, filled = [], 0
            batch.append(number)
            filled += lengths[number]
        epoch += 1


def lay_out(
    documents: Sequence[Document],
    length: int,
    prompt_weight: float,
    tasks: Mapping[str, float] | None = None,
) -> Rows:
    """Pack documents into rows and make their tensors.

    Args:
        documents: At least one.
        length: Row length T, see :func:`pack`.
        prompt_weight: Loss weight of predictions inside a prompt; the others weigh 1.
        tasks: Task -> weight of its answer tokens; None: 1.
    """
    return stack(pack(documents, length), length, prompt_weight, tasks)


def pack(documents: Sequence[Document], length: int) -> list[Row]:
    """Documents on rows: each goes to the first row with room, in their order.

    Args:
        documents: Any number.
        length: Tokens per row; a longer document makes all rows longer. 0: one document per row.
    """
    rows: list[Row] = []
    room: list[int] = []
    width = max([length, *(len(document.ids) for document in documents)])
    for document in documents:
        need = len(document.ids)
        fitting = (n for n, free in enumerate(room) if free >= need) if length else iter(())
        place = next(fitting, None)
        if place is None:
            rows.append([])
            room.append(width)
            place = len(rows) - 1
        rows[place].append(document)
        room[place] -= need
    return rows


def deal(rows: Sequence[Row], processes: int) -> list[list[Row]]:
    """The rows of each process.

    The longest row is dealt first, each to the process with the fewest tokens; each process then
    has its rows in their order.
    """
    shares = [list[int]() for _ in range(processes)]
    filled = [0] * processes
    for number in sorted(range(len(rows)), key=lambda n: _tokens(rows[n]), reverse=True):
        least = filled.index(min(filled))
        shares[least].append(number)
        filled[least] += _tokens(rows[number])
    return [[rows[number] for number in sorted(share)] for share in shares]


def split(rows: Sequence[Row], most: int) -> list[list[Row]]:
    """Rows by forward pass; rows of similar length are together.

    There is at least one pass; it has no rows if there are none.

    Args:
        rows: Any number.
        most: Most positions of a pass, pads included; a longer row has a pass of its own. 0: all
            rows are one pass, in their order.
    """
    if not most or not rows:
        return [list(rows)]
    passes: list[list[Row]] = []
    for row in sorted(rows, key=_tokens, reverse=True):
        if passes and (len(passes[-1]) + 1) * _tokens(passes[-1][0]) <= most:
            passes[-1].append(row)
        else:
            passes.append([row])
    return passes


def stack(
    rows: Sequence[Row],
    length: int,
    prompt_weight: float,
    tasks: Mapping[str, float] | None = None,
) -> Rows:
    """Tensors of packed rows (B, T), T the longest row; arguments as in :func:`lay_out`."""
    used = max(map(_tokens, rows))
    # Cut after stacking: on tensors of another layout the loss rounds otherwise, and published
    # weights would change.
    width = max(length, used)
    tensors = [_row(row, width, prompt_weight, tasks or {}) for row in rows]
    return Rows(*(torch.stack(parts)[:, :used] for parts in zip(*tensors, strict=True)))


def _tokens(row: Row) -> int:
    return sum(len(document.ids) for document in row)


def _predicting_prompt(document: Document) -> list[tuple[int, int]]:
    """(first, stop) of every run of positions that predict a token of a prompt."""
    if document.prompt:
        # Position t predicts token t + 1: inside the prompt while t + 1 is.
        return [(0, document.prompt - 1)]
    # A conversation has no one prompt: all but the assistant's words count as such.
    return document.prompting if document.answers else []


def _row(documents: Row, width: int, prompt_weight: float, tasks: Mapping[str, float]) -> Rows:
    """One row of :func:`stack`; each tensor is (width,)."""
    ids, positions = list[int](), list[int]()
    counted = np.zeros(width, dtype=np.bool_)
    weights, prompting, answers = np.zeros((3, width), dtype=np.float32)
    for document in documents:
        start, count = len(ids), len(document.ids)
        if not count:
            continue
        ids += document.ids
        positions += range(count)
        last = start + count - 1
        counted[start:last] = True
        weights[start:last] = 1.0
        for first, stop in _predicting_prompt(document):
            weights[start + first : min(start + stop, last)] = prompt_weight
        for first, stop in document.prompting:
            prompting[start + first : min(start + stop, last)] = 1.0
        for first, stop in document.answers:
            answers[start + first : min(start + stop, last)] = tasks.get(document.task, 1.0)
    pads = width - len(ids)
    # Pads are one more document, with positions from 0: no real token reads them; none counts.
    return Rows(
        torch.tensor(ids + [0] * pads),
        torch.tensor(positions + list(range(pads))),
        *map(torch.from_numpy, (counted, weights, prompting, answers)),
    )
