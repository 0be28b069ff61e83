"""Counts on the true shapes, without weights: what the routers hold, save and must aim at."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from methods import load_method
from methods.core.model.backbone import Backbone, empty_backbone, shape_config
from methods.core.model.ledger import Ledger, Rates, Tally
from methods.d_llm import omega_for
from methods.mod_d.competition import capacity_for
from tests.toys.models import make_model, wrap
from tests.toys.routed import build_variant

START = {"seed": 1, "threshold": 0.5, "capacity": 0.7, "levels": None}
# Parameters of a layer, norms included, as in the paper's own counts.
BLOCK = {"llama31_8b": 218_112_000, "llama2_7b": 202_383_360, "llama2_13b": 317_204_480}


def empty(shape: str = "llama31_8b") -> Backbone:
    return empty_backbone(shape_config(shape))


def routed(row: str, backbone: Backbone, **params: Any) -> Any:
    return load_method(row, params).build(backbone, START)


@pytest.mark.parametrize("row", ["skipgpt-rt", "skipgpt-joint", "d-llm", "mod-d"])
def test_lora_is_no_part_of_what_is_skipped(row: str) -> None:
    """A skipped unit saves its dense parameters; LoRA beside them is charged apart."""
    backbone = empty()
    ran = {u.kind: u.parameters for u in routed(row, backbone).model.router.units}
    heads = 2 * 4096 * 4096
    dense = {
        "attention": heads,
        "ffn": 3 * 4096 * 14336,
        "evicting": BLOCK["llama31_8b"],
    }
    assert ran == {kind: dense[kind] for kind in ran}


def rates(model: Any, backbone: Backbone, ran: torch.Tensor) -> Rates:
    tally = Tally(Ledger.of(model, backbone.parameters, len(model.model.layers)))
    tally.add(ran, ran.shape[1])
    return tally.rates()


@pytest.mark.parametrize(
    ("row", "params", "routers", "each"),
    [
        ("skipgpt-rt", {}, 64, 8_194),
        ("skipgpt-rt", {"router": "mlp"}, 64, 4_197_378),
        ("d-llm", {}, 30, 2_099_202),
        ("d-llm", {"router": "linear", "evict": False, "start_layer": 0}, 32, 8_194),
        ("mod-d", {}, 60, 4_097),
    ],
    ids=["skipgpt", "skipgpt-mlp", "d-llm", "d-llm-linear", "mod-d"],
)
def test_routers_at_8b(row: str, params: dict[str, Any], routers: int, each: int) -> None:
    made = routed(row, empty(), **params).model.router
    assert [sum(p.numel() for p in r.parameters()) for r in made.routers] == [each] * routers
    assert len(made.units) == routers
    assert sum(p.numel() for p in made.parameters()) == routers * each
    # The two totals that the papers state.
    if row == "skipgpt-rt":
        assert routers * each == (268_632_192 if params else 524_416)


def test_trained_parameters_at_8b() -> None:
    """Queries are 4096 wide, keys and values 1024: rank times inputs plus outputs."""
    qv = 32 * 16 * ((4096 + 4096) + (4096 + 1024))
    qkv = 32 * 8 * ((4096 + 4096) + 2 * (4096 + 1024))
    expected = {
        "skipgpt-rt": 524_416,
        "skipgpt-joint": 524_416 + qv,
        "mod-d": 60 * 4_097 + qv,
        "d-llm": 30 * 2_099_202 + qkv,
    }
    for row, number in expected.items():
        model = routed(row, empty())
        assert sum(p.numel() for p in model.parameters() if p.requires_grad) == number, row


@pytest.mark.parametrize(
    ("shape", "reads", "keys", "all_blocks"),
    [
        ("llama31_8b", 33_554_432, 8_388_608, 0.869),
        ("llama2_7b", 33_554_432, 33_554_432, 0.961),
        ("llama2_13b", 52_428_800, 52_428_800, 0.975),
    ],
)
def test_what_a_skipped_attention_saves(
    shape: str, reads: int, keys: int, all_blocks: float
) -> None:
    """Keys and values always run: with them the units hold the shares that the authors count."""
    backbone = empty(shape)
    total, count = backbone.parameters, backbone.layer_count
    model = routed("skipgpt-rt", backbone)
    units = model.model.router.units
    assert [(unit.layer, unit.kind) for unit in units] == [
        (n, kind) for n in range(count) for kind in ("attention", "ffn")
    ]
    assert {u.parameters for u in units if u.kind == "attention"} == {reads}
    skip = rates(model, backbone, torch.zeros(2 * count, 1, dtype=torch.bool)).skip
    assert skip + keys * count / total == pytest.approx(all_blocks, abs=6e-4)
    # A quarter of all modules as the authors count: 0.4 of attention and 0.1 of the FFN.
    ran = torch.ones(2 * count, 10, dtype=torch.bool)
    ran[::2, :4], ran[1::2, :1] = False, False
    found = rates(model, backbone, ran)
    assert load_method("skipgpt-rt").authors_skip(found) == pytest.approx(0.25)
    saved = count * (0.4 * reads + 0.1 * units[1].parameters)
    assert found.skip == pytest.approx(saved / total)


@pytest.mark.parametrize(
    ("shape", "budget", "omega", "skipped"),
    [
        ("llama31_8b", 0.25, 0.712, 9.21),
        ("llama31_8b", 0.40, 0.540, 14.73),
        ("llama2_7b", 0.25, 0.740, 8.32),
        ("llama2_7b", 0.40, 0.584, 13.32),
        ("llama2_13b", 0.25, 0.744, 10.26),
        ("llama2_13b", 0.40, 0.590, 16.41),
    ],
)
def test_omega_for_a_budget(shape: str, budget: float, omega: float, skipped: float) -> None:
    """A skipped layer saves all of its parameters: what it evicts is not computed either."""
    backbone = empty(shape)
    found = omega_for(budget, load_method("d-llm").shares(backbone, budget), backbone.layer_count)
    assert found == pytest.approx(omega, abs=6e-4)
    assert (1 - found) * backbone.layer_count == pytest.approx(skipped, abs=6e-3)
    units = routed("d-llm", backbone).model.router.units
    assert {unit.parameters for unit in units} == {BLOCK[shape]}


@pytest.mark.parametrize(
    ("shape", "budget", "whole", "without_keys"),
    [
        ("llama31_8b", 0.25, 0.693, 0.681),
        ("llama31_8b", 0.40, 0.509, 0.489),
        ("llama2_7b", 0.25, 0.723, 0.667),
        ("llama2_7b", 0.40, 0.556, 0.468),
        ("llama2_13b", 0.25, 0.730, 0.677),
        ("llama2_13b", 0.40, 0.568, 0.483),
    ],
)
def test_capacity_for_a_budget(
    shape: str, budget: float, whole: float, without_keys: float
) -> None:
    """On documents of 4,096 tokens; the strict comparison costs one of them.

    ``whole`` counts all of a skipped attention; keys and values run, so less capacity is left.
    """
    backbone = empty(shape)
    routed_layers = backbone.layer_count - 2
    shares = load_method("mod-d").shares(backbone, budget)
    sizes = {whole: routed_layers * BLOCK[shape] / backbone.parameters}
    sizes[without_keys] = float(shares.sum())
    for expected, share in sizes.items():
        target = 1 - budget / share
        strict = capacity_for(target, [4096] * 3, "strict")
        assert strict - 1 / 4096 == pytest.approx(expected, abs=8e-4)
        inclusive = capacity_for(target, [4096] * 3, "inclusive")
        assert strict - inclusive == pytest.approx(1 / 4096, rel=1e-3)


@pytest.mark.parametrize(("depth", "start"), [(32, 2), (40, 2), (12, 1), (4, 1)])
def test_the_first_routed_layer_of_d_llm_follows_the_depth(depth: int, start: int) -> None:
    model = routed("d-llm", wrap(make_model(num_hidden_layers=depth)))
    assert [unit.layer for unit in model.model.router.units] == list(range(start, depth))


def test_authors_of_d_llm_count_layers() -> None:
    ran = torch.ones(5, 4, dtype=torch.bool)
    ran[1, :3] = False
    found = rates(build_variant("d-llm"), wrap(make_model()), ran)
    assert load_method("d-llm").authors_skip(found) == pytest.approx(0.75 / 6)


def test_authors_of_mod_d_count_modules_that_have_routers() -> None:
    found = rates(build_variant("mod-d"), wrap(make_model()), torch.tensor([[True], [False]] * 4))
    assert load_method("mod-d").authors_skip(found) == pytest.approx(0.5)
