"""Counts on the true shapes, without weights: what HeRo and LoRA train, how much HeRo can skip."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from methods import load_method
from methods.base import Request
from methods.core.model.backbone import Backbone, empty_backbone, shape_config
from methods.core.model.ledger import Ledger, Tally
from methods.core.model.shapes import candidate_layers
from methods.core.routing.routed import router_of

DENSE = {
    "llama31_8b": 8_030_261_248,
    "llama2_7b": 6_738_415_616,
    "llama2_13b": 13_015_864_320,
}
# shape, budget, routed FFNs, adapters, shared, trained, % skipped with every FFN bypassed
HERO = [
    ("llama31_8b", 0.25, 16, 117_440_512, 2_169_554, 119_610_082, 35.0994),
    ("llama31_8b", 0.40, 24, 176_160_768, 2_169_554, 178_330_346, 52.6491),
    ("llama2_7b", 0.25, 16, 117_440_512, 2_169_554, 119_610_082, 32.1182),
    ("llama2_13b", 0.25, 20, 183_500_800, 2_694_866, 186_195_686, 32.6274),
]
# Trained at rank 128: 8B, 7B, 13B.
LORA = {
    "mlp_candidates": (113_246_208, 92_798_976, 145_489_920),
    "attn_all": (109_051_904, 134_217_728, 209_715_200),
    "qv_all": (54_525_952, 67_108_864, 104_857_600),
    "mlp_all": (226_492_416, 185_597_952, 290_979_840),
    "all": (335_544_320, 319_815_680, 500_695_040),
}


def trained(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters() if p.requires_grad)


def empty(shape: str) -> Backbone:
    backbone = empty_backbone(shape_config(shape))
    assert backbone.parameters == DENSE[shape]
    return backbone


def hero(shape: str, budget: float, **params: Any) -> nn.Module:
    backbone = empty(shape)
    layers = candidate_layers(backbone.layer_count, budget)
    structure = {"layers": layers, "seed": 1, "threshold": 0.5, "closed": 3}
    structure["rates"] = [0.5] * len(layers)
    return load_method("hero", params).build(backbone, structure)


@pytest.mark.parametrize("line", HERO, ids=lambda line: f"{line[0]}-{line[2]}")
def test_what_hero_trains_and_can_skip(line: tuple[Any, ...]) -> None:
    """Property 10: the ceiling of the skip rate."""
    shape, budget, ffns, adapters, shared, total, ceiling = line
    model = hero(shape, budget)
    router = router_of(model)
    assert router is not None
    assert {p.device.type for p in model.parameters()} == {"meta"}
    found = sum(trained(router.alternative(n)) for n in range(ffns))
    assert len(router.units) == ffns
    assert [unit.layer for unit in router.units][-1] == len(model.model.layers) - 1
    assert found == adapters
    assert router.eta.numel() == ffns
    assert trained(router) - found - ffns == shared
    assert trained(model) == total

    ledger = Ledger.of(model, DENSE[shape], len(model.model.layers))
    tally = Tally(ledger)
    tally.add(torch.zeros(ffns, 3, dtype=torch.bool), 3)
    rates = tally.rates()
    assert round(100 * rates.skip, 4) == ceiling
    # Every token ran the router and every adapter, that is all that was trained.
    assert rates.skip - rates.skip_net == pytest.approx(total / DENSE[shape], rel=1e-12)


def test_parts_of_the_router_at_4096() -> None:
    router = router_of(hero("llama31_8b", 0.25))
    counts: dict[str, int] = {}
    for name, weight in router.formula_parameters().items():
        part = name.split("_")[0] if name.endswith(("W1", "b1", "W2", "b2")) else name
        counts[part] = counts.get(part, 0) + weight.numel()
    assert counts == {
        "rms_w": 4096,
        "W_hd": 1_048_576,
        "W_hu": 12_288,
        "path": 1488,
        "W_q": 4096,
        "W_k": 4096,
        "W_v": 4096,
        "W_n": 4096,
        "W_c": 4096,
        "hist": 33_537,
        "local": 1_049_089,
        "eta": 16,
    }


@pytest.mark.parametrize(("shape", "width"), [("llama31_8b", 4096), ("llama2_13b", 5120)])
def test_the_same_size_control_trains_as_much(shape: str, width: int) -> None:
    adapters = next(line[3] for line in HERO if line[0] == shape)
    full = trained(hero(shape, 0.25)) - adapters
    control = trained(hero(shape, 0.25, variant="same-size")) - adapters
    # The second head grows in units of width + 2 parameters; half a unit is 0.1 % of the router.
    assert abs(control - full) <= (width + 2) / 2


@pytest.mark.parametrize(
    ("variant", "beyond_adapters"),
    [("no-history", 1_049_089), ("no-aux", 2_169_570 - 1_488), ("static", 16), ("random", 0)],
)
def test_what_the_smaller_routers_train(variant: str, beyond_adapters: int) -> None:
    model = hero("llama31_8b", 0.25, variant=variant)
    assert trained(model) - 117_440_512 == beyond_adapters


@pytest.mark.parametrize("width", [32, 128, 256])
def test_the_memory_width_changes_five_matrices(width: int) -> None:
    # W_q, W_k, W_v and W_c are 64 x M; the history head reads M numbers with 256 units.
    expected = 119_610_082 + (width - 64) * (4 * 64 + 256)
    assert trained(hero("llama31_8b", 0.25, memory_width=width)) == expected


def test_a_budget_above_the_ceiling_does_not_apply(tmp_path: Any) -> None:
    backbone = empty("llama31_8b")
    method = load_method("hero", {"candidates": list(range(16, 32))})
    assert method.skip_reason(backbone, Request(0.35, 1, tmp_path)) is None
    reason = method.skip_reason(backbone, Request(0.352, 1, tmp_path))
    assert reason is not None and "35.1%" in reason
    assert load_method("hero").skip_reason(backbone, Request(0.40, 1, tmp_path)) is None


@pytest.mark.parametrize("variant", ["static", "random", "full"])
def test_a_control_needs_a_budget_and_a_router_with_alpha_none(variant: str, tmp_path: Any) -> None:
    backbone = empty("llama31_8b")
    method = load_method("hero", {"variant": variant, "alpha": 1e-3, "candidates": [30, 31]})
    reasons = [method.skip_reason(backbone, Request(b, 1, tmp_path)) for b in (None, 0.4)]
    if variant == "full":
        assert reasons == [None, None]
    else:
        assert reasons[0] == f"variant '{variant}' needs a budget"
        assert reasons[1] is not None and "4.4%" in reasons[1]


@pytest.mark.parametrize("modules", LORA)
@pytest.mark.parametrize(("column", "shape"), enumerate(DENSE))
def test_what_lora_trains(column: int, shape: str, modules: str) -> None:
    model = load_method("lora", {"modules": modules}).build(empty(shape), {"seed": 1})
    assert trained(model) == LORA[modules][column]
