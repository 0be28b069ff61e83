"""What ``from_pretrained`` of the Auto class takes for a compressed folder, and what it refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from methods import load_model
from methods.core.model.auto import SkipbenchForCausalLM
from tests import steps
from tests.toys.static import logits


@pytest.fixture(scope="module")
def fitted(llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fitted") / "model"
    return steps.fit("random-skip", llama, folder, "--budget", 0.25)


def test_options_that_change_nothing_are_taken(fitted: Path) -> None:
    for given in (
        {"dtype": "auto"},
        {"dtype": torch.float32},
        {"device_map": {"": "cpu"}},
        # As lm-eval's own model class calls it.
        {"revision": "main", "subfolder": "", "load_in_8bit": False},
        {"config": AutoConfig.from_pretrained(fitted), "trust_remote_code": True},
    ):
        model = AutoModelForCausalLM.from_pretrained(fitted, low_cpu_mem_usage=True, **given)
        assert torch.equal(logits(model), logits(load_model(fitted)))


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"dtype": "float64"}, "dtype 'float64' is unknown .allowed: auto, float32, bfloat16"),
        ({"load_in_8bit": True}, "option 'load_in_8bit' is not supported"),
        ({"revision": "v2"}, "option 'revision' is not supported"),
        ({"attn_implementation": "eager"}, "option 'attn_implementation' is not supported"),
        ({"output_hidden_states": True}, "option 'output_hidden_states' is not supported"),
        ({"intermediate_size": 5}, "option 'intermediate_size' is not supported"),
        ({"device_map": {"model": 0, "lm_head": 1}}, "spreads a model that goes to one device"),
        ({"device_map": "balanced"}, "device_map balanced spreads a model that goes to one device"),
    ],
)
def test_options_that_would_change_the_model_are_refused(
    option: dict[str, Any], message: str, fitted: Path
) -> None:
    with pytest.raises(ValueError, match=message):
        AutoModelForCausalLM.from_pretrained(fitted, **option)


def test_a_name_of_the_hub_or_a_config_alone_is_refused(fitted: Path) -> None:
    with pytest.raises(ValueError, match="owner/name is no folder here: a model of the hub is"):
        SkipbenchForCausalLM.from_pretrained("owner/name", revision="main")
    with pytest.raises(ValueError, match="a config alone makes no compressed model"):
        AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(fitted))


def test_a_moved_backbone_can_be_named(fitted: Path, llama: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="name its folder"):
        AutoModelForCausalLM.from_pretrained(fitted, backbone=tmp_path / "gone")
    model = AutoModelForCausalLM.from_pretrained(fitted, backbone=llama)
    assert torch.equal(logits(model), logits(load_model(fitted)))
