"""A GGUF file becomes a plain model folder: dequantized weights, config, tokenizer.

What comes out are the numbers that the file stands for, in float32; a file of 4-bit weights gives
the 4-bit model, not the one it was made from.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

# GGUF's names of the architectures whose layers we know; Mistral's files say llama.
ARCHITECTURES = ("llama", "qwen2", "qwen3")


def convert(file: Path, folder: Path) -> None:
    """Write the model of a GGUF file as config, safetensors and tokenizer.

    Args:
        file: Of a causal LM.
        folder: Existing; what is in it stays.

    Raises:
        ValueError: The file is damaged, of an architecture that is not known, quantized in a way
            that cannot be read, or lacks weights or a tokenizer.
    """
    check(file)
    with _one_sentence(file):
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            file.parent, gguf_file=file.name, dtype=torch.float32, output_loading_info=True,
            local_files_only=True,
        )  # fmt: skip
        tokenizer = AutoTokenizer.from_pretrained(
            file.parent, gguf_file=file.name, local_files_only=True
        )
    model, report = loaded
    absent = sorted(report["missing_keys"])
    if model.config.tie_word_embeddings:
        absent = [name for name in absent if name != "lm_head.weight"]
    if absent:
        raise ValueError(f"{file} lacks weights, first {absent[0]}")
    # What was dequantized is a plain model; transformers still takes it for a quantized one.
    del model.config.quantization_config
    model.hf_quantizer, model.is_quantized = None, False
    model.config.rms_norm_eps = shortest(model.config.rms_norm_eps)
    model.config._name_or_path = ""
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    _drop_tokens(folder / "tokenizer.json", model.config.vocab_size)


@contextmanager
def _one_sentence(file: Path) -> Iterator[None]:
    try:
        yield
    # tokenizers raises plain Exception.
    except Exception as error:
        raise ValueError(f"{file} cannot be read: {' '.join(str(error).split())}") from error


def check(file: Path) -> None:
    """Refuse a file before its weights are read.

    Raises:
        ValueError: It is no whole GGUF file, of an architecture that is not known, or holds what
            would be lost.
    """
    from gguf import GGUFReader

    try:
        reader = GGUFReader(file)
    except (OSError, ValueError, IndexError, KeyError) as error:
        raise ValueError(f"{file} is no whole GGUF file: {' '.join(str(error).split())}") from error
    name = _field(reader, "general.architecture")
    if name not in ARCHITECTURES or _field(reader, f"{name}.expert_count"):
        kind = "mixture of experts" if name in ARCHITECTURES else name
        raise ValueError(
            f"{file} holds a model of architecture '{kind}' (known: {', '.join(ARCHITECTURES)})"
        )
    odd = next(_unread(reader, name), None)
    if odd is not None:
        raise ValueError(f"{file} holds {odd}, which cannot be read: the model would be another")


def _unread(reader: Any, architecture: str) -> Iterator[str]:
    """What transformers would leave out without a word: rotary scaling, by its old name too, a view
    of later tokens, and a Llama's biases.
    """
    for field in reader.fields:
        if field.endswith(".rope.scale_linear") and _field(reader, field) != 1.0:
            yield f"{field} = {_field(reader, field)}"
        if field.endswith(".attention.causal") and not _field(reader, field):
            yield f"{field} = false"
        if ".rope.scaling." in field and field.endswith((".type", ".factor")):
            value = _field(reader, field)
            if value not in ("none", 1.0):
                yield f"{field} = {value}"
    for tensor in reader.tensors:
        bias = architecture == "llama" and tensor.name.endswith(".bias")
        if bias or tensor.name.startswith("rope_"):
            yield tensor.name


def _drop_tokens(file: Path, size: int) -> None:
    """Take tokens without an embedding out of a tokenizer.

    transformers gives every byte-level vocabulary the end of text of GPT-2, also where the file has
    none.
    """
    content = json.loads(file.read_text(encoding="utf-8"))
    content["added_tokens"] = [token for token in content["added_tokens"] if token["id"] < size]
    file.write_text(json.dumps(content, ensure_ascii=False, indent=2), encoding="utf-8")


def shortest(value: float) -> float:
    """The shortest decimal number that is the same in float32, in which GGUF keeps settings."""
    return float(str(np.float32(value)))


def _field(reader: Any, name: str) -> Any:
    field = reader.get_field(name)
    return None if field is None else field.contents()
