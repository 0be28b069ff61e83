"""One layer in place of several: both of LaCo's formulas."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from methods.core.model.backbone import attention, layers
from methods.core.surgery.layers import merge_layers
from tests.toys.models import make_model

MATRICES = (
    "self_attn.q_proj",
    "self_attn.k_proj",
    "self_attn.v_proj",
    "self_attn.o_proj",
    "mlp.gate_proj",
    "mlp.up_proj",
    "mlp.down_proj",
)
BOTH = pytest.mark.parametrize("merge", ["reference", "rdsc"])


def stack(kind: str = "llama", total: int = 7) -> list[nn.Module]:
    """Layers with random norms and biases, which come as ones and zeros."""
    model = make_model(kind, num_hidden_layers=total, layer_types=None)
    for parameter in layers(model).parameters():
        if parameter.dim() == 1:
            nn.init.uniform_(parameter, 0.2, 2.0)
    return list(layers(model))


def state(layer: nn.Module) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in layer.named_parameters()}


def is_merged(name: str) -> bool:
    return "_proj." in name


def equal(first: dict[str, Tensor], second: dict[str, Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[n], second[n]) for n in first)


@BOTH
@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("m", [1, 2, 3])
def test_equal_layers_merge_to_themselves(m: int, kind: str, merge: str) -> None:
    first, *others = stack(kind)[: m + 1]
    for other in others:
        for name, tensor in other.named_parameters():
            if is_merged(name):
                tensor.data.copy_(first.get_parameter(name))
    assert equal(state(merge_layers(first, others, merge)), state(first))


@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3"])
def test_merging_one_layer_is_the_same_in_both_formulas(kind: str) -> None:
    first, second = stack(kind)[:2]
    merged = [state(merge_layers(first, [second], merge)) for merge in ("reference", "rdsc")]
    assert equal(*merged)
    source = {True: state(second), False: state(first)}
    assert equal(merged[0], {name: source[is_merged(name)][name] for name in merged[0]})


@pytest.mark.parametrize("m", [2, 3])
def test_reference_keeps_the_last_layer_and_the_first_norms(m: int) -> None:
    first, *others = stack()[2 : 3 + m]
    merged = state(merge_layers(first, others, "reference"))
    source = {True: state(others[-1]), False: state(first)}
    assert equal(merged, {name: source[is_merged(name)][name] for name in merged})


@pytest.mark.parametrize("kind", ["llama", "qwen2"])
@pytest.mark.parametrize("m", [2, 3])
def test_rdsc_adds_the_differences_to_the_untouched_base(m: int, kind: str) -> None:
    first, *others = stack(kind)[2 : 3 + m]
    merged = state(merge_layers(first, others, "rdsc"))
    for name, tensor in merged.items():
        base = first.get_parameter(name).double()
        if is_merged(name):
            expected = sum(o.get_parameter(name).double() for o in others) - (m - 1) * base
            torch.testing.assert_close(tensor.double(), expected, rtol=1e-6, atol=1e-6)
            # The notebook's loop reads a base that it has overwritten: another result.
            assert (tensor - others[-1].get_parameter(name)).abs().max() > 1e-2
        else:
            assert torch.equal(tensor.double(), base)


def test_rdsc_adds_up_in_float32() -> None:
    first, *others = [layer.to(torch.bfloat16) for layer in stack()[:7]]
    merged = merge_layers(first, others, "rdsc").mlp.up_proj.weight
    parts = [layer.mlp.up_proj.weight.double() for layer in (first, *others)]
    exact = parts[0] + sum(part - parts[0] for part in parts[1:])
    assert merged.dtype == torch.bfloat16
    # At most a last bit of float32 lies between the exact sum and what is rounded.
    assert (merged == exact.to(torch.bfloat16)).double().mean() > 0.999


@BOTH
def test_merging_shares_what_does_not_change_and_changes_nothing_given(merge: str) -> None:
    given = stack()[:3]
    before = [state(layer) for layer in given]
    merged = merge_layers(given[0], given[1:], merge)
    assert all(equal(state(layer), old) for layer, old in zip(given, before, strict=True))
    known = {p.data_ptr() for layer in given for p in layer.parameters()}
    fresh = [name for name, p in merged.named_parameters() if p.data_ptr() not in known]
    assert fresh == ([] if merge == "reference" else [f"{name}.weight" for name in MATRICES])
    assert attention(merged) is not attention(given[0])
    assert attention(merged).config is attention(given[0]).config
