"""Layer removal against models built by hand from the survivors."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from methods.core.model.backbone import attention, count, layers
from methods.core.surgery.layers import remove_layers
from tests.toys.models import CONFIGS, keep_layers, make_model

IDS = torch.arange(24).reshape(2, 12)


@pytest.mark.parametrize("kind", sorted(CONFIGS))
@pytest.mark.parametrize("removed", [[0], [1, 2], [3]])
def test_logits_equal_a_model_built_by_hand_bit_for_bit(kind: str, removed: list[int]) -> None:
    dense = make_model(kind)
    kept = [n for n in range(len(layers(dense))) if n not in removed]
    expected = keep_layers(dense, kept)
    pruned = remove_layers(dense, removed)
    with torch.no_grad():
        assert torch.equal(pruned(IDS).logits, expected(IDS).logits)


@pytest.mark.parametrize("kind", sorted(CONFIGS))
def test_generation_with_cache_equals_without(kind: str) -> None:
    pruned = remove_layers(make_model(kind), [1])
    options = {"max_new_tokens": 10, "do_sample": False, "eos_token_id": None}
    cached = pruned.generate(IDS, use_cache=True, **options)
    assert torch.equal(cached, pruned.generate(IDS, use_cache=False, **options))
    assert cached.shape[1] == 22


def test_layers_are_renumbered_and_the_config_follows() -> None:
    model = make_model("qwen2")
    assert model.config.layer_types == ["full_attention"] * 2 + ["sliding_attention"] * 2
    remove_layers(model, [0, 3])
    assert [attention(layer).layer_idx for layer in layers(model)] == [0, 1]
    assert model.config.num_hidden_layers == 2
    assert model.config.layer_types == ["full_attention", "sliding_attention"]


def test_parameters_drop_by_exactly_the_removed_layers() -> None:
    model = make_model()
    before, size = count(model), count(layers(model)[0])
    assert before - count(remove_layers(model, [5, 0, 2])) == 3 * size


def test_the_order_of_removal_does_not_matter() -> None:
    first, second = (remove_layers(make_model(), order) for order in ([4, 1], [1, 4]))
    with torch.no_grad():
        assert torch.equal(first(IDS).logits, second(IDS).logits)


def test_removing_nothing_is_the_identity() -> None:
    with torch.no_grad():
        same = remove_layers(make_model(), [])(IDS).logits
        assert torch.equal(same, make_model()(IDS).logits)


@pytest.mark.parametrize("kind", ["llama", "tied", "qwen2"])
def test_a_saved_model_comes_back_the_same(kind: str, tmp_path: Path) -> None:
    pruned = remove_layers(make_model(kind), [1])
    pruned.save_pretrained(tmp_path)
    again = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    assert len(layers(again)) == again.config.num_hidden_layers == len(layers(pruned))
    with torch.no_grad():
        assert torch.equal(pruned(IDS).logits, again(IDS).logits)


def test_impossible_removals_are_refused() -> None:
    with pytest.raises(ValueError, match=r"layers \[6, 9\] do not exist"):
        remove_layers(make_model(), [9, 6, 0])
    with pytest.raises(ValueError, match="leaves no model"):
        remove_layers(make_model(), range(6))
