"""What methods state about their fits: trained parameters, depth of gradients, passes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from methods import Row, discover, load_method
from methods.base import Cost, Method, Request
from methods.core.model.backbone import empty_backbone, shape_config
from tests.examples.last_layers import LastLayers
from tests.examples.linear_gates import LinearGates
from tests.examples.quiet_tokens import QuietTokens


def cost_of(method: Method, budget: float | None = 0.25, shape: str = "llama31_8b") -> Cost:
    return method.cost(empty_backbone(shape_config(shape)), Request(budget, 1, Path()))


def row_cost(row: str, budget: float | None = 0.25, **params: Any) -> Cost:
    return cost_of(load_method(row, params), budget)


@pytest.mark.parametrize("row", discover().values(), ids=lambda row: row.name)
def test_every_row_states_a_cost(row: Row) -> None:
    cost = row_cost(row.name, 0.25 if row.budgeted else None)
    if row.trained:
        assert cost.trained > 0
        assert 0 < cost.layers <= 32
        assert cost.passes == 0
    else:
        assert (cost.trained, cost.layers) == (0, 0)


def test_what_reads_calibration_texts_passes_over_them() -> None:
    assert row_cost("ffn-skipllm").passes > 0


def test_a_method_that_says_nothing_has_a_default() -> None:
    assert cost_of(LastLayers()) == Cost(passes=1)
    assert cost_of(QuietTokens()) == Cost(probe_passes=7)
    # A vector of D for each of the 16 late layers.
    assert cost_of(LinearGates()) == Cost(probe_passes=12, layers=16, trained=16 * 4096)

    class Trained(LastLayers):
        trained = True

    assert cost_of(Trained()) == Cost(layers=32)


def test_gradients_flow_no_deeper_than_they_must() -> None:
    assert row_cost("hero").layers == row_cost("mindskip-block").layers == 16
    assert row_cost("lora", None).layers == 16
    assert row_cost("lora", None, modules="all").layers == 32
    # LoRA, or routers, on every layer.
    for row in ("skipgpt-rt", "skipgpt-joint", "d-llm", "mod-d"):
        assert row_cost(row).layers == 32


def test_what_hero_trains_follows_its_budget_candidates_and_variant() -> None:
    assert row_cost("hero").trained == 119_610_082
    assert row_cost("hero", 0.40).trained == 178_330_346
    pinned = row_cost("hero", None, alpha=1e-3, candidates=list(range(8, 32)))
    assert (pinned.layers, pinned.probe_passes) == (24, 0)
    adapters = 117_440_512
    variants = {"no-history": 1_049_089, "static": 16, "random": 0, "by-kind": 0, "by-token": 0}
    for variant, router in variants.items():
        assert row_cost("hero", variant=variant).trained == adapters + router


def test_two_kinds_of_tokens_take_more_looks_at_the_probe_texts() -> None:
    for match, passes in (("pooled", 7 + 5), ("split", 7 + 8)):
        backbone = empty_backbone(shape_config("llama31_8b"))
        cost = load_method("hero", {}).cost(backbone, Request(0.25, 1, Path(), match))
        assert cost.probe_passes == passes


def test_greedy_searches_take_half_a_pass_for_every_part_that_is_left() -> None:
    # 15 rounds over the 30 unprotected layers; the states of each round once.
    by_hand = 15 + sum(30 - n for n in range(15)) / 2
    assert row_cost("sleb", 0.4).passes == pytest.approx(by_hand, rel=0.03)
    assert row_cost("blockpruner", 0.4).passes > 2 * by_hand
    assert row_cost("sleb", samples=10, length=64).texts == 10
