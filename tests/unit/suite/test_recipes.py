"""What fits train and run, against the methods themselves and operations counted by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from methods import Row, discover, load_method
from methods.core.model.backbone import empty_backbone, shape_config
from methods.core.model.shapes import SHAPES
from tests import toy
from workflows.suite.model import model_from
from workflows.suite.params import defaults
from workflows.suite.recipes import Recipe, recipe

TRAINED = [row for row in discover().values() if row.trained]
EIGHT = model_from(SHAPES["llama31_8b"])


def made(name: str, model: Any = EIGHT, budget: float | None = 0.25, **params: Any) -> Recipe:
    row = discover()[name]
    given = {**defaults(row), **row.params, **params}
    return recipe(row.module.split(".")[1], model, given, budget)


@pytest.mark.parametrize("row", TRAINED, ids=lambda row: row.name)
@pytest.mark.parametrize("shape", ["llama31_8b", "smollm2_135m"])
def test_trained_parameters_are_those_of_the_method(row: Row, shape: str) -> None:
    backbone = empty_backbone(shape_config(shape))
    structure = {"seed": 1, "threshold": 0.5, "capacity": 0.75, "levels": None}
    # Layers are the method's own for a budget of 25 %.
    model = load_method(row.name).build(backbone, structure)
    found = sum(p.numel() for p in model.parameters() if p.requires_grad)
    assert made(row.name, model_from(SHAPES[shape])).trained == found


@pytest.mark.parametrize(
    ("variant", "count"),
    [("no-history", 1_049_089), ("no-aux", 2_169_570 - 1_488), ("static", 16), ("random", 0)],
)
def test_trained_parameters_of_heros_variants(variant: str, count: int) -> None:
    assert made("hero", variant=variant).trained == 117_440_512 + count


def test_heros_candidates_follow_the_budget_or_are_named() -> None:
    assert made("hero", budget=0.40).trained == 178_330_346
    assert made("hero", budget=None, alpha=1e-3).trained == 119_610_082
    assert made("hero", budget=None, alpha=1e-3, candidates=list(range(8, 32))).reached == 24


@pytest.mark.parametrize(
    ("bypass", "again", "giga"),
    [
        (0.0, True, 30.7),
        (0.5, True, 22.7),
        (0.765, True, 18.4),
        (0.0, False, 23.5),
        (0.5, False, 18.2),
        (0.765, False, 15.4),
    ],
)
def test_a_training_step_of_hero(bypass: float, again: bool, giga: float) -> None:
    flops = replace(made("hero"), bypass=bypass).flops(700, again)
    assert flops == pytest.approx(giga * 1e9, rel=0.05)


@pytest.mark.parametrize(("again", "giga"), [(True, 47.2), (False, 32.4)])
def test_a_training_step_of_lora_on_all_linears(again: bool, giga: float) -> None:
    flops = made("lora", modules="all").flops(700, again)
    assert flops == pytest.approx(giga * 1e9, rel=0.05)


def test_gradients_flow_no_deeper_than_they_must() -> None:
    reached = {row: made(row).reached for row in ("lora", "hero", "skipgpt-rt", "d-llm", "mod-d")}
    assert reached == {"lora": 16, "hero": 16, "skipgpt-rt": 32, "d-llm": 32, "mod-d": 32}
    assert made("lora").flops(700, True) < 0.7 * made("lora", modules="all").flops(700, True)


def test_the_steered_bypass_meets_the_budget() -> None:
    hero = made("hero")
    assert hero.skip == pytest.approx(0.25)
    assert hero.bypass == pytest.approx(0.8 * 0.25 / 0.350994, rel=1e-4)
    mod = made("mod-d", budget=0.4)
    assert mod.skip == pytest.approx(0.4)
    assert mod.bypass == pytest.approx(0.4 / (30 * (mod.shape.ffn / EIGHT.parameters)))


def test_a_method_without_a_recipe_counts_as_one_that_trains_through_everything() -> None:
    unknown = recipe("new_method", model_from(toy.BASE), {}, 0.25)
    assert (unknown.reached, unknown.bypass, unknown.skip) == (6, 0.0, 0.25)
    assert unknown.flops(8, False) > 0


@pytest.mark.parametrize("row", discover().values(), ids=lambda row: row.name)
def test_defaults_read_from_the_source_are_those_of_the_class(row: Row) -> None:
    assert {**defaults(row), **row.params} == vars(load_method(row.name).params)
