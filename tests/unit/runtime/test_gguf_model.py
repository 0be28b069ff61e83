"""A GGUF file that the test writes, and what comes out of it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, GGUFEndian, GGUFWriter, RopeScalingType, quants
from transformers import AutoModelForCausalLM

from methods.core.model.backbone import load_backbone
from tests.toys.gguf import put, write
from tests.toys.models import make_model
from workflows.evaluation.ends import end_tokens
from workflows.runtime.gguf_model import convert, shortest


def out(folder: Path) -> Path:
    folder.mkdir()
    return folder


def refuse(file: Path, sentence: str) -> None:
    """A file is refused in one sentence that names it, and leaves nothing."""
    folder = out(file.parent / "refused")
    with pytest.raises(ValueError, match=f"^{re.escape(str(file))} {sentence}"):
        convert(file, folder)
    assert list(folder.iterdir()) == []


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


@pytest.mark.parametrize("kind", ["llama", "qwen3"])
def test_heads_of_another_size_are_handed_over(kind: str, tmp_path: Path) -> None:
    model = make_model(kind, head_dim=16)
    file = write(tmp_path / "toy.gguf", model, kind, change=lambda w: w.add_key_length(16))
    convert(file, out(tmp_path / "plain"))
    ids = torch.tensor([[1, 5, 9, 33, 2]])
    with torch.no_grad():
        actual = load_backbone(tmp_path / "plain").model(ids).logits
        torch.testing.assert_close(actual, model(ids).logits)


def test_what_lies_beside_the_file_is_not_read(tmp_path: Path) -> None:
    file = write(tmp_path / "toy.gguf", make_model())
    alone = out(tmp_path / "alone")
    convert(file, alone)
    content = json.loads((alone / "tokenizer.json").read_text())
    content["model"]["vocab"] |= {"a": 1, "b": 0}
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    (tmp_path / "adapter_config.json").write_text('{"base_model_name_or_path": "/none"}')
    convert(file, out(tmp_path / "beside"))
    for name in sorted(path.name for path in alone.iterdir()):
        assert (tmp_path / "beside" / name).read_bytes() == (alone / name).read_bytes()


@pytest.mark.parametrize("ends", [{}, {"eos": 5}, {"eos": 5, "eot": 7, "eom": 5}])
def test_the_tokens_that_end_a_text_are_those_of_the_file(
    ends: dict[str, int], tmp_path: Path
) -> None:
    def change(writer: GGUFWriter) -> None:
        for name in ("bos", "eos", "eot", "eom"):
            put(writer, f"tokenizer.ggml.{name}_token_id", ends.get(name))

    convert(write(tmp_path / "toy.gguf", make_model(), change=change), out(tmp_path / "plain"))
    model = load_backbone(tmp_path / "plain").model
    assert end_tokens(model) == sorted(set(ends.values()))
    assert model.config.eos_token_id == ends.get("eos")
    assert model.config.bos_token_id is None is model.generation_config.bos_token_id


def test_another_architecture_is_refused_before_weights_are_read(tmp_path: Path) -> None:
    file = write(tmp_path / "toy.gguf", make_model(), architecture="gemma2")
    refuse(file, r"holds .* architecture 'gemma2' \(known: llama, qwen2, qwen3\)")


@pytest.mark.parametrize("bytes_left", [0, 100, 20_000])
def test_a_cut_file_is_refused_in_a_sentence(tmp_path: Path, bytes_left: int) -> None:
    file = write(tmp_path / "toy.gguf", make_model())
    file.write_bytes(file.read_bytes()[:bytes_left])
    refuse(file, "is no whole GGUF file: it is cut, damaged, or of another version$")


def test_bytes_that_are_no_text_are_refused_by_name(tmp_path: Path) -> None:
    file = write(tmp_path / "toy.gguf", make_model(), change=lambda w: w.add_name("plain"))
    file.write_bytes(file.read_bytes().replace(b"plain", b"pl\xffin"))
    refuse(file, "holds bytes in general.name that are no UTF-8 text$")


def test_a_big_endian_file_is_refused(tmp_path: Path) -> None:
    writer = GGUFWriter(tmp_path / "toy.gguf", "llama", endianess=GGUFEndian.BIG)
    writer.add_tensor("token_embd.weight", np.ones(4, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    refuse(tmp_path / "toy.gguf", r"is a big-endian GGUF file \(known: little-endian\)")


def test_a_file_without_some_weights_is_refused(tmp_path: Path) -> None:
    model = make_model()
    del model.model.layers[3].mlp.up_proj
    refuse(write(tmp_path / "toy.gguf", model), r"lacks weights, first blk\.3\.ffn_up\.weight")


def test_weights_that_transformers_leaves_out_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: Any = AutoModelForCausalLM.from_pretrained

    def lose(*args: Any, **settings: Any) -> tuple[Any, dict[str, set[str]]]:
        return read(*args, **settings)[0], {"missing_keys": {"model.norm.weight"}}

    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", lose)
    file = write(tmp_path / "toy.gguf", make_model())
    refuse(file, r"cannot be read: transformers leaves model\.norm\.weight without weights$")


@pytest.mark.parametrize(
    "name",
    [
        "block_count",
        "context_length",
        "embedding_length",
        "feed_forward_length",
        "attention.head_count",
        "attention.head_count_kv",
        "attention.layer_norm_rms_epsilon",
    ],
)
def test_a_file_without_a_size_is_refused(name: str, tmp_path: Path) -> None:
    def change(writer: GGUFWriter) -> None:
        put(writer, f"llama.{name}", None)

    refuse(write(tmp_path / "toy.gguf", make_model("mha"), change=change), f"lacks llama.{name}, ")


def test_a_part_of_a_file_is_refused(tmp_path: Path) -> None:
    def change(writer: GGUFWriter) -> None:
        writer.add_uint16("split.no", 0)
        writer.add_uint16("split.count", 2)

    file = write(tmp_path / "toy.gguf", make_model(), change=change)
    refuse(file, r"is part 1 of 2: join the parts first \(llama-gguf-split --merge\)$")


def test_settings_lose_the_digits_that_float32_added() -> None:
    assert shortest(9.999999747378752e-06) == 1e-5


def tensor(name: str, *shape: int) -> Callable[[GGUFWriter], None]:
    return lambda writer: writer.add_tensor(name, np.ones(shape, np.float32))


LOST: dict[str, Callable[[GGUFWriter], None]] = {
    "rope_freqs.weight": tensor("rope_freqs.weight", 4),
    "blk.0.attn_q.bias": tensor("blk.0.attn_q.bias", 32),
    "blk.0.attn_q_norm.weight": tensor("blk.0.attn_q_norm.weight", 8),
    "blk.6.attn_norm.weight": tensor("blk.6.attn_norm.weight", 32),
    "foo.weight": tensor("foo.weight", 4),
    "llama.rope.scaling.type = linear": lambda w: w.add_rope_scaling_type(RopeScalingType.LINEAR),
    "llama.rope.scale_linear = 4.0": lambda w: w.add_float32("llama.rope.scale_linear", 4.0),
    "llama.attention.causal = false": lambda w: w.add_causal_attention(False),
    "llama.attention.sliding_window = 4": lambda w: w.add_sliding_window(4),
    "llama.logit_scale = 3.0": lambda w: w.add_logit_scale(3.0),
    "llama.unheard = 1": lambda w: w.add_uint32("llama.unheard", 1),
}


@pytest.mark.parametrize("what", LOST)
def test_what_would_be_lost_is_refused(what: str, tmp_path: Path) -> None:
    file = write(tmp_path / "toy.gguf", make_model(), change=LOST[what])
    refuse(file, f"holds {re.escape(what)}, which cannot be read: the model would be another$")


def test_settings_at_which_nothing_is_lost_are_taken(tmp_path: Path) -> None:
    def change(writer: GGUFWriter) -> None:
        writer.add_causal_attention(True)
        writer.add_logit_scale(1.0)
        writer.add_rope_scaling_type(RopeScalingType.NONE)
        writer.add_rope_scaling_finetuned(True)
        writer.add_uint16("split.count", 1)

    convert(write(tmp_path / "toy.gguf", make_model(), change=change), out(tmp_path / "plain"))


def with_tensor(file: Path, values: np.ndarray[Any, Any]) -> Path:
    """A file with other values in a tensor."""

    def change(writer: GGUFWriter) -> None:
        del writer.tensors[0]["blk.1.ffn_up.weight"]
        writer.add_tensor("blk.1.ffn_up.weight", values)

    return write(file, make_model(), change=change)


def test_a_tensor_of_another_shape_is_refused(tmp_path: Path) -> None:
    file = with_tensor(tmp_path / "toy.gguf", np.ones((32, 64), np.float32))
    refuse(file, r"holds blk\.1\.ffn_up\.weight of shape \(32, 64\), its settings say \(64, 32\)$")


@pytest.mark.parametrize(
    ("kind", "key", "sentence"),
    [
        ("qwen2", "attention.key_length", "has heads of size 16, which qwen2 does not take"),
        ("qwen2", "rope.dimension_count", r"has 16 as .*dimension_count \(taken: 8, the size of"),
        ("llama", "attention.value_length", r"has 16 as .*value_length \(taken: 8, the size of"),
    ],
)
def test_sizes_of_heads_that_do_not_agree_are_refused(
    kind: str, key: str, sentence: str, tmp_path: Path
) -> None:
    def change(writer: GGUFWriter) -> None:
        put(writer, f"{kind}.{key}", 16)

    refuse(write(tmp_path / "toy.gguf", make_model(kind), kind, change=change), sentence)


def test_weights_that_cannot_be_unpacked_are_refused(tmp_path: Path) -> None:
    file = with_tensor(tmp_path / "toy.gguf", np.ones((64, 32), np.int8))
    refuse(file, r"holds blk\.1\.ffn_up\.weight as I8, which is not read \(taken: F32, F16, Q4_0,")
