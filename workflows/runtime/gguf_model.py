"""A GGUF file becomes a plain model folder: dequantized weights, config, tokenizer.

What comes out are the numbers that the file stands for, in float32; a file of 4-bit weights gives
the 4-bit model, not the one it was made from.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from methods.core.model.folder import read_tokenizer
from workflows.runtime.gguf_header import Header, read_header
from workflows.runtime.gguf_tokenizer import check_same, check_tokenizer, write_tokenizer


def convert(file: Path, folder: Path) -> None:
    """Write the model of a GGUF file as config, safetensors and tokenizer.

    Args:
        file: Of a causal LM; what lies beside it is not read.
        folder: Existing; what is in it stays.

    Raises:
        ValueError: The file is damaged, of an architecture that is not known, quantized in a way
            that cannot be read, lacks weights or a tokenizer, or holds what would be lost.
    """
    header = check(file)
    with _one_sentence(file):
        model = _load(header)
    # What was dequantized is a plain model; transformers still takes it for a quantized one.
    del model.config.quantization_config
    model.hf_quantizer, model.is_quantized = None, False
    model.config.rms_norm_eps = shortest(model.config.rms_norm_eps)
    model.config._name_or_path = ""
    _set_ends(model, header)
    model.save_pretrained(folder)
    with _one_sentence(file):
        write_tokenizer(header, folder)
        tokenizer = read_tokenizer(folder, model.config)
    assert tokenizer is not None
    check_same(header, folder, tokenizer)


def check(file: Path) -> Header:
    """Refuse a file before its weights are read.

    Raises:
        ValueError: It is no whole GGUF file, of an architecture that is not known, or holds what
            would be lost.
    """
    header = read_header(file)
    check_tokenizer(header)
    return header


def _load(header: Header) -> Any:
    """The model; transformers sees the file alone, since it prefers what lies beside one."""
    with TemporaryDirectory() as place:
        link = Path(place) / "model.gguf"
        link.symlink_to(header.file.resolve())
        # Qwen 2 takes no size of heads but the one that it computes.
        head = {} if header.architecture == "qwen2" else {"head_dim": header.head}
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            place, gguf_file=link.name, dtype=torch.float32, output_loading_info=True,
            local_files_only=True, **head,
        )  # fmt: skip
    model, report = loaded
    absent = set(report["missing_keys"])
    if model.config.tie_word_embeddings:
        absent.discard("lm_head.weight")
    if absent:
        raise ValueError(f"transformers leaves {min(absent)} without weights")
    return model


def _set_ends(model: PreTrainedModel, header: Header) -> None:
    """Take the tokens that begin and end a text from the file, or none."""
    config, generation = model.config, model.generation_config
    config.bos_token_id = generation.bos_token_id = header.token("bos_token_id")
    config.eos_token_id = header.token("eos_token_id")
    named = (header.token(f"{name}_token_id") for name in ("eos", "eot", "eom"))
    ends = list(dict.fromkeys(token for token in named if token is not None))
    generation.eos_token_id = ends if len(ends) > 1 else next(iter(ends), None)


@contextmanager
def _one_sentence(file: Path) -> Iterator[None]:
    try:
        yield
    # tokenizers raises plain Exception.
    except Exception as error:
        raise ValueError(f"{file} cannot be read: {' '.join(str(error).split())}") from error


def shortest(value: float) -> float:
    """The shortest decimal number that is the same in float32, in which GGUF keeps settings."""
    return float(str(np.float32(value)))
