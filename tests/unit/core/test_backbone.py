"""Reading a backbone: what is promised is checked before a model is made."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

from methods.core.model import backbone as backbone_module
from methods.core.model.backbone import SHAPES, load_backbone, shape_config
from methods.core.model.folder import hash_folder
from tests.toys.models import CONFIGS, make_model, untie
from tests.toys.texts import make_tokenizer


@pytest.fixture
def copy(llama: Path, tmp_path: Path) -> Path:
    return shutil.copytree(llama, tmp_path / "copy")


def edit_config(folder: Path, **changes: object) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes), encoding="utf-8")


def edit_weights(folder: Path, **changes: torch.Tensor | None) -> None:
    file = folder / "model.safetensors"
    tensors = load_file(file) | changes
    save_file({k: v for k, v in tensors.items() if v is not None}, file, metadata={"format": "pt"})


@pytest.mark.parametrize("kind", sorted(CONFIGS))
def test_every_family_loads_as_it_was_saved(kind: str, backbones: dict[str, Path]) -> None:
    backbone = load_backbone(backbones[kind])
    ids = torch.arange(10)[None]
    with torch.no_grad():
        assert torch.equal(backbone.model(ids).logits, make_model(kind)(ids).logits)
    assert backbone.parameters == sum(p.numel() for p in backbone.model.parameters())
    assert backbone.layer_count == CONFIGS[kind]["num_hidden_layers"]
    assert not backbone.model.training
    assert len(backbone.tokenizer) == 64


def test_weights_own_their_memory(llama: Path) -> None:
    """Views of one mapped file would keep what surgery replaces."""
    backbone = load_backbone(llama)
    assert backbone.parameters
    assert str(llama) not in Path("/proc/self/maps").read_text()


def test_shards_are_read(llama: Path, tmp_path: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(llama)
    model.save_pretrained(tmp_path, max_shard_size="60KB")
    assert not (tmp_path / "model.safetensors").exists()
    ids = torch.arange(10)[None]
    with torch.no_grad():
        assert torch.equal(load_backbone(tmp_path).model(ids).logits, model(ids).logits)
    next(tmp_path.glob("model-00002*")).unlink()
    with pytest.raises(ValueError, match="names model-00002.* which is missing"):
        load_backbone(tmp_path)


def test_hash_follows_weights_and_config_alone(copy: Path) -> None:
    before = hash_folder(copy)
    (copy / "README.md").write_text("text")
    assert hash_folder(copy) == before
    edit_config(copy, rms_norm_eps=1e-4)
    changed = hash_folder(copy)
    assert changed != before
    edit_weights(copy, **{"model.norm.weight": torch.zeros(32)})
    assert hash_folder(copy) not in (before, changed)
    assert len(changed) == 16


def test_missing_folder_and_config_are_named(copy: Path) -> None:
    with pytest.raises(ValueError, match="gone does not exist or is no folder"):
        load_backbone(copy / "gone")
    (copy / "config.json").unlink()
    with pytest.raises(ValueError, match=r"has no config.json"):
        load_backbone(copy)


def test_a_broken_config_is_named(copy: Path) -> None:
    (copy / "config.json").write_text("{")
    with pytest.raises(ValueError, match=r"config.json is not valid JSON"):
        load_backbone(copy)
    (copy / "config.json").write_text("[1]")
    with pytest.raises(ValueError, match=r"config.json is no JSON object"):
        load_backbone(copy)


def test_another_family_is_refused(copy: Path) -> None:
    edit_config(copy, model_type="gpt2")
    with pytest.raises(ValueError, match=r"'gpt2' is not supported \(allowed: llama, mistral"):
        load_backbone(copy)


def test_a_truncated_weight_file_is_named(copy: Path) -> None:
    file = copy / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(ValueError, match=r"model.safetensors is damaged or incomplete"):
        load_backbone(copy)


def test_a_folder_without_weights_is_named(copy: Path) -> None:
    (copy / "model.safetensors").unlink()
    with pytest.raises(ValueError, match=r"has no model.safetensors"):
        load_backbone(copy)


def test_a_missing_tensor_is_not_filled_with_random_numbers(copy: Path) -> None:
    edit_weights(copy, **{"model.layers.2.mlp.up_proj.weight": None})
    with pytest.raises(ValueError, match=r"no tensor 'model.layers.2.mlp.up_proj.weight'"):
        load_backbone(copy)


def test_a_number_of_layers_alone_builds_nothing(
    copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model without weights takes memory for each layer all the same."""
    monkeypatch.setattr(backbone_module, "_empty_model", lambda *_: pytest.fail("built"))
    edit_weights(copy, **{"model.layers.999.x": torch.zeros(1)})
    edit_config(copy, num_hidden_layers=1000)
    said = r"has weights of 7 layers, but config.json asks for layers 0 to 999 \(num_hidden_layers"
    with pytest.raises(ValueError, match=said):
        load_backbone(copy)
    monkeypatch.setattr(AutoConfig, "for_model", lambda *_, **__: pytest.fail("built"))
    edit_config(copy, num_hidden_layers=3_000_000)
    with pytest.raises(ValueError, match="num_hidden_layers is 3000000, must be at most 1000"):
        load_backbone(copy)


def test_a_tensor_of_another_shape_is_named(copy: Path) -> None:
    edit_config(copy, vocab_size=80)
    with pytest.raises(ValueError, match=r"'model.embed_tokens.weight' has shape \[64, 32\]"):
        load_backbone(copy)


WEIGHT = "model.layers.1.mlp.down_proj.weight"
ONES = torch.ones(32)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({WEIGHT: torch.ones(32, 64).to(torch.float8_e4m3fn), f"{WEIGHT}_scale": ONES}, "F8_E4M3"),
        ({WEIGHT: torch.ones(32, 64, dtype=torch.int8), "model.layers.1.SCB": ONES}, "is in I8"),
        ({WEIGHT: torch.ones(32, 64).double()}, "in F64, and weights must be in float32, bfloat16"),
        ({f"{WEIGHT}_scale_inv": ONES}, "'.*weight_scale_inv', which its config.json does not ask"),
        ({"model.layers.0.self_attn.q_proj.bias": ONES}, "q_proj.bias', which its config.json"),
    ],
)
def test_weights_that_the_model_does_not_take_are_refused(
    changes: dict[str, torch.Tensor], message: str, copy: Path
) -> None:
    """transformers would compute with them as they stand, or without them."""
    edit_weights(copy, **changes)
    with pytest.raises(ValueError, match=f"{message}.*(dequantize|convert)"):
        load_backbone(copy)


def test_frequencies_that_old_folders_hold_are_no_weights(copy: Path) -> None:
    edit_weights(copy, **{"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4)})
    assert load_backbone(copy).layer_count == 6


def test_a_config_of_quantized_weights_is_refused(copy: Path) -> None:
    edit_config(copy, quantization_config={"quant_method": "fp8", "weight_block_size": [8, 8]})
    with pytest.raises(ValueError, match=r"\(quantization_config\).*: dequantize the model first"):
        load_backbone(copy)


def test_an_adapter_beside_the_weights_is_refused(copy: Path) -> None:
    (copy / "adapter_config.json").write_text("{}")
    with pytest.raises(ValueError, match=r"holds an adapter \(adapter_config.json\): merge it"):
        load_backbone(copy)


def test_a_head_of_its_own_is_used_though_the_config_ties_it(
    backbones: dict[str, Path], tmp_path: Path
) -> None:
    """As transformers loads it; whoever ties weights by the config later must not drop it."""
    folder = untie(shutil.copytree(backbones["tied"], tmp_path / "own"))
    stock, ids = AutoModelForCausalLM.from_pretrained(folder), torch.arange(10)[None]
    backbone = load_backbone(folder)
    backbone.model.tie_weights()
    backbone.model.save_pretrained(tmp_path / "saved")
    with torch.no_grad():
        for model in (backbone.model, load_backbone(tmp_path / "saved").model):
            assert torch.equal(model(ids).logits, stock(ids).logits)
            assert not model.config.tie_word_embeddings
    assert backbone.parameters == sum(p.numel() for p in stock.parameters())


def test_a_copy_of_the_embedding_stays_tied(backbones: dict[str, Path], tmp_path: Path) -> None:
    folder = shutil.copytree(backbones["tied"], tmp_path / "copy")
    embedding = load_file(folder / "model.safetensors")["model.embed_tokens.weight"]
    edit_weights(folder, **{"lm_head.weight": embedding.clone()})
    backbone = load_backbone(folder)
    assert backbone.config.tie_word_embeddings
    assert backbone.parameters == load_backbone(backbones["tied"]).parameters


def test_a_tokenizer_larger_than_the_embeddings_is_refused(copy: Path) -> None:
    make_tokenizer(extra=3).save_pretrained(copy)
    with pytest.raises(ValueError, match="has 67 tokens, the model only 64 embeddings"):
        load_backbone(copy)


def test_a_folder_without_tokenizer_loads(copy: Path) -> None:
    for file in copy.glob("tokenizer*"):
        file.unlink()
    assert load_backbone(copy).tokenizer is None


def test_a_damaged_tokenizer_is_named(copy: Path) -> None:
    (copy / "tokenizer.json").write_text("{")
    with pytest.raises(ValueError, match="the tokenizer in .* cannot be read"):
        load_backbone(copy)


def test_dtypes(copy: Path) -> None:
    assert load_backbone(copy, "bfloat16").model.dtype == torch.bfloat16
    with pytest.raises(ValueError, match="dtype 'int8' is unknown"):
        load_backbone(copy, "int8")


def test_an_unknown_shape_is_named() -> None:
    with pytest.raises(ValueError, match=f"unknown shape 'x' .*{next(iter(SHAPES))}"):
        shape_config("x")
