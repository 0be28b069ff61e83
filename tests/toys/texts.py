"""Words of the toys: a tokenizer, documents, files of data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from methods.core.data import Batch, Data, Document, batches

# Ids 0 to 59 are words: id 0, which the harness pads with, is a real token.
WORDS = [f"w{n}" for n in range(60)]
SPECIAL = ["<unk>", "<bos>", "<eos>", "<pad>"]
UNK, BOS, EOS, PAD = range(60, 64)
VOCABULARY = 64


def make_tokenizer(extra: int = 0, form: str = "$A") -> PreTrainedTokenizerFast:
    """A tokenizer that splits at spaces.

    Args:
        extra: How many tokens it has beyond the embeddings of the toys.
        form: What it puts around a text, such as ``<bos> $A``.
    """
    words = [*WORDS, *SPECIAL, *(f"x{n}" for n in range(extra))]
    core = Tokenizer(models.WordLevel({w: n for n, w in enumerate(words)}, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    ends = [("<bos>", BOS), ("<eos>", EOS)]
    core.post_processor = processors.TemplateProcessing(single=form, special_tokens=ends)
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        unk_token="<unk>",
        bos_token="<bos>",
        eos_token="<eos>",
        pad_token="<pad>",
        clean_up_tokenization_spaces=False,
    )


def ids_of(lengths: list[int], seed: int = 0) -> list[list[int]]:
    """Documents of random words, by their lengths."""
    rng = np.random.default_rng(seed)
    return [rng.integers(0, 60, length).tolist() for length in lengths]


def documents(number: int = 40, seed: int = 3, longest: int = 13) -> list[Document]:
    """Random documents, whose answers begin after 0 to 3 tokens."""
    rng = torch.Generator().manual_seed(seed)
    texts = []
    for _ in range(number):
        length = int(torch.randint(4, longest, (), generator=rng))
        ids = torch.randint(0, 60, (length,), generator=rng).tolist()
        texts.append(Document(ids, int(torch.randint(0, 4, (), generator=rng))))
    return texts


def calibration_data(documents: list[list[int]]) -> Data:
    """Data whose calibration documents are these."""
    data = Data(None, VOCABULARY)
    data.__dict__["_calibration"] = [Document(ids, 0) for ids in documents]
    return data


class PaddedTexts:
    """Calibration documents in batches of ``batch_size``; pads hold ``pad``."""

    def __init__(self, documents: list[list[int]], batch_size: int = 4, pad: int = 0) -> None:
        self.documents, self.batch_size, self.pad = documents, batch_size, pad

    def calibration(self) -> list[Batch]:
        parts = batches([Document(ids, 0) for ids in self.documents], self.batch_size)
        return [Batch(b.ids.masked_fill(~b.valid, self.pad), b.valid) for b in parts]


def sentence(rng: np.random.Generator, length: int) -> str:
    """``length`` random words."""
    return " ".join(f"w{n}" for n in rng.integers(0, 60, length))


def write_jsonl(file: Path, rows: list[Any]) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return file


def make_data(folder: Path) -> dict[str, Path]:
    """Write calibration ids, prompts with completions for three splits, and a probe file."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(1)
    files = {"ids": folder / "ids.npy"}
    np.save(files["ids"], rng.integers(0, 60, (12, 16)))
    for split, size in (("calibration", 24), ("training", 64), ("validation", 24)):
        rows = [
            {"prompt": sentence(rng, int(rng.integers(3, 9))), "completion": sentence(rng, 3)}
            for _ in range(size)
        ]
        files[split] = write_jsonl(folder / f"{split}.jsonl", rows)
    texts = [sentence(rng, int(rng.integers(6, 13))) for _ in range(24)]
    probes = [{"prompt": " ".join(text.split()[:-3]), "fed": text} for text in texts]
    files["probe"] = write_jsonl(folder / "probe.jsonl", probes)
    return files
