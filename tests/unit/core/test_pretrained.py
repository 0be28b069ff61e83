"""What transformers sees of a changed model, from this process and from fresh ones."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import AutoPeftModelForCausalLM, LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM

from methods import load_method, load_model
from methods.core.model.backbone import Backbone, convert, decoder, load_backbone
from methods.core.model.checkpoint import dense_folder, load
from methods.core.model.pretrained import is_plain
from methods.core.surgery.layers import narrow, remove_layers
from tests import steps
from tests.toys.models import CONFIGS, make_backbone, make_model, untie
from workflows.evaluation.models import load_any

IDS = torch.arange(12)[None]


@torch.no_grad()
def logits(model: Any) -> torch.Tensor:
    return model(IDS).logits


@pytest.fixture(scope="module")
def skipping(llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the fit step leaves of a row that stores no weights."""
    folder = tmp_path_factory.mktemp("skipping") / "model"
    return steps.fit("random-skip", llama, folder, "--budget", 0.25)


@pytest.fixture(scope="module")
def saved(skipping: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What ``save_pretrained`` makes of it: the dense weights, all of them."""
    folder = tmp_path_factory.mktemp("saved") / "model"
    load_model(skipping).save_pretrained(folder)
    return folder


@pytest.mark.parametrize("kind", sorted(CONFIGS))
def test_what_a_config_rebuilds_is_saved_under_its_family(kind: str, tmp_path: Path) -> None:
    make_backbone(tmp_path / "backbone", kind)
    model = remove_layers(load_backbone(tmp_path / "backbone").model, [1])
    assert is_plain(model)
    model.save_pretrained(tmp_path / "saved")
    assert AutoConfig.from_pretrained(tmp_path / "saved").model_type == CONFIGS[kind]["model_type"]
    assert torch.equal(
        logits(AutoModelForCausalLM.from_pretrained(tmp_path / "saved")), logits(model)
    )


def test_others_may_read_the_weights(saved: Path) -> None:
    modes = {file.stat().st_mode for file in saved.iterdir() if file.is_file()}
    assert modes == {(saved / "config.json").stat().st_mode}


def changed(row: str, backbone: Backbone) -> Any:
    """The model of a fit, straight from the method."""
    if row == "narrowed":
        return narrow(backbone.model, [[0], [], [], [], [], []], [[]] * 6)
    method = load_method(row)
    structure = {"seed": 1, "layers": [2], "skipped_units": 1.0, "width": 24, "slice_head": False}
    return method.build(backbone, structure)


@pytest.mark.parametrize("row", ["random-skip", "lora", "slicegpt", "narrowed"])
def test_a_changed_model_without_a_card_is_not_saved(row: str, llama: Path, tmp_path: Path) -> None:
    model = changed(row, load_backbone(llama))
    assert not is_plain(model)
    with pytest.raises(ValueError, match="this model is not what its config says: write it with"):
        model.save_pretrained(tmp_path / "saved")
    assert not (tmp_path / "saved").exists()


def test_a_model_whose_routing_was_changed_is_not_saved(skipping: Path, tmp_path: Path) -> None:
    model = load_model(skipping)
    model.model.router.skips = 2.5
    with pytest.raises(ValueError, match="'model.router.skips' is of another type, shape or value"):
        model.save_pretrained(tmp_path / "saved")
    assert not (tmp_path / "saved").exists()


METHODS_FIRST = """
import sys, methods
assert not {"torch", "transformers"} & set(sys.modules), "importing methods must stay cheap"
from transformers import AutoConfig
print(AutoConfig.from_pretrained(sys.argv[1]).row)
from transformers import AutoModelForCausalLM
print(*(type(AutoModelForCausalLM.from_pretrained(f).model).__name__ for f in sys.argv[1:]))
"""
TRANSFORMERS_FIRST = """
import sys
from transformers import AutoModelForCausalLM, LlamaForCausalLM
for kind in (AutoModelForCausalLM, LlamaForCausalLM):
    for folder in sys.argv[1:]:
        try:
            kind.from_pretrained(folder)
        except Exception as error:
            print(type(error).__name__, str(error).splitlines()[0])
import methods
print(*(type(AutoModelForCausalLM.from_pretrained(f).model).__name__ for f in sys.argv[1:]))
"""


def test_importing_methods_first_costs_nothing_and_registers(skipping: Path, saved: Path) -> None:
    done = steps.python("-c", METHODS_FIRST, skipping, saved)
    assert done.stdout.split() == ["random-skip", "RoutedDecoder", "RoutedDecoder"], done.stderr


def test_importing_methods_last_registers_and_before_it_nothing_loads(
    skipping: Path, saved: Path
) -> None:
    done = steps.python("-c", TRANSFORMERS_FIRST, skipping, saved)
    *refusals, loaded = done.stdout.splitlines()
    assert len(refusals) == 4
    assert all("has model type `skipbench`" in refusal for refusal in refusals[:2])
    # A folder without weights, and one with them, whose config has an impossible width.
    assert refusals[2].startswith("OSError Error no file named model.safetensors")
    assert refusals[3].startswith("RuntimeError Trying to create tensor with negative dimension -1")
    assert loaded == "RoutedDecoder RoutedDecoder"


def test_a_model_finds_its_dense_backbone_where_both_were_moved(tmp_path: Path) -> None:
    make_backbone(tmp_path / "here/backbone", "llama")
    steps.fit("random-skip", tmp_path / "here/backbone", tmp_path / "here/model", "--budget", 0.25)
    (tmp_path / "here").rename(tmp_path / "there")
    assert dense_folder(tmp_path / "there/model").resolve() == tmp_path / "there/backbone"
    (tmp_path / "there/backbone").rename(tmp_path / "gone")
    with pytest.raises(ValueError, match="name its folder"):
        dense_folder(tmp_path / "there/model")


def test_a_saved_folder_without_its_card_is_refused(saved: Path, tmp_path: Path) -> None:
    for file in saved.iterdir():
        if file.name != "skipbench.json":
            (tmp_path / file.name).write_bytes(file.read_bytes())
    with pytest.raises(ValueError, match="is no compressed model: it has no skipbench.json"):
        AutoModelForCausalLM.from_pretrained(tmp_path)


def test_a_plain_model_becomes_changed_and_back(llama: Path, tmp_path: Path) -> None:
    """What counts is what the model is when it is saved."""
    model = load_backbone(llama).model
    inner = model.model
    changed("random-skip", Backbone(model, None, llama, None, "", 1))
    with pytest.raises(ValueError, match="not what its config says"):
        model.save_pretrained(tmp_path)
    model.model = inner
    model.save_pretrained(tmp_path)
    assert torch.equal(logits(AutoModelForCausalLM.from_pretrained(tmp_path)), logits(model))


@pytest.fixture(scope="module", params=["shortgpt", "slicegpt", "random-skip"])
def compressed(
    request: pytest.FixtureRequest,
    backbones: dict[str, Path],
    data_files: dict[str, Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    """A row of each way to leave a model: plain, of a shape of its own, routed."""
    folder = tmp_path_factory.mktemp(request.param) / "model"
    params = {"round_to": 1} if request.param == "slicegpt" else {}
    given = ["--budget", 0.25, "--params", json.dumps(params), "--calibration", data_files["ids"]]
    return steps.fit(request.param, backbones["tied"], folder, *given)


def edit_frozen(model: Any) -> None:
    model.model.layers[0].self_attn.q_proj.weight.data.mul_(1.5)


def detach_head(model: Any) -> None:
    shape = model.lm_head.weight.shape
    head = 0.2 * torch.randn(shape, generator=torch.Generator().manual_seed(1))
    model.lm_head.weight = nn.Parameter(head)


def lengthen(model: Any) -> None:
    model.config.max_position_embeddings = 512


def halve(model: Any) -> None:
    for parameter in model.parameters():
        parameter.data = parameter.data.half()


@pytest.mark.parametrize(
    "change",
    [lambda model: model.resize_token_embeddings(70), detach_head, edit_frozen, lengthen, halve],
    ids=["vocabulary", "head", "weight", "config", "dtype"],
)
def test_what_was_changed_after_loading_is_saved(
    change: Callable[[Any], Any], compressed: Path, tmp_path: Path
) -> None:
    model = load_model(compressed)
    change(model)
    model.save_pretrained(tmp_path)
    for again in (load_model(tmp_path), AutoModelForCausalLM.from_pretrained(tmp_path)):
        assert torch.equal(logits(again), logits(model))
        for name in ("vocab_size", "tie_word_embeddings", "max_position_embeddings"):
            assert getattr(again.config, name) == getattr(model.config, name)
    assert f"torch.{load(tmp_path).card.backbone.dtype}" == str(model.dtype)


def drop_layer(model: Any) -> None:
    del model.model.layers[-1]


def adapt(model: Any) -> None:
    get_peft_model(model, LoraConfig(r=2, target_modules=["q_proj"]))


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        (
            drop_layer,
            {},
            r"not what skipbench.json says of it: 'model.layers.\d.*; undo the change",
        ),
        (adapt, {}, "'model.layers.0.self_attn.q_proj' is of another type, shape or value; undo"),
        (lambda model: model.double(), {}, "is in torch.float64, and weights must be in float32"),
        (lambda model: None, {"variant": "fp16"}, "option 'variant' is not taken"),
        (lambda model: None, {"push_to_hub": True}, "is not taken: call model.push_to_hub with"),
    ],
    ids=["layer", "adapters", "dtype", "variant", "hub"],
)
def test_what_could_not_be_read_back_is_not_saved(
    change: Callable[[Any], Any],
    options: dict[str, Any],
    message: str,
    compressed: Path,
    tmp_path: Path,
) -> None:
    model = load_model(compressed)
    change(model)
    with pytest.raises(ValueError, match=message):
        model.save_pretrained(tmp_path / "saved", **options)
    assert not (tmp_path / "saved").exists()


def test_the_number_of_weight_files_may_change(compressed: Path, tmp_path: Path) -> None:
    model = load_model(compressed)
    for size in ("50GB", "20KB", "50GB"):
        edit_frozen(model)
        model.save_pretrained(tmp_path, max_shard_size=size)
        assert torch.equal(logits(load_model(tmp_path)), logits(model))
    assert not (tmp_path / "model.safetensors.index.json").exists()


def test_only_the_main_process_writes(compressed: Path, llama: Path, tmp_path: Path) -> None:
    for model in (load_model(compressed), load_backbone(llama).model):
        model.save_pretrained(tmp_path, is_main_process=False)
    assert not any(tmp_path.iterdir())


def test_a_loaded_model_can_be_pickled(compressed: Path) -> None:
    model = load_model(compressed)
    assert torch.equal(logits(pickle.loads(pickle.dumps(model))), logits(model))


def test_an_adapter_finds_the_model_that_it_was_trained_on(
    compressed: Path, tmp_path: Path
) -> None:
    lora = LoraConfig("CAUSAL_LM", r=2, target_modules=["q_proj"], init_lora_weights=False)
    model = get_peft_model(load_model(compressed), lora).eval()
    model.save_pretrained(tmp_path)
    again = AutoPeftModelForCausalLM.from_pretrained(tmp_path).eval()
    assert again.peft_config["default"].base_model_name_or_path == str(compressed)
    assert torch.equal(logits(again), logits(model))


def test_a_dense_row_saved_in_its_place_leaves_no_card(llama: Path, tmp_path: Path) -> None:
    folder = steps.fit("dense", llama, tmp_path / "model")
    model = load_model(folder)
    model.resize_token_embeddings(70)
    model.save_pretrained(folder)
    assert torch.equal(logits(load_any(folder, None, "cpu").model), logits(model))


def test_a_dense_row_whose_matrices_are_split_is_saved_with_a_card(tmp_path: Path) -> None:
    make_backbone(tmp_path / "backbone", "phi3")
    model = load_model(steps.fit("dense", tmp_path / "backbone", tmp_path / "model"))
    model.save_pretrained(tmp_path / "saved")
    assert torch.equal(logits(load_model(tmp_path / "saved")), logits(model))


def test_a_head_that_was_put_into_a_compressed_folder_is_used(
    compressed: Path, tmp_path: Path
) -> None:
    load_model(compressed).save_pretrained(tmp_path)
    untie(tmp_path)
    model = load_model(tmp_path)
    model.tie_weights()
    head = load_file(tmp_path / "model.safetensors")["lm_head.weight"]
    assert torch.equal(model.lm_head.weight, head)


def test_a_compressed_folder_of_quantized_weights_is_refused(
    compressed: Path, tmp_path: Path
) -> None:
    load_model(compressed).save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    name = "model.layers.1.mlp.down_proj.weight"
    for dtype in (torch.float8_e4m3fn, torch.int8):
        changed = tensors | {name: tensors[name].to(dtype), f"{name}_scale": torch.ones(1)}
        save_file(changed, tmp_path / "model.safetensors", metadata={"format": "pt"})
        with pytest.raises(ValueError, match=f"'{name}' is in .*: dequantize or convert the model"):
            load_model(tmp_path)


def test_another_dtype_brings_the_exact_scale_of_embeddings() -> None:
    model = make_model("gemma3")
    exact = decoder(model).embed_tokens.embed_scale.item()
    convert(model, torch.bfloat16)
    convert(model, "float32")
    assert decoder(model).embed_tokens.embed_scale.item() == exact
