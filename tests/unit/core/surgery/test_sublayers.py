"""Layers without attention or FFN: what is left, its cache, its parameters."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from methods.core.model.backbone import (
    attention,
    attention_norm,
    count,
    decoder,
    ffn,
    ffn_norm,
    layers,
)
from methods.core.model.shapes import ATTENTION, FFN
from methods.core.surgery.layers import remove_layers, remove_sublayers
from methods.core.training.lora import add_lora
from tests.near import assert_near
from tests.toys.models import CONFIGS, make_model

IDS = torch.arange(24).reshape(2, 12)
# Attentions and FFNs that go; the first layer's attention held the first slot of the cache.
CUTS = [([0], []), ([0, 2], [1]), ([], [0, 3]), ([0, 1, 2, 3], [2])]
KINDS = [kind for kind in sorted(CONFIGS) if kind != "qwen2"]


def cut(kind: str, attentions: list[int], ffns: list[int]) -> Any:
    return remove_sublayers(make_model(kind, num_hidden_layers=4), attentions, ffns)


@torch.no_grad()
def by_hand(model: Any, attentions: list[int], ffns: list[int]) -> Tensor:
    """Logits of a dense model whose layers are walked one branch at a time."""
    inner = decoder(model)
    hidden = inner.embed_tokens(IDS)
    turn = inner.rotary_emb(hidden, position_ids=torch.arange(12)[None])
    window = getattr(model.config, "sliding_window", None) or 12
    distance = torch.arange(12)[:, None] - torch.arange(12)
    seen = (distance >= 0) & (distance < window)
    mask = torch.where(seen, 0.0, -torch.inf)[None, None]
    for number, layer in enumerate(layers(model)):
        if number not in attentions:
            normed = attention_norm(layer)(hidden)
            given = {"position_embeddings": turn, "attention_mask": mask}
            hidden = hidden + attention(layer)(hidden_states=normed, **given)[0]
        if number not in ffns:
            hidden = hidden + ffn(layer)(ffn_norm(layer)(hidden))
    return model.lm_head(inner.norm(hidden))


@pytest.mark.parametrize(("attentions", "ffns"), CUTS)
@pytest.mark.parametrize("kind", KINDS)
def test_logits_equal_a_walk_over_what_is_left(
    kind: str, attentions: list[int], ffns: list[int]
) -> None:
    expected = by_hand(make_model(kind, num_hidden_layers=4), attentions, ffns)
    with torch.no_grad():
        assert_near(cut(kind, attentions, ffns)(IDS).logits, expected)


@pytest.mark.parametrize(("attentions", "ffns"), CUTS)
@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_cached_steps_equal_the_full_forward_without_positions_being_passed(
    kind: str, attentions: list[int], ffns: list[int]
) -> None:
    model = cut(kind, attentions, ffns)
    step = model(IDS[:, :5], use_cache=True)
    parts = [step.logits]
    for t in range(5, 12):
        step = model(IDS[:, t : t + 1], past_key_values=step.past_key_values, use_cache=True)
        parts.append(step.logits)
    assert_near(torch.cat(parts, dim=1), model(IDS).logits)
    read = 0 if len(attentions) == 4 else 12
    assert step.past_key_values.get_seq_length() == read


@pytest.mark.parametrize(("attentions", "ffns"), CUTS)
@torch.no_grad()
def test_left_padding_changes_nothing(attentions: list[int], ffns: list[int]) -> None:
    model = cut("llama", attentions, ffns)
    pads = torch.zeros(2, 4, dtype=torch.int64)
    ids, mask = torch.cat([pads, IDS], 1), torch.cat([pads, torch.ones_like(IDS)], 1)
    places = (mask.cumsum(1) - 1).clamp(min=0)
    padded = model(ids, attention_mask=mask, position_ids=places).logits[:, 4:]
    assert_near(padded, model(IDS).logits)
    options = {"max_new_tokens": 6, "do_sample": False, "eos_token_id": None}
    written = model.generate(ids, attention_mask=mask, **options)[:, 16:]
    assert torch.equal(written, model.generate(IDS, **options)[:, 12:])


def test_both_branches_of_a_layer_are_the_layer() -> None:
    """Bit for bit: adding zeros moves none."""
    with torch.no_grad():
        whole = remove_layers(make_model(), [1, 4])(IDS).logits
        assert torch.equal(remove_sublayers(make_model(), [1, 4], [4, 1])(IDS).logits, whole)


def test_parameters_drop_by_the_branches_and_their_norms() -> None:
    dense, model = make_model(), remove_sublayers(make_model(), [0, 3], [3])
    parts = [
        (attention(layer), attention_norm(layer), ffn(layer), ffn_norm(layer))
        for layer in layers(dense)
    ]
    gone = count(*parts[0][:2]) + count(*parts[3])
    assert count(dense) - count(model) == gone
    assert len(layers(model)) == model.config.num_hidden_layers == 6


def test_surviving_attentions_take_the_first_slots_whatever_goes_later() -> None:
    model = remove_sublayers(make_model(), [0, 3], [])
    remove_layers(model, [1])
    slots = [getattr(attention(layer), "layer_idx", None) for layer in layers(model)]
    assert slots == [None, 0, None, 1, 2]


def test_lora_trains_what_is_left() -> None:
    model = add_lora(cut("llama", [0], [1]), (*ATTENTION, *FFN), range(4), 2, 2, 0)
    trained = {n.split(".lora_")[0] for n, p in model.named_parameters() if p.requires_grad}
    assert len(trained) == 4 * 7 - 4 - 3


def test_impossible_removals_are_refused() -> None:
    with pytest.raises(ValueError, match=r"layers \[6\] do not exist"):
        remove_sublayers(make_model(), [], [6, 0])
    with pytest.raises(ValueError, match="no attention can be removed: its layers attend in diff"):
        remove_sublayers(make_model("qwen2"), [1], [])
    remove_sublayers(make_model("qwen2"), [], [1])
