"""The estimate of a fit's memory against a count of the tensors that autograd keeps."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from methods import discover, load_method
from methods.base import Cost, Request
from methods.core.model.backbone import decoder, empty_backbone, shape_config
from methods.core.model.shapes import SHAPES
from methods.core.routing.routed import router_of
from methods.core.routing.router import Context
from methods.core.seeds import generator
from methods.core.training import losses
from methods.core.training.documents import document_mask
from tests.toys.models import make_model, wrap
from workflows.evaluation import fidelity
from workflows.suite.load import Load
from workflows.suite.memory import (
    CHUNK,
    COMPARED,
    OPTIMIZER_BYTES,
    Dense,
    calibration_memory,
    fidelity_memory,
    scoring_memory,
    training_memory,
)
from workflows.timing.bounds import DecoderSizes

SIZES: dict[str, Any] = {
    "hidden_size": 96, "intermediate_size": 256, "num_hidden_layers": 8, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 24, "max_position_embeddings": 512,
}  # fmt: skip
ROWS, LENGTH, DOCUMENT = 2, 128, 64
# A published shape -> its sizes in bfloat16.
DENSE = {name: Dense.of(empty_backbone(shape_config(name)), "bfloat16") for name in SHAPES}
EIGHT = DENSE["llama31_8b"]


def forward(model: nn.Module) -> None:
    """One forward pass over packed rows, as the training loop makes it."""
    ids = torch.arange(ROWS * LENGTH).reshape(ROWS, LENGTH) % 60
    positions = torch.arange(DOCUMENT).repeat(LENGTH // DOCUMENT).expand(ROWS, -1)
    extra = {"context": Context(0.5, generator(0, "noise"))} if router_of(model) else {}
    mask = document_mask(positions, torch.float32)
    decoder(model)(
        input_ids=ids, attention_mask=mask, position_ids=positions, use_cache=False, **extra
    )


def saved_bytes(model: nn.Module) -> float:
    """Of the distinct tensors that a forward pass keeps for its backward pass; no parameters."""
    own = {p.untyped_storage().data_ptr() for p in (*model.parameters(), *model.buffers())}
    saved: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            saved[storage.data_ptr()] = storage.nbytes()
            alive.append(tensor)
        return tensor

    alive: list[Tensor] = []  # so that no address is used again
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        forward(model)
    return float(sum(saved.values()))


@pytest.mark.parametrize(
    ("row", "params"),
    [
        ("lora", {"rank": 4}),
        ("lora", {"rank": 4, "modules": "all"}),
        ("skipgpt-rt", {}),
        ("skipgpt-joint", {"rank": 4}),
        ("mod-d", {"rank": 4, "capacity": 0.75}),
        ("d-llm", {"rank": 4}),
        ("hero", {"adapter_width": 16, "head_width": 32}),
        ("flexidepth", {}),
        ("diffskip", {}),
        ("mindskip-block", {}),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(map(str, value.values())),
)
def test_a_fit_keeps_about_what_autograd_keeps(row: str, params: dict[str, Any]) -> None:
    method, backbone = load_method(row, params), wrap(make_model(**SIZES))
    dense = Dense.of(backbone, "float32")
    budget = 0.25 if discover()[row].budgeted else None
    cost = method.cost(empty_backbone(backbone.config), Request(budget, 7, Path()))
    structure = {"seed": 7, "threshold": 0.5, "capacity": 0.75, "levels": None}
    if cost.layers == 4:
        structure["layers"] = [4, 5, 6, 7]
    measured = saved_bytes(method.build(backbone, structure).train())
    positions = ROWS * LENGTH
    beside = training_memory(dense, cost, positions, LENGTH, False)
    beside -= training_memory(dense, cost, 0, LENGTH, False) + 12 * positions * dense.vocabulary
    # HeRo's router keeps numbers whose count does not grow with D: they matter in a toy alone.
    assert beside == pytest.approx(measured, rel=0.40)


def test_as_many_positions_are_estimated_at_a_time_as_are_computed() -> None:
    assert (CHUNK, COMPARED) == (losses.CHUNK, fidelity.POSITIONS)


def test_training_by_hand() -> None:
    """In float16: D 2, F 5, vocabulary 7, and 11 trained parameters under two of three layers."""
    shape = DecoderSizes(width=2, layers=3, attention=16, ffn=30, head=14)
    dense = Dense(shape, parameters=200, layer=50, channels=5, cached=4, vocabulary=7, number=2)
    cost = Cost(layers=2, trained=11)
    # Ten positions on rows of six: a layer holds 3 F + 10 D numbers of each, a mask six.
    layer, mask, logits = 2 * (3 * 5 + 10 * 2), 2 * 6, 7 * (12 + 2 * 2)
    beside = 2 * 200 + 11 * (16 + 2)
    whole = beside + 10 * (2 * layer + mask + logits)
    assert training_memory(dense, cost, 10, 6, recomputed=False) == whole
    kept = 2 * 2 * 2
    recomputed = beside + 10 * (kept + layer + mask + logits)
    assert training_memory(dense, cost, 10, 6, recomputed=True) == recomputed
    many = training_memory(dense, cost, 3000, 6, recomputed=False)
    assert many == beside + 3000 * (2 * layer + mask) + 2048 * logits


def test_what_trains_takes_a_value_a_gradient_and_two_moments() -> None:
    cost = Cost(layers=16, trained=1_000_000)
    more = replace(cost, trained=2_000_000)
    # In bfloat16 the forward pass uses a copy.
    difference = training_memory(EIGHT, more, 6144, 2048, True)
    difference -= training_memory(EIGHT, cost, 6144, 2048, True)
    assert difference == (OPTIMIZER_BYTES + 2) * 1_000_000


def test_recomputing_and_fewer_positions_take_less() -> None:
    cost = Cost(layers=32, trained=1_000_000)
    whole = training_memory(EIGHT, cost, 6144, 2048, False)
    assert training_memory(EIGHT, cost, 6144, 2048, True) < whole / 2
    assert training_memory(EIGHT, cost, 3072, 2048, False) < whole
    assert training_memory(EIGHT, replace(cost, layers=16), 6144, 2048, False) < whole


def test_memory_grows_with_the_model() -> None:
    sizes = ("smollm2_135m", "qwen25_05b", "llama32_1b", "llama31_8b")
    load = Load(1e6, 0.0, 0.0, 1e3, 200.0, 400.0)
    for kind in (
        lambda dense: training_memory(dense, Cost(layers=12, trained=10**6), 6144, 2048, True),
        lambda dense: calibration_memory(dense, 32_768),
        lambda dense: scoring_memory(dense, dense.weights, load, 16),
        lambda dense: fidelity_memory(dense, dense.weights, 16 * 2048) / 2,
    ):
        bytes_by_size = [kind(DENSE[name]) for name in sizes]
        assert bytes_by_size == sorted(bytes_by_size)
        assert all(
            memory > DENSE[name].weights for memory, name in zip(bytes_by_size, sizes, strict=True)
        )


def test_hero_at_8b_fits_80_gb_with_6144_positions() -> None:
    cost = load_method("hero").cost(
        empty_backbone(shape_config("llama31_8b")), Request(0.25, 1, Path())
    )
    assert EIGHT.weights == pytest.approx(16.06e9, rel=1e-3)
    assert 20e9 < training_memory(EIGHT, cost, 6144, 2048, True) < 40e9
