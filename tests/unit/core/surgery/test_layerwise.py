"""Gradients layer by layer against one plain backward pass; what passes through modules."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from methods.core.data import Batch, Document, batches
from methods.core.model.backbone import layers, projections
from methods.core.surgery.layerwise import layer_gradients, observe
from tests.near import assert_near
from tests.toys.models import CONFIGS, make_model
from tests.toys.texts import ids_of

LENGTHS = [5, 9, 2, 12, 7]


def in_batches(texts: list[list[int]], size: int) -> list[Batch]:
    return list(batches([Document(ids, 0) for ids in texts], size))


def plain_gradients(model: PreTrainedModel, texts: list[list[int]]) -> dict[str, Tensor]:
    """d loss / d weight by the library's own loss on the padded documents, all in one batch."""
    (batch,) = in_batches(texts, len(texts))
    model.zero_grad()
    model(batch.ids, labels=batch.ids.masked_fill(~batch.valid, -100)).loss.backward()
    found = {name: p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad()
    return found


def name_of(layer: int, matrix: str) -> str:
    block = "self_attn" if matrix[0] in "qkvo" else "mlp"
    return f"model.layers.{layer}.{block}.{matrix}.weight"


@pytest.mark.parametrize("size", [1, 2, 5])
@pytest.mark.parametrize("kind", sorted(CONFIGS))
def test_the_mean_equals_one_backward_pass(kind: str, size: int) -> None:
    model, texts = make_model(kind), ids_of(LENGTHS)
    expected = plain_gradients(model, texts)
    for found in layer_gradients(model, in_batches(texts, size), range(1, 3)):
        assert set(found.first) == set(projections(layers(model)[0]))
        assert found.squares == {}
        for matrix, gradient in found.first.items():
            torch.testing.assert_close(
                gradient, expected[name_of(found.layer, matrix)], rtol=1e-4, atol=1e-6
            )


@pytest.mark.parametrize("kind", ["llama", "qwen2"])
def test_squares_are_those_of_single_documents(kind: str) -> None:
    model, texts = make_model(kind), ids_of(LENGTHS)
    alone = [plain_gradients(model, [ids]) for ids in texts]
    for found in layer_gradients(model, in_batches(texts, 1), range(4), squared=True):
        for matrix, square in found.squares.items():
            name = name_of(found.layer, matrix)
            expected = torch.stack([one[name].square() for one in alone]).mean(0)
            torch.testing.assert_close(square, expected, rtol=1e-4, atol=1e-9)


@pytest.mark.parametrize("size", [1, 2])
def test_every_batch_may_add_its_own_mean(size: int) -> None:
    model, texts = make_model(), ids_of(LENGTHS)
    groups = [texts[start : start + size] for start in range(0, len(texts), size)]
    alone = [plain_gradients(model, group) for group in groups]

    def chosen(layer: nn.Module) -> dict[str, nn.Parameter]:
        return {"norm": layer.get_parameter("input_layernorm.weight")}

    for found in layer_gradients(
        model, in_batches(texts, size), range(6), weights_of=chosen, by_batch=True
    ):
        name = f"model.layers.{found.layer}.input_layernorm.weight"
        expected = torch.stack([one[name] for one in alone]).sum(0)
        assert set(found.first) == {"norm"}
        torch.testing.assert_close(found.first["norm"], expected, rtol=1e-4, atol=1e-6)


def test_neither_order_nor_grouping_of_documents_matters() -> None:
    model, texts = make_model(), ids_of(LENGTHS)
    first = list(layer_gradients(model, in_batches(texts, 5), range(6)))
    other = list(layer_gradients(model, in_batches(texts[::-1], 2), range(6)))
    for a, b in zip(first, other, strict=True):
        for matrix, gradient in a.first.items():
            torch.testing.assert_close(gradient, b.first[matrix], rtol=1e-4, atol=1e-6)


def test_only_the_layers_asked_for_come_the_last_one_first() -> None:
    model = make_model()
    found = layer_gradients(model, in_batches(ids_of([6]), 1), range(2, 4))
    assert [one.layer for one in found] == [3, 2]


def test_the_model_is_left_as_it_was() -> None:
    model = make_model()
    before = {name: p.clone() for name, p in model.named_parameters()}
    list(layer_gradients(model, in_batches(ids_of([6, 4]), 1), range(6), squared=True))
    for name, parameter in model.named_parameters():
        assert parameter.grad is None
        assert parameter.requires_grad
        assert torch.equal(parameter, before[name])
    assert all(not layer._forward_pre_hooks for layer in layers(model))
    assert not layers(model)[-1]._forward_hooks


def test_gradients_of_16_bit_weights_add_up_in_float32() -> None:
    texts = ids_of([6, 8, 5])
    model = make_model().to(torch.bfloat16)
    exact = plain_gradients(make_model().to(torch.bfloat16).float(), texts)
    for found in layer_gradients(model, in_batches(texts, 1), range(6), squared=True):
        for matrix, gradient in found.first.items():
            expected = exact[name_of(found.layer, matrix)]
            assert gradient.dtype == found.squares[matrix].dtype == torch.float32
            assert (gradient - expected).norm() < 0.05 * expected.norm()


def test_a_document_of_one_token_adds_nothing() -> None:
    model, texts = make_model(), ids_of([6, 1, 8])
    with_one = list(layer_gradients(model, in_batches(texts, 1), range(6)))
    without = list(layer_gradients(model, in_batches([texts[0], texts[2]], 1), range(6)))
    for a, b in zip(with_one, without, strict=True):
        assert all(torch.equal(a.first[matrix], b.first[matrix]) for matrix in a.first)


def test_documents_without_a_prediction_are_refused() -> None:
    with pytest.raises(ValueError, match="no token to predict"):
        list(layer_gradients(make_model(), in_batches(ids_of([1, 1]), 2), range(6)))


def test_observed_tokens_are_those_of_each_document_alone() -> None:
    model, texts = make_model(), ids_of(LENGTHS)
    modules = [projections(layer)["down_proj"] for layer in layers(model)]

    def seen(given: list[list[int]]) -> list[tuple[int, Tensor, Tensor]]:
        found: list[tuple[int, Tensor, Tensor]] = []
        (batch,) = in_batches(given, len(given))
        observe(model, batch, modules, lambda *parts: found.append(parts))
        return found

    together, alone = seen(texts), [seen([ids]) for ids in texts]
    assert [number for number, _, _ in together] == list(range(6))
    for number, read, made in together:
        for found, part in ((read, 1), (made, 2)):
            assert_near(found, torch.cat([parts[number][part] for parts in alone]))


def test_nothing_is_observed_behind_a_failure() -> None:
    model = make_model()
    (batch,) = in_batches([[1, 2]], 1)

    def fail(*_: object) -> None:
        raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        observe(model, batch, layers(model), fail)
    assert not any(layer._forward_hooks for layer in layers(model))
