"""Documents for calibration, training and validation, as token ids.

A file is JSON Lines, one document per row, in one of four forms:

    {"text": "..."}                          loss on every token
    {"prompt": "...", "completion": "..."}   both parts count; where one ends is kept
    {"messages": [{"role": ..., "content": ...}, ...]}   through the tokenizer's chat template,
                                             or in Tulu's plain form where it has none
    {"fed": "..."}                           exactly these tokens, no EOS: what a harness feeds

or, for calibration alone, a NumPy file of int64 ids (N, T), used as given.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase


class Document(NamedTuple):
    """Token ids of one document and how many of them belong to its prompt."""

    ids: Sequence[int]
    prompt: int


class Batch(NamedTuple):
    """Right-padded documents: ``ids`` (B, T) int64 and ``valid`` (B, T) bool, False on pads."""

    ids: Tensor
    valid: Tensor


@dataclass(frozen=True)
class Data:
    """What a method may look at; files are read when they are asked for.

    Args:
        tokenizer: Of the backbone; needed for text only.
        vocab_size: Of the backbone; ids are checked against it.
        max_length: Documents are cut to so many tokens.
        calibration_file: .npy or .jsonl; None if the method needs none.
        training_file: .jsonl.
        validation_file: .jsonl.
        probe_file: .jsonl; texts of the validation split as the harness feeds them.
    """

    tokenizer: PreTrainedTokenizerBase | None
    vocab_size: int
    max_length: int = 2048
    calibration_file: Path | None = None
    training_file: Path | None = None
    validation_file: Path | None = None
    probe_file: Path | None = None

    def calibration(
        self, batch_size: int | None = 16, rows: int | None = None, length: int | None = None
    ) -> Iterator[Batch]:
        """Batches of the calibration documents, in their order.

        Args:
            batch_size: Documents per batch; None: all in one.
            rows: The first so many documents; None: all.
            length: The so many tokens in the middle of each document (cut to ``max_length``), of
                longer ones only; None: whole documents.

        Raises:
            ValueError: There is no such file, it does not fit the vocabulary, or it holds fewer
                documents.
        """
        documents: Sequence[Document] = self._calibration
        if length is not None:
            documents = [_middle(d, length) for d in documents if len(d.ids) >= length]
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
        """The validation documents, disjoint from training by the data's maker."""
        return self._validation

    def probe(self) -> Sequence[Document]:
        """Tokens of the kind that is scored, on which skip rates are calibrated.

        Without a probe file these are the validation documents.
        """
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
        if not path.is_file():
            raise ValueError(f"{purpose} file {path} does not exist")
        if path.suffix == ".npy":
            return read_ids(path, self.vocab_size)
        if path.suffix != ".jsonl":
            raise ValueError(f"{purpose} file {path} must end in .jsonl or .npy")
        documents, rows = list[Document](), read_rows(path)
        while part := list(islice(rows, 1000)):  # a tokenizer's own output is large
            documents += self._encode(part)
        if not documents:
            raise ValueError(f"{purpose} file {path} holds no document")
        return documents

    def _encode(self, rows: Sequence[tuple[Any, str]]) -> list[Document]:
        """Rows of a file, each with its place, as token ids; EOS ends all but ``fed`` rows."""
        parts = [self._parts(row, where) for row, where in rows]
        prompts = self._ids([prompt for prompt, _ in parts if prompt])
        texts = self._ids([f"{prompt} {answer}" if prompt else answer for prompt, answer in parts])
        leads = iter([len(ids) for ids in prompts])
        documents = []
        eos = self.tokenizer.eos_token_id if self.tokenizer is not None else None
        for (row, _), (prompt, _), ids in zip(rows, parts, texts, strict=True):
            closed = ids
            if eos is not None and ids[-1:] != [eos] and "fed" not in row:
                closed = [*ids, eos]
            lead = next(leads) if prompt else 0
            cut = array("i", closed[: self.max_length])
            documents.append(Document(cut, min(lead, self.max_length)))
        return documents

    def _parts(self, row: Any, where: str) -> tuple[str, str]:
        """Prompt (may be empty) and answer of a row."""
        if self.tokenizer is None:
            raise ValueError(f"{where}: the backbone has no tokenizer, give ids (.npy) instead")
        if isinstance(row, dict):
            if "messages" in row:
                return "", self._chat(row["messages"])
            if "completion" in row:
                return str(row.get("prompt", "")), str(row["completion"])
            for name in ("text", "fed"):
                if name in row:
                    return "", str(row[name])
        raise ValueError(f"{where}: expected an object with text, completion, messages or fed")

    def _chat(self, messages: list[dict[str, str]]) -> str:
        """A conversation in the tokenizer's chat template; base models have none."""
        assert self.tokenizer is not None
        if self.tokenizer.chat_template:
            return str(self.tokenizer.apply_chat_template(messages, tokenize=False))
        return "".join(f"<|{turn['role']}|>\n{turn['content']}\n" for turn in messages)

    def _ids(self, texts: list[str]) -> list[list[int]]:
        assert self.tokenizer is not None or not texts
        if not texts or self.tokenizer is None:
            return []
        bos = self.tokenizer.bos_token
        # A chat template writes its own BOS, which must not be doubled.
        own = bool(bos) and texts[0].startswith(str(bos))
        encoded: list[list[int]] = self.tokenizer(
            texts, add_special_tokens=not own, return_attention_mask=False
        )["input_ids"]
        return encoded


def read_rows(path: Path) -> Iterator[tuple[Any, str]]:
    """The rows of a JSON Lines file with their place, for messages.

    Raises:
        ValueError: A line is not JSON in UTF-8.
    """
    with path.open("rb") as stream:
        for number, line in enumerate(stream, 1):
            if not line.strip():
                continue
            where = f"{path}, line {number}"
            try:
                row = json.loads(line.decode("utf-8"))
            except (json.JSONDecodeError, UnicodeDecodeError) as error:
                raise ValueError(f"{where}: not valid JSON: {error}") from error
            yield row, where


def read_ids(path: Path, vocab_size: int) -> list[Document]:
    """Documents from a NumPy file of ids (N, T).

    Raises:
        ValueError: Not two-dimensional integers, or an id outside the vocabulary.
    """
    try:
        ids = np.load(path, allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise ValueError(f"{path} is not a NumPy array file: {error}") from error
    if not isinstance(ids, np.ndarray) or not np.issubdtype(ids.dtype, np.integer):
        kind = getattr(ids, "dtype", type(ids).__name__)
        raise ValueError(f"{path}: calibration ids must be integers, not {kind}")
    if ids.ndim != 2 or 0 in ids.shape:
        raise ValueError(f"{path}: calibration ids must have shape (N, T), not {ids.shape}")
    low, high = int(ids.min()), int(ids.max())
    if low < 0 or high >= vocab_size:
        raise ValueError(
            f"{path}: ids reach from {low} to {high}, the vocabulary is 0 to {vocab_size - 1}"
        )
    return [Document(row, 0) for row in ids.tolist()]


def _middle(document: Document, length: int) -> Document:
    """A window of ``length`` tokens; its prompt is no longer told apart."""
    start = (len(document.ids) - length) // 2
    return Document(document.ids[start : start + length], 0)


def batches(documents: Sequence[Document], batch_size: int) -> Iterator[Batch]:
    """Right-padded batches in the given order; pads hold id 0."""
    for start in range(0, len(documents), batch_size):
        part = [document.ids for document in documents[start : start + batch_size]]
        length = max(map(len, part))
        ids = torch.zeros(len(part), length, dtype=torch.int64)
        valid = torch.zeros(len(part), length, dtype=torch.bool)
        for row, tokens in enumerate(part):
            ids[row, : len(tokens)] = torch.tensor(tokens)
            valid[row, : len(tokens)] = True
        yield Batch(ids, valid)
