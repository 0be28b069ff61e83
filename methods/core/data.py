"""Documents for calibration, training and validation, as token ids.

A file is JSON Lines, one document per row, in one of four forms:

    {"text": "..."}                          one text; all its tokens are trained on
    {"prompt": "...", "completion": "..."}   two texts, joined by a space
    {"messages": [{"role": ..., "content": ...}, ...]}   a conversation, written by the tokenizer's
                                             chat template, or in Tulu's plain form without one
    {"fed": "...", "prompt": "...", "counts": [p, a]}
                                             a text as the harness feeds it, without EOS; the prompt
                                             at its beginning; and how many scored tokens each token
                                             of the prompt (p) and of the rest (a) stands for;
                                             without "counts" these are 1

Calibration also takes a NumPy file of int64 ids (N, T). A row may say its "task". A folder
NAME.tokens (``methods/core/tokens.py``) has the documents of such a file as ids.

A document has one BOS, if the tokenizer adds one, and one EOS. If its text already begins with the
BOS, as most chat templates write it, no second one is added. The same holds for an EOS at its end,
with or without white space after it. No document is longer than the backbone's window.

An *answer token* is a token whose output is scored: it predicts a token of an answer. The last
token of an answer predicts the EOS, which is not scored. So neither it nor the EOS is an answer
token.
"""

from __future__ import annotations

import warnings
from array import array
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedTokenizerBase

from methods.core.chat import assistant_turns, conversation
from methods.core.rows import check_row, read_rows
from methods.core.tokens import SUFFIX, Encoder, TokenFile, read_ids, tokenized_by
from methods.core.tokens import Document as Document


class Batch(NamedTuple):
    """Right-padded documents: ``ids`` (B, T) int64 and ``valid`` (B, T) bool, False on pads."""

    ids: Tensor
    valid: Tensor


@dataclass(frozen=True)
class Data:
    """The data that a method may look at; a file is read when it is first used.

    Args:
        tokenizer: Of the backbone; only texts need it.
        vocab_size: Of the backbone; ids are checked against it.
        max_length: Texts are cut to this number of tokens; ids (.npy) are taken as they are.
        window: The largest number of tokens that the backbone takes; documents are cut to it too.
            None: any number.
        calibration_file: .npy or .jsonl; None if the method needs none.
        training_file: .jsonl, or a folder .tokens, which is mapped into memory.
        validation_file: .jsonl.
        probe_file: .jsonl; texts in the form in which the harness feeds them.
    """

    tokenizer: PreTrainedTokenizerBase | None
    vocab_size: int
    max_length: int = 2048
    window: int | None = None
    calibration_file: Path | None = None
    training_file: Path | None = None
    validation_file: Path | None = None
    probe_file: Path | None = None

    def __post_init__(self) -> None:
        if self.max_length < 2:
            raise ValueError(f"max_length is {self.max_length}, must be at least 2")

    def calibration(
        self,
        batch_size: int | None = 16,
        rows: int | None = None,
        length: int | None = None,
        opening: bool = False,
    ) -> Iterator[Batch]:
        """Batches of the calibration documents, in their order.

        Args:
            batch_size: Documents per batch; None: all in one batch.
            rows: How many documents, from the first on; None: all.
            length: How many tokens, from the middle of each document (a text is cut to
                ``max_length`` first); shorter documents are left out. None: whole documents.
            opening: Whether these are the first tokens, with a begin token if there is one.

        Raises:
            ValueError: There is no such file, it does not fit the vocabulary, or it has too few
                documents.
        """
        documents: Sequence[Document] = self._calibration
        if length is not None:
            documents = [_part(d, length, opening) for d in documents if len(d.ids) >= length]
        if len(documents) < (rows or 1):
            least = "" if length is None else f" of at least {length} tokens"
            raise ValueError(
                f"{rows or 1} calibration documents{least} are asked for, "
                f"{self.calibration_file} holds {len(documents)}"
            )
        documents = documents[:rows]
        return batches(documents, batch_size or len(documents))

    def training(self) -> Sequence[Document]:
        """The training documents."""
        return self._training

    def validation(self) -> Sequence[Document]:
        """The validation documents; whoever makes the data keeps them apart from training."""
        return self._validation

    def probe(self) -> Sequence[Document]:
        """The documents on which skip rates are calibrated, in the form in which tasks are scored.

        Without a probe file these are the validation documents.

        Raises:
            ValueError: There is neither.
        """
        if self.probe_file is None and self.validation_file is None:
            raise ValueError("no probe and no validation file was given, and this row needs one")
        return self._validation if self.probe_file is None else self._probe

    @cached_property
    def _probe(self) -> Sequence[Document]:
        return self._read(self.probe_file, "probe")

    @cached_property
    def _calibration(self) -> Sequence[Document]:
        return self._read(self.calibration_file, "calibration")

    @cached_property
    def _training(self) -> Sequence[Document]:
        return self._read(self.training_file, "training")

    @cached_property
    def _validation(self) -> Sequence[Document]:
        return self._read(self.validation_file, "validation")

    def _read(self, path: Path | None, purpose: str) -> Sequence[Document]:
        if path is None:
            raise ValueError(f"no {purpose} file was given, and this row needs one")
        check_file(path, purpose)
        if path.suffix == SUFFIX:
            return TokenFile(path, self.encoding)
        if path.suffix == ".npy":
            return read_ids(path, self.vocab_size, self.window)
        documents = list(self.documents(path))
        if not documents:
            raise ValueError(f"{purpose} file {path} holds no document")
        if all(len(document.ids) < 2 for document in documents):
            raise ValueError(f"{purpose} file {path} holds no document of two tokens or more")
        return documents

    def documents(self, path: Path) -> Iterator[Document]:
        """The documents of a .jsonl, one after another while it is read."""
        rows, longest = read_rows(path), 0
        # Not all at once: the output of a tokenizer is much larger than ids.
        while part := list(islice(rows, 1000)):
            for document in self._encode(part):
                longest = max(longest, len(document.ids))
                yield document
        if longest == self.length < self.max_length:
            warnings.warn(
                f"{path}: documents are cut to the backbone's window of {longest} tokens, "
                f"not to {self.max_length}",
                stacklevel=2,
            )

    @property
    def length(self) -> int:
        """The number of tokens to which documents are cut."""
        return self.max_length if self.window is None else min(self.max_length, self.window)

    @property
    def encoding(self) -> str:
        """A digest of what turns texts into ids: the tokenizer and ``length``."""
        return tokenized_by(self.tokenizer, self.length)

    def _encode(self, rows: Sequence[tuple[Any, str]]) -> list[Document]:
        """Documents from rows, each row with its place in the file."""
        parts = [self._parts(row, where) for row, where in rows]
        encoder = self._encoder
        # A prompt begins as its text does, with or without a BOS of its own.
        own = [encoder.begins(text) for _, text in parts]
        texts = encoder.encode([text for _, text in parts], own)
        prompted = [n for n, (prompt, _) in enumerate(parts) if prompt]
        prompts = encoder.encode([parts[n][0] for n in prompted], [own[n] for n in prompted])
        leads = dict(zip(prompted, map(len, prompts), strict=True))
        documents = []
        for number, ((row, _), (_, text), ids) in enumerate(zip(rows, parts, texts, strict=True)):
            lead = leads.get(number, 0)
            closed, end = (ids, len(ids) + 1) if "fed" in row else encoder.close(text, ids)
            if "messages" in row:
                spans = self._assistant(row["messages"], text)
            else:
                # An answer's first token is predicted by the last token of its prompt.
                spans = [(max(0, lead - 1), end - 1)]
            cut = array("i", closed[: self.length])
            answers = [(first, min(stop, len(cut))) for first, stop in spans]
            answers = [(first, stop) for first, stop in answers if first < stop]
            if "messages" in row and not answers:
                # It is cut before the assistant speaks: all of it is prompt.
                lead = len(cut)
            documents.append(
                Document(
                    cut,
                    min(lead, self.length),
                    row.get("task", ""),
                    tuple(answers),
                    tuple(row.get("counts", (1.0, 1.0))),
                )
            )
        return documents

    @cached_property
    def _encoder(self) -> Encoder:
        assert self.tokenizer is not None
        return Encoder(self.tokenizer)

    def _assistant(self, messages: list[dict[str, str]], whole: str) -> list[tuple[int, int]]:
        """Positions that predict the assistant's words."""
        assert self.tokenizer is not None
        starts = self._encoder.starts(whole)
        spans = []
        for turn in assistant_turns(self.tokenizer, messages, whole):
            first, stop = (bisect_left(starts, place) for place in turn)
            spans.append((max(0, first - 1), stop - 1))
        return spans

    def _parts(self, row: Any, where: str) -> tuple[str, str]:
        """Prompt (may be empty) and whole text of a row."""
        if self.tokenizer is None:
            raise ValueError(f"{where}: the backbone has no tokenizer, give ids (.npy) instead")
        check_row(row, where)
        if "messages" in row:
            try:
                return "", conversation(self.tokenizer, row["messages"])
            except ValueError as error:
                raise ValueError(f"{where}: {error}") from error
        prompt = row.get("prompt", "")
        if "completion" in row:
            return prompt, f"{prompt} {row['completion']}" if prompt else row["completion"]
        return ("", row["text"]) if "text" in row else (prompt, row["fed"])


def check_file(path: Path, purpose: str) -> None:
    """Check that a file of documents exists and has a known ending.

    Raises:
        ValueError: It does not exist, or has another ending.
    """
    if path.suffix == SUFFIX:
        if not path.is_dir():
            raise ValueError(f"{path} is no whole folder of tokens: it does not exist")
    elif not path.is_file():
        raise ValueError(f"{purpose} file {path} does not exist")
    elif path.suffix not in (".jsonl", ".npy"):
        raise ValueError(f"{purpose} file {path} must end in .jsonl, {SUFFIX} or .npy")


def _part(document: Document, length: int, opening: bool) -> Document:
    """The first ``length`` tokens of a document, or those in its middle; it has no prompt."""
    start = 0 if opening else (len(document.ids) - length) // 2
    return Document(document.ids[start : start + length], 0)


def task_weights(documents: Sequence[Document]) -> dict[str, float]:
    """Task -> weight of each of its answer tokens, so that every task counts the same.

    The mean weight of an answer token is 1. A written solution has many answer tokens, a choice
    among words has one. Without weights a rate over answer tokens would be that of the tasks with
    long answers.

    Raises:
        ValueError: No document has an answer token.
    """
    numbers: dict[str, float] = {}
    for document in documents:
        numbers[document.task] = numbers.get(document.task, 0) + document.answer_count
    numbers = {task: number for task, number in numbers.items() if number}
    if not numbers:
        raise ValueError(
            "match 'split' needs documents with answers (prompt and completion, or messages)"
        )
    mean = sum(numbers.values()) / len(numbers)
    return {task: mean / number for task, number in numbers.items()}


def batches(documents: Sequence[Document], batch_size: int) -> Iterator[Batch]:
    """Right-padded batches in the given order; pads hold id 0."""
    for start in range(0, len(documents), batch_size):
        part = [
            torch.tensor(document.ids, dtype=torch.int64)
            for document in documents[start : start + batch_size]
        ]
        valid = [torch.ones_like(ids, dtype=torch.bool) for ids in part]
        yield Batch(*(pad_sequence(each, batch_first=True) for each in (part, valid)))
