"""Every kind of router in a model that was converted to 16 bits: it decides in float32."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from methods import load_method
from methods.core.routing.router import Context
from tests.toys.models import make_model, wrap
from tests.toys.routed import IDS, VARIANTS, shake_variant

HEROES: dict[str, dict[str, Any]] = {
    **{
        variant: {}
        for variant in (
            "full", "no-history", "no-memread", "no-aux", "no-position", "same-size", "difference",
        )
    },
    "block": {"unit": "block"},
    "static": {},
    "random": {},
    "by-kind": {},
    "by-token": {},
}  # fmt: skip
RATES = {
    "random": [[0.4]] * 4,
    "by-kind": [[0.2, 0.7]] * 4,
    "by-token": [[-1, 0.1, 0.3, 0.5, 0.9], [5, 0.8, 0.2, 0.6, 0.4]],
}
HALVES = [torch.bfloat16, torch.float16]


def hero(name: str) -> Any:
    """A variant of HeRo with every trained weight moved; decisions go both ways."""
    given = {"variant": "full" if name == "block" else name, "initial_bias": 0.0} | HEROES[name]
    structure = {"layers": [2, 3, 4, 5], "seed": 7, "threshold": 0.5, "closed": 2}
    method = load_method("hero", given)
    model = method.build(wrap(make_model()), structure | {"rates": RATES.get(name)})
    rng = torch.Generator().manual_seed(11)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter += 0.3 * torch.randn(parameter.shape, generator=rng)
    return model.eval()


MODELS = {name: lambda name=name: shake_variant(name) for name in VARIANTS} | {
    f"hero-{name}": lambda name=name: hero(name) for name in HEROES
}
AT = Context(answers=(torch.arange(IDS.shape[1]) >= 6).float().expand_as(IDS))


def numbers(module: nn.Module) -> dict[str, Tensor]:
    """Its parameters and buffers that are no whole numbers."""
    named = [*module.named_parameters(), *module.named_buffers()]
    return {name: tensor for name, tensor in named if tensor.is_floating_point()}


@torch.no_grad()
@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_a_converted_model_decides_in_float32(name: str, dtype: torch.dtype) -> None:
    exact, model = MODELS[name](), MODELS[name]().to(dtype)
    router, before = model.model.router, numbers(exact.model.router)
    alternatives = [numbers(branch) for branch in router.alternatives()]
    following = {id(tensor) for named in alternatives for tensor in named.values()}
    for place, tensor in numbers(router).items():
        if id(tensor) in following:
            assert tensor.dtype is dtype
        else:
            assert tensor.dtype is before[place].dtype
            assert torch.equal(tensor, before[place])

    expected = exact.model(IDS, use_cache=False, context=AT)
    found = model.model(IDS, use_cache=False, context=AT)
    assert found.last_hidden_state.dtype is dtype
    assert expected.soft is None or found.soft.dtype is torch.float32
    assert 0 < float(expected.executed.double().mean()) < 1
    assert float((found.executed == expected.executed).double().mean()) > 0.95


@torch.no_grad()
def test_a_conversion_leaves_rotary_frequencies_as_transformers_loads_them() -> None:
    exact, model = hero("full"), hero("full").to(torch.bfloat16)
    assert torch.equal(model.model.rotary_emb.inv_freq, exact.model.rotary_emb.inv_freq)
    assert model.model.norm.weight.dtype is torch.bfloat16
    assert next(model.to("meta").model.rotary_emb.buffers()).is_meta


def test_back_in_32_bits_routers_are_what_they_were() -> None:
    router = hero("full").to(torch.float16).float().model.router
    assert {tensor.dtype for tensor in numbers(router).values()} == {torch.float32}
    before = numbers(hero("full").model.router)
    for place, tensor in numbers(router).items():
        assert "adapters" in place or torch.equal(tensor, before[place])
