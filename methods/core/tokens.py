"""Documents as token ids, and folders of documents that are mapped into memory.

NAME.tokens/
    ids.bin      int32, the ids of all documents in their order
    starts.npy   (N + 1,) int64, where each document begins in ids.bin
    runs.npy     (R, 2) int32, first and stop of every run of answer tokens
    firsts.npy   (N + 1,) int64, where the runs of each document begin in runs.npy
    known.npy    (N, 2) int32, number of prompt tokens, and number of the task
    about.json   names of the tasks, and a digest of what turned texts into ids
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
import numpy.typing as npt
from transformers import PreTrainedTokenizerBase

from methods.core.jsonfile import read_json

SUFFIX = ".tokens"
TABLES = ("starts", "runs", "firsts", "known")


class Document(NamedTuple):
    """Token ids of one document, and facts about them.

    Args:
        ids: Token ids.
        prompt: Number of its prompt tokens, for the loss.
        task: Name of its task; documents without one share the task ``""``.
        answers: (first, stop) of every run of answer tokens.
        counts: How many scored tokens each token of the prompt, and each later token, stands for
            when skip rates are calibrated; folders do not store them.
    """

    ids: Sequence[int]
    prompt: int
    task: str = ""
    answers: Sequence[tuple[int, int]] = ()
    counts: tuple[float, float] = (1.0, 1.0)

    @property
    def answer_tokens(self) -> int:
        """Number of its answer tokens."""
        return sum(stop - first for first, stop in self.answers)

    @property
    def answer_count(self) -> float:
        """How many scored tokens its answer tokens stand for."""
        count = 0.0
        for first, stop in self.answers:
            inside = max(0, min(stop, self.prompt) - first)
            count += inside * self.counts[0] + (stop - first - inside) * self.counts[1]
        return count

    @property
    def prompting(self) -> list[tuple[int, int]]:
        """(first, stop) of every run of prompt tokens: before and between answer tokens.

        In a conversation, which has no one prompt, what follows the last answer is one too, unless
        only the closing token follows.
        """
        if not self.answers:
            return [(0, len(self.ids))]
        ends = [0, *(stop for _, stop in self.answers)]
        starts = [first for first, _ in self.answers]
        runs = [*zip(ends[:-1], starts, strict=True)]
        last = len(self.ids) - 1
        if not self.prompt and ends[-1] + 1 < last:
            runs.append((ends[-1], last))
        return [(first, stop) for first, stop in runs if first < stop]


class TokenFile(Sequence[Document]):
    """The documents of a folder; a document is read when it is used.

    Args:
        folder: Written by :func:`write_tokens`.
        encoding: The expected digest, see :func:`tokenized_by`.

    Raises:
        ValueError: The folder is missing or incomplete, or has another digest.
    """

    def __init__(self, folder: Path, encoding: str) -> None:
        try:
            about = read_json(folder / "about.json")
            self._starts, self._runs, self._firsts, self._facts = (
                np.load(folder / f"{name}.npy", mmap_mode="r") for name in TABLES
            )
            self._ids = np.memmap(folder / "ids.bin", dtype=np.int32, mode="r")
            whole = (
                {"encoding", "tasks"} <= set(about)
                and len(self._starts) == len(self._firsts) == len(self._facts) + 1
                and len(self._ids) == self._starts[-1]
                and len(self._runs) == self._firsts[-1]
            )
        except (OSError, ValueError, EOFError, IndexError, TypeError) as error:
            raise ValueError(f"{folder} is no whole folder of tokens: {error}") from error
        if not whole:
            raise ValueError(f"{folder} is no whole folder of tokens: its files differ in length")
        if about["encoding"] != encoding:
            raise ValueError(
                f"{folder} was made with another tokenizer or maximum length; make it anew"
            )
        self._tasks: list[str] = about["tasks"]

    def __len__(self) -> int:
        return len(self._facts)

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
        prompt, task = self._facts[number].tolist()
        return Document(ids, prompt, self._tasks[task], tuple(map(tuple, runs)))


def write_tokens(
    documents: Iterable[Document], folder: Path, encoding: str
) -> npt.NDArray[np.int64]:
    """Write a folder that :class:`TokenFile` reads.

    Args:
        documents: In their order; only one at a time is in memory.
        folder: Empty.
        encoding: See :func:`tokenized_by`.

    Returns:
        The number of tokens of each document (N,).

    Raises:
        ValueError: A document says what its tokens stand for, as a probe's may.
    """
    starts, firsts = array("q", [0]), array("q", [0])
    runs, facts, tasks = array("i"), array("i"), dict[str, int]()
    with (folder / "ids.bin").open("wb") as stream:
        for number, document in enumerate(documents, 1):
            if document.counts != (1, 1):
                raise ValueError(
                    f"document {number} has 'counts', which a folder of tokens does not keep: "
                    "give the .jsonl itself"
                )
            stream.write(np.asarray(document.ids, dtype=np.int32).tobytes())
            starts.append(starts[-1] + len(document.ids))
            for run in document.answers:
                runs.extend(run)
            firsts.append(len(runs) // 2)
            facts.extend((document.prompt, tasks.setdefault(document.task, len(tasks))))
    tables: dict[str, Any] = {
        "starts": np.array(starts), "runs": np.array(runs).reshape(-1, 2),
        "firsts": np.array(firsts), "known": np.array(facts).reshape(-1, 2),
    }  # fmt: skip
    for name in TABLES:
        np.save(folder / f"{name}.npy", tables[name])
    about = {"tasks": list(tasks), "encoding": encoding}
    (folder / "about.json").write_text(json.dumps(about), encoding="utf-8")
    return np.diff(tables["starts"])


def tokenized_by(tokenizer: PreTrainedTokenizerBase | None, max_length: int) -> str:
    """A digest of what makes a document's tokens: tokenizer, chat template, maximum length."""
    parts: list[Any] = [max_length]
    if tokenizer is not None:
        parts += [tokenizer.chat_template, tokenizer.bos_token, tokenizer.eos_token]
        # Padding and truncation are settings of the last call, not of the tokenizer.
        backend = json.loads(tokenizer.backend_tokenizer.to_str())
        parts.append({k: v for k, v in backend.items() if k not in ("padding", "truncation")})
    text = json.dumps(parts, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def read_ids(path: Path, vocab_size: int, window: int | None = None) -> list[Document]:
    """Documents from a NumPy file of ids (N, T).

    Raises:
        ValueError: The file has no two-dimensional array of integers, a document is longer than
            ``window``, or an id is outside the vocabulary.
    """
    try:
        # Mapped: the header of a damaged file may ask for more memory than there is.
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
    """Turns texts into ids, with one BOS and one EOS per document, for any tokenizer.

    Tokenizers differ in what they add themselves.

    Args:
        tokenizer: Of the backbone; if it has no EOS none is added.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self.tokenizer = tokenizer
        # Stored here, as a tokenizer looks them up again at every access.
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
        """Ids of every text, with the tokenizer's BOS and without EOS.

        Args:
            texts: Of documents.
            own: Which texts begin with a BOS; they get no second one.
        """
        ids: list[list[int]] = [[] for _ in texts]
        for has_bos in set(own):
            numbers = [number for number, value in enumerate(own) if value is has_bos]
            part = [texts[number] for number in numbers]
            encoded = self.tokenizer(
                part, add_special_tokens=not has_bos, return_attention_mask=False
            )
            stop = -1 if self.closes and not has_bos else None
            for number, text_ids in zip(numbers, encoded["input_ids"], strict=True):
                ids[number] = text_ids[:stop]
        return ids

    def close(self, text: str, ids: list[int]) -> tuple[list[int], int]:
        """Ids of a document with an EOS at its end, and the number of tokens before the EOS.

        Args:
            text: A chat template may have ended it with an EOS, and with white space after that.
            ids: Of the text.
        """
        if self.eos_id is None:
            return ids, len(ids)
        if self.eos_id in ids and text.rstrip().endswith(self.eos):
            return ids, len(ids) - 1 - ids[::-1].index(self.eos_id)
        return [*ids, self.eos_id], len(ids)

    def starts(self, text: str) -> list[int]:
        """The place in a text, in characters, at which each of its tokens begins."""
        special = not self.begins(text)
        encoded = self.tokenizer(text, add_special_tokens=special, return_offsets_mapping=True)
        offsets = encoded["offset_mapping"]
        return [start for start, _ in offsets[: -1 if self.closes and special else None]]
