"""Narrowed layers: every coupled matrix loses the same units, and nothing else changes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

from methods.core.model.backbone import Widths, attention, count, ffn, layers, widths
from methods.core.surgery.layers import add_output_biases, narrow
from tests.toys.models import CONFIGS, make_four

IDS = torch.arange(24).reshape(2, 12)
KINDS = [*sorted(CONFIGS), "mha"]
HEADS, CHANNELS = [[], [1], [0], []], [[], [3, 0, 60], [], [5]]


@torch.no_grad()
def logits(model: PreTrainedModel) -> Tensor:
    return model(IDS).logits


def queries_of(model: PreTrainedModel, head: int) -> list[int]:
    group = attention(layers(model)[0]).num_key_value_groups
    return [query for query in range(4) if query // group == head]


def rows(heads: list[int]) -> list[int]:
    return [row for row in range(32) if row // 8 in heads]


@torch.no_grad()
def zero_instead(model: PreTrainedModel) -> PreTrainedModel:
    """The dense model with zeros where ``narrow`` cuts, matrix by matrix."""
    for layer, heads, channels in zip(layers(model), HEADS, CHANNELS, strict=True):
        block, network = attention(layer), ffn(layer)
        queries = [query for head in heads for query in queries_of(model, head)]
        for linear, cut in (
            (block.q_proj, rows(queries)), (block.k_proj, rows(heads)), (block.v_proj, rows(heads)),
            (network.gate_proj, channels), (network.up_proj, channels),
        ):  # fmt: skip
            linear.weight[cut] = 0
            if linear.bias is not None:
                linear.bias[cut] = 0
        block.o_proj.weight[:, rows(queries)] = 0
        network.down_proj.weight[:, channels] = 0
    return model


@pytest.mark.parametrize("attention_kind", ["sdpa", "eager"])
@pytest.mark.parametrize("kind", KINDS)
def test_cutting_equals_zeroing(kind: str, attention_kind: str) -> None:
    cut, zeroed = make_four(kind), zero_instead(make_four(kind))
    for model in (cut, zeroed):
        model.set_attn_implementation(attention_kind)
    before = logits(cut)
    after = logits(narrow(cut, HEADS, CHANNELS))
    torch.testing.assert_close(after, logits(zeroed), rtol=1e-5, atol=1e-5)
    assert (after - before).abs().max() > 0.01


@pytest.mark.parametrize("kind", KINDS)
def test_coupled_matrices_keep_the_same_units(kind: str) -> None:
    dense, cut = make_four(kind), narrow(make_four(kind), HEADS, CHANNELS)
    old, new = attention(layers(dense)[1]), attention(layers(cut)[1])
    heads = [head for head in range(4 if kind == "mha" else 2) if head != 1]
    kept = rows(heads)
    queries = rows([query for head in heads for query in queries_of(dense, head)])
    for name, index in (("q_proj", queries), ("k_proj", kept), ("v_proj", kept)):
        before, after = getattr(old, name), getattr(new, name)
        assert torch.equal(after.weight, before.weight[index])
        assert after.out_features == len(index)
        if before.bias is not None:
            assert torch.equal(after.bias, before.bias[index])
    assert torch.equal(new.o_proj.weight, old.o_proj.weight[:, queries])
    assert new.o_proj.in_features == len(queries)

    old, new = ffn(layers(dense)[1]), ffn(layers(cut)[1])
    channels = [channel for channel in range(64) if channel not in (0, 3, 60)]
    assert torch.equal(new.gate_proj.weight, old.gate_proj.weight[channels])
    assert torch.equal(new.up_proj.weight, old.up_proj.weight[channels])
    assert torch.equal(new.down_proj.weight, old.down_proj.weight[:, channels])
    assert (new.gate_proj.out_features, new.down_proj.in_features) == (61, 61)


@pytest.mark.parametrize("kind", KINDS)
def test_everything_else_keeps_its_bits(kind: str) -> None:
    dense, cut = make_four(kind).state_dict(), narrow(make_four(kind), HEADS, CHANNELS).state_dict()
    touched = [
        name
        for name in dense
        if dense[name].shape != cut[name].shape or not torch.equal(dense[name], cut[name])
    ]
    parts = {
        name.split("layers.")[-1].removesuffix(".weight").removesuffix(".bias") for name in touched
    }
    attention_parts = {f"{n}.self_attn.{m}_proj" for n in (1, 2) for m in "qkvo"}
    ffn_parts = {f"{n}.mlp.{m}_proj" for n in (1, 3) for m in ("gate", "up", "down")}
    assert parts == attention_parts | ffn_parts


def test_biases_of_a_narrowed_ffn_go_with_their_rows() -> None:
    dense = make_four("llama", mlp_bias=True, attention_bias=True)
    for name, parameter in dense.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(parameter)
    cut = make_four("llama", mlp_bias=True, attention_bias=True)
    cut.load_state_dict(dense.state_dict())
    narrow(cut, HEADS, CHANNELS)
    torch.testing.assert_close(logits(cut), logits(zero_instead(dense)), rtol=1e-5, atol=1e-5)
    network = ffn(layers(cut)[1])
    assert (network.gate_proj.bias.shape, network.down_proj.bias.shape) == ((61,), (32,))


@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3"])
def test_sizes_are_read_from_the_layer(kind: str) -> None:
    cut = narrow(make_four(kind), HEADS, CHANNELS)
    found = [widths(layer) for layer in layers(cut)]
    assert found == [
        Widths(4, 2, 8, 64), Widths(2, 1, 8, 61), Widths(2, 1, 8, 64), Widths(4, 2, 8, 63)
    ]  # fmt: skip
    head = 2 * 32 * 8 * (2 + 1) + (8 * (2 + 2) if kind == "qwen2" else 0)
    assert count(make_four(kind)) - count(cut) == 2 * head + 3 * 32 * (3 + 1)


def test_the_config_keeps_the_dense_widths_where_layers_differ() -> None:
    config = narrow(make_four("llama"), HEADS, CHANNELS).config
    assert (config.num_attention_heads, config.num_key_value_heads) == (4, 2)
    assert config.intermediate_size == 64


@pytest.mark.parametrize("kind", KINDS)
def test_layers_of_one_width_load_with_the_stock_class(kind: str, tmp_path: Path) -> None:
    dropped = [0, 3] if kind == "mha" else [0]
    cut = narrow(make_four(kind), [dropped] * 4, [[1, 2, 9]] * 4)
    cut.save_pretrained(tmp_path)
    again = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    assert torch.equal(logits(again), logits(cut))
    assert again.config.intermediate_size == 61


def test_a_number_of_heads_that_a_config_refuses_is_not_written() -> None:
    config = narrow(make_four("mha"), [[0]] * 4, [[]] * 4).config
    assert config.num_attention_heads == 4


def test_dropping_nothing_is_the_identity() -> None:
    model = make_four("llama")
    parameters = list(model.parameters())
    narrow(model, [[]] * 4, [[]] * 4)
    assert all(a is b for a, b in zip(parameters, model.parameters(), strict=True))


@pytest.mark.parametrize(
    ("heads", "channels", "message"),
    [
        ([2], [], r"key/value heads \[2\] do not exist"),
        ([0, 1], [], "removing all 2 key/value heads"),
        ([], [64], r"FFN channels \[64\] do not exist"),
        ([], list(range(64)), "removing all 64 FFN channels"),
    ],
)
def test_impossible_cuts_are_refused(heads: list[int], channels: list[int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        narrow(make_four("llama"), [heads, [], [], []], [channels, [], [], []])


@pytest.mark.parametrize("kind", KINDS)
def test_output_biases_change_nothing_until_they_are_filled(kind: str) -> None:
    dense, model = make_four(kind), add_output_biases(make_four(kind))
    assert torch.equal(logits(model), logits(dense))
    assert count(model) - count(dense) == 4 * 2 * 32
    with torch.no_grad():
        for layer in layers(model):
            attention(layer).o_proj.bias += 1
            ffn(layer).down_proj.bias += 1
    first, second = logits(model), logits(add_output_biases(model))
    assert torch.equal(first, second)
    assert (first - logits(dense)).abs().max() > 0.01


def test_biases_that_are_there_stay() -> None:
    model = make_four("llama", attention_bias=True, mlp_bias=True)
    before = dict(model.named_parameters())
    assert dict(add_output_biases(model).named_parameters()) == before
