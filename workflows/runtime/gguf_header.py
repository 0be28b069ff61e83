"""What a GGUF file says of itself; what would be lost of it is refused before weights are read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from gguf import (
    GGML_QUANT_SIZES,
    GGMLQuantizationType,
    GGUFEndian,
    GGUFReader,
    ReaderTensor,
    dequantize,
)

# GGUF's names of the architectures whose layers we know; Mistral's files say llama.
ARCHITECTURES = ("llama", "qwen2", "qwen3")
HEADS = "attention.head_count"
SIZES = (
    "block_count", "context_length", "embedding_length", "feed_forward_length",
    HEADS, "attention.head_count_kv",
)  # fmt: skip
EPSILON, HEAD = "attention.layer_norm_rms_epsilon", "attention.key_length"
# All that is read; the last three must agree with the others.
READ = {*SIZES, EPSILON, HEAD, "rope.freq_base"}
READ |= {"vocab_size", "rope.dimension_count", "attention.value_length"}
# Keys that are not read, with the value at which nothing is lost.
NEUTRAL = {
    "attention.causal": True, "attention.sliding_window": 0, "attention.clamp_kqv": 0,
    "attention.max_alibi_bias": 0, "attn_logit_softcapping": 0, "final_logit_softcapping": 0,
    "embedding_scale": 1, "residual_scale": 1, "logit_scale": 1, "use_parallel_residual": False,
    "expert_count": 0, "expert_used_count": 0, "rope.scale_linear": 1, "rope.scaling.type": "none",
    "rope.scaling.factor": 1, "rope.scaling.attn_factor": 1,
    "tensor_data_layout": "Meta AI original pth",
}  # fmt: skip
# They say where a scaled rotary embedding came from, and nothing where the type is none.
ORIGIN = {"rope.scaling.original_context_length", "rope.scaling.finetuned"}


class Header(NamedTuple):
    """Settings and tensors of a file, without the weights."""

    file: Path
    architecture: str
    fields: dict[str, Any]
    tensors: list[ReaderTensor]

    def own(self, name: str) -> Any:
        """A setting of the model, None if the file lacks it."""
        return self.fields.get(f"{self.architecture}.{name}")

    def token(self, name: str) -> Any:
        """A setting of the tokenizer, None if the file lacks it."""
        return self.fields.get(f"tokenizer.ggml.{name}")

    @property
    def head(self) -> int:
        """The size of an attention head."""
        return int(self.own(HEAD) or self.own("embedding_length") // self.own(HEADS))


def read_header(file: Path) -> Header:
    """What a file says of itself.

    Raises:
        ValueError: It is no whole GGUF file, of an architecture that is not known, a part of a
            model, or holds what would be lost.
    """
    try:
        reader = GGUFReader(file)
    except (
        OSError, ValueError, IndexError, KeyError, OverflowError, MemoryError, RecursionError,
    ) as error:  # fmt: skip
        raise ValueError(
            f"{file} is no whole GGUF file: it is cut, damaged, or of another version"
        ) from error
    if reader.endianess == GGUFEndian.BIG:
        raise ValueError(f"{file} is a big-endian GGUF file (known: little-endian)")
    fields = dict(_fields(file, reader))
    header = Header(file, str(fields.get("general.architecture")), fields, reader.tensors)
    _check_kind(header)
    _check_settings(header)
    _check_tensors(header)
    return header


def _fields(file: Path, reader: GGUFReader) -> Iterator[tuple[str, Any]]:
    for name, field in reader.fields.items():
        try:
            yield name, field.contents()
        except UnicodeDecodeError as error:
            raise ValueError(f"{file} holds bytes in {name} that are no UTF-8 text") from error


def _check_kind(header: Header) -> None:
    """Refuse other architectures and parts of a model."""
    file, name = header.file, header.architecture
    if name not in ARCHITECTURES or header.own("expert_count"):
        kind = "mixture of experts" if name in ARCHITECTURES else name
        raise ValueError(
            f"{file} holds a model of architecture '{kind}' (known: {', '.join(ARCHITECTURES)})"
        )
    parts = header.fields.get("split.count") or 1
    if parts > 1:
        part = header.fields.get("split.no", 0) + 1
        raise ValueError(
            f"{file} is part {part} of {parts}: join the parts first (llama-gguf-split --merge)"
        )


def _check_settings(header: Header) -> None:
    """Refuse a file that lacks a size, or has a setting that is not read."""
    file, name = header.file, header.architecture
    for key in SIZES:
        size = header.own(key)
        if not isinstance(size, int) or size < 1:
            said = "lacks" if size is None else f"has {size} as"
            raise ValueError(f"{file} {said} {name}.{key}, which must be a positive whole number")
    epsilon = header.own(EPSILON)
    if not isinstance(epsilon, float) or not 0 < epsilon < 1:
        said = "lacks" if epsilon is None else f"has {epsilon} as"
        raise ValueError(f"{file} {said} {name}.{EPSILON}, which must be between 0 and 1")
    for key in ("attention.value_length", "rope.dimension_count"):
        if header.own(key) not in (None, header.head):
            raise ValueError(
                f"{file} has {header.own(key)} as {name}.{key} (taken: {header.head}, "
                "the size of its heads)"
            )
    if name == "qwen2" and header.head * header.own(HEADS) != header.own("embedding_length"):
        raise ValueError(
            f"{file} has heads of size {header.head}, which qwen2 does not take "
            "(taken: embedding_length / attention.head_count)"
        )
    for field, value in header.fields.items():
        key = field.removeprefix(f"{name}.")
        if key != field and key not in READ | ORIGIN and NEUTRAL.get(key) != value:
            said = str(value).lower() if isinstance(value, bool) else value
            raise _lost(file, f"{field} = {said}")


def _lost(file: Path, what: str) -> ValueError:
    return ValueError(f"{file} holds {what}, which cannot be read: the model would be another")


def _check_tensors(header: Header) -> None:
    """Refuse tensors that the model does not have, of another shape, or packed in another way."""
    if header.own("block_count") > len(header.tensors):
        raise ValueError(f"{header.file} lacks weights: it has fewer tensors than layers")
    shapes = _shapes(header)
    for tensor in header.tensors:
        if tensor.name not in shapes:
            raise _lost(header.file, tensor.name)
        shape, expected = tuple(int(n) for n in reversed(tensor.shape)), shapes[tensor.name]
        if shape != expected:
            raise ValueError(
                f"{header.file} holds {tensor.name} of shape {shape}, its settings say {expected}"
            )
    present = {tensor.name for tensor in header.tensors}
    # Without an output matrix the embeddings are used in its place.
    absent = next((n for n in shapes if n not in present and n != "output.weight"), None)
    if absent is not None:
        raise ValueError(f"{header.file} lacks weights, first {absent}")
    first = {tensor.tensor_type: tensor.name for tensor in reversed(header.tensors)}
    for kind, tensor_name in first.items():
        if not _unpacks(kind):
            taken = ", ".join(other.name for other in GGMLQuantizationType if _unpacks(other))
            raise ValueError(
                f"{header.file} holds {tensor_name} as {kind.name}, which is not read "
                f"(taken: {taken})"
            )


def _shapes(header: Header) -> dict[str, tuple[int, ...]]:
    """The tensors of the model that the settings describe."""
    width, ffn = header.own("embedding_length"), header.own("feed_forward_length")
    queries = header.own("attention.head_count") * header.head
    keys = header.own("attention.head_count_kv") * header.head
    vocabulary = header.own("vocab_size") or len(header.token("tokens") or ())
    layer: dict[str, tuple[int, ...]] = {
        "attn_norm.weight": (width,),
        "attn_q.weight": (queries, width),
        "attn_k.weight": (keys, width),
        "attn_v.weight": (keys, width),
        "attn_output.weight": (width, queries),
        "ffn_norm.weight": (width,),
        "ffn_gate.weight": (ffn, width),
        "ffn_up.weight": (ffn, width),
        "ffn_down.weight": (width, ffn),
    }
    if header.architecture == "qwen2":
        layer |= {"attn_q.bias": (queries,), "attn_k.bias": (keys,), "attn_v.bias": (keys,)}
    if header.architecture == "qwen3":
        layer |= {"attn_q_norm.weight": (header.head,), "attn_k_norm.weight": (header.head,)}
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (vocabulary, width),
        "output_norm.weight": (width,),
        "output.weight": (vocabulary, width),
    }
    for number in range(header.own("block_count")):
        shapes |= {f"blk.{number}.{name}": shape for name, shape in layer.items()}
    return shapes


def _unpacks(kind: GGMLQuantizationType) -> bool:
    """Whether gguf can dequantize a kind of block."""
    try:
        dequantize(np.zeros((1, GGML_QUANT_SIZES[kind][1]), np.uint8), kind)
    except NotImplementedError:
        return False
    return True
