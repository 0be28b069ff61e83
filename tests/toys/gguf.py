"""Toy models as GGUF files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from gguf import GGMLQuantizationType, GGUFValueType, GGUFWriter, quants
from torch import Tensor
from transformers.convert_slow_tokenizer import bytes_to_unicode

from tests.toys.texts import BOS, EOS, PAD, SPECIAL, UNK, WORDS

NAMES = {
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm", "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
}  # fmt: skip
WHOLE = {
    "model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}  # fmt: skip
# Every byte, as a byte-level vocabulary spells it, and pairs of them.
BYTES = list(bytes_to_unicode().values())
MERGES = ["a b", "Ċ Ċ", "1 2", "12 3"]
PIECES = ["<unk>", "<s>", "</s>", *(f"<0x{n:02X}>" for n in range(256)), "▁", "a", "b", "▁a"]
Change = Callable[[GGUFWriter], None]


def write(
    file: Path,
    model: Any,
    architecture: str = "llama",
    kind: str = "F32",
    change: Change = lambda writer: None,
) -> Path:
    """A model as llama.cpp would store it, every matrix of its layers quantized as ``kind``."""
    config, writer = model.config, GGUFWriter(file, architecture)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_vocab_size(config.vocab_size)
    # Bytes and one merge of a byte-level vocabulary, then the special tokens.
    put_tokens(writer, ["a", "b", "ab", *WORDS[3:], *SPECIAL], [1] * len(WORDS) + [3] * 4)
    put(writer, "tokenizer.ggml.merges", ["a b"])
    put(writer, "tokenizer.ggml.bos_token_id", BOS)
    put(writer, "tokenizer.ggml.eos_token_id", EOS)
    put(writer, "tokenizer.ggml.unknown_token_id", UNK)
    put(writer, "tokenizer.ggml.padding_token_id", PAD)
    quantization = GGMLQuantizationType[kind]
    for name, tensor in model.state_dict().items():
        values = stored(name, tensor, config, architecture).float().numpy()
        if values.ndim == 2 and ".layers." in name:
            writer.add_tensor(
                gguf_name(name), quants.quantize(values, quantization), raw_dtype=quantization
            )
        else:
            writer.add_tensor(gguf_name(name), values)
    change(writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def put(writer: GGUFWriter, name: str, value: Any) -> None:
    """Set a key of a file; None takes it away."""
    writer.kv_data[0].pop(name, None)
    if value is not None:
        kind = GGUFValueType.get_type(value)
        if kind == GGUFValueType.INT32:
            kind = GGUFValueType.UINT32
        writer.add_key_value(name, value, kind)


def put_tokens(
    writer: GGUFWriter, tokens: Sequence[str], types: Sequence[int], pre: str = "smollm"
) -> None:
    """Set a byte-level vocabulary."""
    put(writer, "tokenizer.ggml.model", "gpt2")
    put(writer, "tokenizer.ggml.pre", pre)
    put(writer, "tokenizer.ggml.tokens", list(tokens))
    put(writer, "tokenizer.ggml.token_type", list(types))


def byte_level(
    pre: str | None = "smollm",
    special: Sequence[str] = SPECIAL,
    kinds: Sequence[int] = (3, 3, 3, 3),
    words: Sequence[str] = (),
    **keys: Any,
) -> tuple[int, Change]:
    """The size of a vocabulary of all bytes, and what writes it.

    Args:
        pre: The way in which texts are split.
        special: Tokens at the end of the vocabulary; the first four are UNK, BOS, EOS and PAD.
        kinds: Their types.
        words: Tokens that no merge makes.
        keys: Of the tokenizer; None takes one away.
    """
    pairs = [pair.replace(" ", "") for pair in MERGES]
    plain = [*BYTES, *pairs, *words]
    names = ("unknown", "bos", "eos", "padding")
    ids = {f"{name}_token_id": len(plain) + n for n, name in enumerate(names)}

    def change(writer: GGUFWriter) -> None:
        put_tokens(writer, [*plain, *special], [1] * len(plain) + list(kinds))
        for name, value in ({"pre": pre, "merges": MERGES} | ids | keys).items():
            put(writer, f"tokenizer.ggml.{name}", value)

    return len(plain) + len(special), change


def pieces(**keys: Any) -> tuple[int, Change]:
    """The size of a sentencepiece vocabulary, and what writes it; ``keys`` as in byte_level."""
    scores = [0.0] * 259 + [-1.0, -2.0, -3.0, -4.0]
    types = [2, 3, 3] + [6] * 256 + [1] * 4
    content = {"model": "llama", "pre": "default", "tokens": PIECES, "scores": scores}
    ids = {"bos_token_id": 1, "eos_token_id": 2, "unknown_token_id": 0, "padding_token_id": None}

    def change(writer: GGUFWriter) -> None:
        for name, value in (content | {"token_type": types, "merges": None} | ids | keys).items():
            put(writer, f"tokenizer.ggml.{name}", value)

    return len(PIECES), change


def gguf_name(name: str) -> str:
    """GGUF's name of a tensor."""
    if name in WHOLE:
        return WHOLE[name]
    _, _, layer, *part, ending = name.split(".")
    return f"blk.{layer}.{NAMES['.'.join(part)]}.{ending}"


def stored(name: str, tensor: Tensor, config: Any, architecture: str) -> Tensor:
    """A Llama's queries and keys in llama.cpp's order of rotary pairs."""
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    number = heads.get(name.split(".")[-2]) if architecture == "llama" else None
    if number is None:
        return tensor
    rows, width = tensor.shape
    halves = tensor.reshape(number, 2, rows // number // 2, width)
    return halves.swapaxes(1, 2).reshape(rows, width)
