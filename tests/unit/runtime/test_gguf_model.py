"""A GGUF file that the test writes, and what comes out of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, GGUFWriter, RopeScalingType, quants
from torch import Tensor

from methods.core.model.backbone import load_backbone
from tests.toys.models import make_model
from tests.toys.texts import BOS, EOS, PAD, SPECIAL, UNK, WORDS
from workflows.runtime.gguf_model import convert, shortest

NAMES = {
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}  # fmt: skip
WHOLE = {
    "model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}  # fmt: skip


def write(file: Path, model: Any, architecture: str = "llama", kind: str = "F32") -> Path:
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
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    # Bytes and one merge of a byte-level vocabulary, then the special tokens.
    writer.add_token_list(["a", "b", "ab", *WORDS[3:], *SPECIAL])
    writer.add_token_types([1] * len(WORDS) + [3] * len(SPECIAL))
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(BOS)
    writer.add_eos_token_id(EOS)
    writer.add_unk_token_id(UNK)
    writer.add_pad_token_id(PAD)
    quantization = GGMLQuantizationType[kind]
    for name, tensor in model.state_dict().items():
        values = stored(name, tensor, config).float().numpy()
        if values.ndim == 2 and ".layers." in name:
            writer.add_tensor(
                gguf_name(name), quants.quantize(values, quantization), raw_dtype=quantization
            )
        else:
            writer.add_tensor(gguf_name(name), values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def gguf_name(name: str) -> str:
    if name in WHOLE:
        return WHOLE[name]
    _, _, layer, *part, _ = name.split(".")
    return f"blk.{layer}.{NAMES['.'.join(part)]}.weight"


def stored(name: str, tensor: Tensor, config: Any) -> Tensor:
    """Queries and keys in llama.cpp's order of rotary pairs."""
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    number = heads.get(name.split(".")[-2])
    if number is None:
        return tensor
    rows, width = tensor.shape
    halves = tensor.reshape(number, 2, rows // number // 2, width)
    return halves.swapaxes(1, 2).reshape(rows, width)


def out(folder: Path) -> Path:
    folder.mkdir()
    return folder


def test_the_folder_holds_the_model_of_the_file(tmp_path: Path) -> None:
    model = make_model()
    convert(write(tmp_path / "toy.gguf", model), out(tmp_path / "plain"))
    backbone = load_backbone(tmp_path / "plain")
    assert backbone.tokenizer is not None
    assert backbone.tokenizer("aab").input_ids[-2:] == [0, 2]
    ids = torch.tensor([[1, 5, 9, 33, 2]])
    with torch.no_grad():
        torch.testing.assert_close(backbone.model(ids).logits, model(ids).logits)
    assert backbone.config.rms_norm_eps == model.config.rms_norm_eps
    assert backbone.config.rope_parameters["rope_theta"] == 10000


def test_quantized_weights_come_out_as_what_they_stand_for(tmp_path: Path) -> None:
    model = make_model()
    convert(write(tmp_path / "toy.gguf", model, kind="Q8_0"), out(tmp_path / "plain"))
    name = "model.layers.2.mlp.down_proj.weight"
    weight = model.get_parameter(name).detach().numpy()
    packed = quants.quantize(weight, GGMLQuantizationType.Q8_0)
    expected = quants.dequantize(packed, GGMLQuantizationType.Q8_0)
    assert not np.array_equal(expected, weight)
    actual = load_backbone(tmp_path / "plain").model.get_parameter(name).detach().numpy()
    np.testing.assert_array_equal(actual, expected)


def test_another_architecture_is_refused_before_weights_are_read(tmp_path: Path) -> None:
    file = write(tmp_path / "toy.gguf", make_model(), architecture="gemma2")
    with pytest.raises(ValueError, match=r"architecture 'gemma2' \(known: llama, qwen2, qwen3\)"):
        convert(file, out(tmp_path / "plain"))
    assert list((tmp_path / "plain").iterdir()) == []


@pytest.mark.parametrize("bytes_left", [0, 100, 20_000])
def test_a_cut_file_is_refused_in_a_sentence(tmp_path: Path, bytes_left: int) -> None:
    file = write(tmp_path / "toy.gguf", make_model())
    file.write_bytes(file.read_bytes()[:bytes_left])
    with pytest.raises(ValueError, match=r"toy\.gguf is no whole GGUF file"):
        convert(file, out(tmp_path / "plain"))


def test_a_file_without_some_weights_is_refused(tmp_path: Path) -> None:
    model = make_model()
    del model.model.layers[3].mlp.up_proj
    with pytest.raises(ValueError, match=r"lacks weights, first model\.layers\.3\.mlp\.up_proj"):
        convert(write(tmp_path / "toy.gguf", model), out(tmp_path / "plain"))


def test_settings_lose_the_digits_that_float32_added() -> None:
    assert shortest(9.999999747378752e-06) == 1e-5


@pytest.mark.parametrize(
    "what",
    [
        "rope_freqs.weight",
        "llama.rope.scaling.type",
        "llama.rope.scale_linear",
        "llama.attention.causal",
        "blk.0.attn_q.bias",
    ],
)
def test_what_would_be_lost_is_refused(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Writer(GGUFWriter):
        def write_header_to_file(self, path: Path | None = None) -> None:
            if "scaling" in what:
                self.add_rope_scaling_type(RopeScalingType.LINEAR)
            elif what.endswith("scale_linear"):
                self.add_float32(what, 4.0)
            elif what.endswith("causal"):
                self.add_bool(what, False)
            else:
                self.add_tensor(what, np.ones(4, np.float32))
            super().write_header_to_file(path)

    monkeypatch.setattr(f"{__name__}.GGUFWriter", Writer)
    file = write(tmp_path / "toy.gguf", make_model())
    with pytest.raises(ValueError, match=f"holds {what}.*, which cannot be read"):
        convert(file, out(tmp_path / "plain"))
    assert list((tmp_path / "plain").iterdir()) == []
