"""Documents as token ids, and folders of them that are mapped into memory, not read.

NAME.tokens/
    ids.bin      int32, the documents one behind the other
    starts.npy   (N + 1,) int64, where each begins in it
    runs.npy     (R, 2) int32, first and stop of every run of answer tokens
    firsts.npy   (N + 1,) int64, where each document's runs begin
    known.npy    (N, 2) int32, tokens of the prompt and number of the task
    about.json   names of the tasks, and what made the tokens
"""

from __future__ import annotations

import hashlib
import json
from array import array
from collections.abc import Iterable, Sequence
from pathlib import Path
from tokenize import TokenError
from typing import Any, NamedTuple, overload

import numpy as np
from transformers import PreTrainedTokenizerBase

from methods.core.jsonfile import read_json

SUFFIX = ".tokens"
TABLES = ("starts", "runs", "firsts", "known")


class Document(NamedTuple):
    """Token ids of one document and what is known of them.

    Args:
        ids: Tokens.
        prompt: How many of them belong to its prompt, for the loss.
        task: Of which task it is; documents without one form a task of their own.
        answers: (first, stop) of every run of answer tokens.
        counts: How many scored tokens each token of its prompt, and each one behind it, stands for
            where skip rates are calibrated; folders do not keep them.
    """

    ids: Sequence[int]
    prompt: int
    task: str = ""
    answers: Sequence[tuple[int, int]] = ()
    counts: tuple[float, float] = (1.0, 1.0)

    @property
    def answer_tokens(self) -> int:
        """Their number."""
        return sum(stop - first for first, stop in self.answers)

    @property
    def answer_count(self) -> float:
        """How many scored tokens they stand for."""
        count = 0.0
        for first, stop in self.answers:
            inside = max(0, min(stop, self.prompt) - first)
            count += inside * self.counts[0] + (stop - first - inside) * self.counts[1]
        return count

    @property
    def prompting(self) -> list[tuple[int, int]]:
        """(first, stop) of every run of positions before or between the answer tokens."""
        if not self.answers:
            return [(0, len(self.ids))]
        ends = [0, *(stop for _, stop in self.answers)]
        starts = [first for first, _ in self.answers]
        return [(end, start) for end, start in zip(ends, starts, strict=False) if end < start]


class TokenFile(Sequence[Document]):
    """The documents of a folder; each is made where it is asked for.

    Args:
        folder: As :func:`write_tokens` left it.
        encoding: What the tokens must have been made by, see :func:`tokenized_by`.

    Raises:
        ValueError: The folder is missing or incomplete, or was made otherwise.
    """

    def __init__(self, folder: Path, encoding: str) -> None:
        try:
            about = read_json(folder / "about.json")
            self._starts, self._runs, self._firsts, self._known = (
                np.load(folder / f"{name}.npy", mmap_mode="r") for name in TABLES
            )
            self._ids = np.memmap(folder / "ids.bin", dtype=np.int32, mode="r")
            whole = len(self._ids) == self._starts[-1]
        except (OSError, ValueError) as error:
            raise ValueError(f"{folder} is no whole folder of tokens: {error}") from error
        if not whole:
            raise ValueError(f"{folder} is no whole folder of tokens: ids are missing")
        if about["encoding"] != encoding:
            raise ValueError(
                f"{folder} was made with another tokenizer or maximum length; make it anew"
            )
        self._tasks: list[str] = about["tasks"]

    def __len__(self) -> int:
        return len(self._known)

    @overload
    def __getitem__(self, which: int) -> Document: ...

    @overload
    def __getitem__(self, which: slice) -> list[Document]: ...

    def __getitem__(self, which: int | slice) -> Document | list[Document]:
        if isinstance(which, slice):
            return [self[number] for number in range(len(self))[which]]
        number = range(len(self))[which]
        ids = array("i", self._ids[self._starts[number] : self._starts[number + 1]].tobytes())
        runs = self._runs[self._firsts[number] : self._firsts[number + 1]].tolist()
        prompt, task = self._known[number].tolist()
        return Document(ids, prompt, self._tasks[task], tuple(map(tuple, runs)))


def write_tokens(documents: Iterable[Document], folder: Path, encoding: str) -> int:
    """Write a folder that :class:`TokenFile` reads.

    Args:
        documents: In their order; one at a time is held.
        folder: Empty.
        encoding: See :func:`tokenized_by`.

    Returns:
        The number of documents.
    """
    starts, firsts = array("q", [0]), array("q", [0])
    runs, known, tasks = array("i"), array("i"), dict[str, int]()
    with (folder / "ids.bin").open("wb") as stream:
        for document in documents:
            stream.write(np.asarray(document.ids, dtype=np.int32).tobytes())
            starts.append(starts[-1] + len(document.ids))
            for run in document.answers:
                runs.extend(run)
            firsts.append(len(runs) // 2)
            known.extend((document.prompt, tasks.setdefault(document.task, len(tasks))))
    made: dict[str, Any] = {
        "starts": np.array(starts), "runs": np.array(runs).reshape(-1, 2),
        "firsts": np.array(firsts), "known": np.array(known).reshape(-1, 2),
    }  # fmt: skip
    for name in TABLES:
        np.save(folder / f"{name}.npy", made[name])
    about = {"tasks": list(tasks), "encoding": encoding}
    (folder / "about.json").write_text(json.dumps(about), encoding="utf-8")
    return len(starts) - 1


def tokenized_by(tokenizer: PreTrainedTokenizerBase | None, max_length: int) -> str:
    """A digest of what makes a document's tokens: tokenizer, chat template, maximum length."""
    parts: list[Any] = [max_length]
    if tokenizer is not None:
        parts += [tokenizer.chat_template, tokenizer.bos_token, tokenizer.eos_token]
        # What a call last asked for is no part of it.
        made = json.loads(tokenizer.backend_tokenizer.to_str())
        parts.append({name: made[name] for name in made if name not in ("padding", "truncation")})
    text = json.dumps(parts, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def read_ids(path: Path, vocab_size: int, window: int | None = None) -> list[Document]:
    """Documents from a NumPy file of ids (N, T).

    Raises:
        ValueError: Not two-dimensional integers, more of them in a document than the backbone takes
            (``window``), or an id outside the vocabulary.
    """
    try:
        # Mapped: a header that promises more than the file holds must not take memory.
        ids = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError, TokenError, SyntaxError, OverflowError) as error:
        raise ValueError(f"{path} is not a NumPy array file: {error}") from error
    if not isinstance(ids, np.ndarray) or not np.issubdtype(ids.dtype, np.integer):
        kind = getattr(ids, "dtype", type(ids).__name__)
        raise ValueError(f"{path}: calibration ids must be integers, not {kind}")
    if ids.ndim != 2 or len(ids) < 1 or ids.shape[1] < 2:
        raise ValueError(
            f"{path}: calibration ids must have shape (N, T), T at least 2, not {ids.shape}"
        )
    if window is not None and ids.shape[1] > window:
        raise ValueError(
            f"{path}: documents of {ids.shape[1]} tokens are longer than the backbone's window of "
            f"{window} (max_position_embeddings)"
        )
    low, high = int(ids.min()), int(ids.max())
    if low < 0 or high >= vocab_size:
        raise ValueError(
            f"{path}: ids reach from {low} to {high}, the vocabulary is 0 to {vocab_size - 1}"
        )
    return [Document(row, 0) for row in ids.tolist()]


class Encoder:
    """Texts as ids: one BOS before each, one EOS behind each document, whatever the tokenizer adds.

    Args:
        tokenizer: Of the backbone; without an EOS it closes nothing.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self.tokenizer = tokenizer
        # Each is looked up anew by a tokenizer.
        self.bos, self.eos = str(tokenizer.bos_token or ""), str(tokenizer.eos_token or "")
        self.eos_id: int | None = tokenizer.eos_token_id
        special, plain = (
            tokenizer("a", add_special_tokens=adds)["input_ids"] for adds in (True, False)
        )
        self.closes = special[-1:] == [self.eos_id] != plain[-1:]

    def begins(self, text: str) -> bool:
        """Whether a text has a BOS of its own, as most chat templates write it."""
        return bool(self.bos) and text.startswith(self.bos)

    def encode(self, texts: Sequence[str], own: Sequence[bool]) -> list[list[int]]:
        """Ids of every text, with the BOS that the tokenizer puts before it and no EOS behind it.

        Args:
            texts: Of documents.
            own: Which of them have a BOS of their own and must not get a second one.
        """
        ids: list[list[int]] = [[] for _ in texts]
        for alone in set(own):
            numbers = [n for n, has in enumerate(own) if has is alone]
            part = [texts[number] for number in numbers]
            made = self.tokenizer(part, add_special_tokens=not alone, return_attention_mask=False)
            stop = -1 if self.closes and not alone else None
            for number, one in zip(numbers, made["input_ids"], strict=True):
                ids[number] = one[:stop]
        return ids

    def close(self, text: str, ids: list[int]) -> tuple[list[int], int]:
        """A document with an EOS at its end, and how many tokens stand before that.

        Args:
            text: May end with an EOS, and white space behind it, as a chat template writes them.
            ids: Of the text.
        """
        if self.eos_id is None:
            return ids, len(ids)
        if self.eos_id in ids and text.rstrip().endswith(self.eos):
            return ids, len(ids) - 1 - ids[::-1].index(self.eos_id)
        return [*ids, self.eos_id], len(ids)

    def starts(self, text: str) -> list[int]:
        """The character of a text at which each of its tokens begins."""
        special = not self.begins(text)
        made = self.tokenizer(text, add_special_tokens=special, return_offsets_mapping=True)
        offsets = made["offset_mapping"]
        return [start for start, _ in offsets[: -1 if self.closes and special else None]]
