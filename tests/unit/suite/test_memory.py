"""The memory of a fit against a count of the tensors that autograd keeps."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from methods import discover, load_method
from methods.core.model.backbone import count, decoder
from methods.core.model.shapes import SHAPES
from methods.core.routing.routed import router_of
from methods.core.routing.router import Context
from methods.core.seeds import generator
from methods.core.training.packing import Rows
from tests import toy
from workflows.suite.memory import FitMemory, fit_memory
from workflows.suite.model import model_from
from workflows.suite.params import defaults
from workflows.suite.recipes import recipe

SIZES: dict[str, Any] = {
    "hidden_size": 96, "intermediate_size": 256, "num_hidden_layers": 8, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 24, "max_position_embeddings": 512,
}  # fmt: skip
ROWS, LENGTH, DOCUMENT = 2, 128, 64
# Rows that route the latter half of the layers here.
BY_LAYER = ("hero", "flexidepth", "diffskip")


def fitted(row: str, **params: Any) -> nn.Module:
    """A model as training sees it."""
    structure: dict[str, Any] = {"seed": 7, "threshold": 0.5, "capacity": 0.75}
    if row in (*BY_LAYER, "mindskip-block"):
        structure |= {"layers": [4, 5, 6, 7]}
    built = load_method(row, params).build(
        toy.wrap(toy.make_model(**SIZES, initializer_range=0.05)), structure | {"levels": None}
    )
    return built.train()


def forward(model: nn.Module) -> float:
    """One forward pass over packed rows; the share of the positions that run a unit."""
    ids = torch.arange(ROWS * LENGTH).reshape(ROWS, LENGTH) % 60
    positions = torch.arange(DOCUMENT).repeat(LENGTH // DOCUMENT).expand(ROWS, -1)
    extra = {"context": Context(0.5, generator(0, "noise"))} if router_of(model) else {}
    # As the training loop makes it.
    mask = Rows(*[positions] * len(Rows._fields)).mask(torch.float32)
    output = decoder(model)(
        input_ids=ids, attention_mask=mask, position_ids=positions, use_cache=False, **extra
    )
    return float(output.executed.float().mean()) if extra else 1.0


def kept(model: nn.Module) -> tuple[float, float]:
    """Bytes of the distinct tensors kept for a backward pass beside parameters; the share run."""
    own = {p.untyped_storage().data_ptr() for p in (*model.parameters(), *model.buffers())}
    found: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        if tensor.untyped_storage().data_ptr() not in own:
            found[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        share = forward(model)
    return float(sum(tensor.untyped_storage().nbytes() for tensor in found.values())), share


def planned(row: str, bypass: float, recomputed: bool = False, **params: Any) -> FitMemory:
    """The plan's figure at a bypass of the blocks that are routed."""
    method, sizes = discover()[row], model_from(toy.SHAPES["llama"] | SIZES)
    given = {**defaults(method), **method.params, **params}
    budget = 0.25
    if row in BY_LAYER:
        shape = sizes.shape(("k_proj", "v_proj")) if row == "flexidepth" else sizes.shape()
        budget = max(1e-6, bypass / 0.8 * 4 * shape.ffn / sizes.parameters)
        given["candidates"] = [4, 5, 6, 7]
    made = recipe(method.module.split(".")[1], sizes, given, budget)
    return fit_memory(sizes, made, 4, ROWS * LENGTH, LENGTH, recomputed)


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
        # A third of the positions bypass: the bias decides which.
        ("hero", {"adapter_width": 16, "head_width": 32, "initial_bias": 0.0}),
        ("flexidepth", {}),
        ("flexidepth", {"initial_bias": 0.0}),
        ("diffskip", {}),
        ("diffskip", {"initial_bias": 0.0}),
        ("mindskip-block", {}),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(map(str, value.values())),
)
def test_a_fit_keeps_what_autograd_keeps(row: str, params: dict[str, Any]) -> None:
    model = fitted(row, **params)
    activations, share = kept(model)
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    dense = count(model) - trained
    counted = 4 * dense + 16 * trained + activations
    plan = planned(row, 1 - share, **params)
    assert plan.weights == 4 * dense
    assert plan.trained == 16 * trained
    assert plan.weights + plan.trained + plan.activations == pytest.approx(counted, rel=0.10)
    # Not only since the weights are most of it.
    assert plan.activations == pytest.approx(activations, rel=0.10)


def test_recomputing_keeps_little() -> None:
    whole = planned("skipgpt-rt", 0.0)
    again = planned("skipgpt-rt", 0.0, recomputed=True)
    assert again.activations < whole.activations / 4
    assert again.peak < whole.peak


def test_hero_at_8b_fits_80_gb_with_6144_positions() -> None:
    row, eight = discover()["hero"], model_from(SHAPES["llama31_8b"])
    made = recipe("hero", eight, {**defaults(row), **row.params}, 0.25)
    plan = fit_memory(eight, made, 2, 6144, 2048, True)
    assert plan.weights == pytest.approx(16.06e9, rel=1e-3)
    assert 20e9 < plan.peak < 40e9
