"""Sizes from configs alone, against published counts and against models that are built."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from methods.core.model.backbone import count
from methods.core.model.shapes import SHAPES
from tests import toy
from workflows.suite.jobs import read_suite
from workflows.suite.model import Model, model_from, model_of

PUBLISHED = {
    "llama31_8b": 8_030_261_248,
    "llama2_7b": 6_738_415_616,
    "llama2_13b": 13_015_864_320,
    "llama32_1b": 1_235_814_400,
    "qwen25_05b": 494_032_768,
    "smollm2_135m": 134_515_008,
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_of_published_shapes(name: str) -> None:
    assert model_from(SHAPES[name]).parameters == PUBLISHED[name]


@pytest.mark.parametrize("kind", toy.SHAPES)
def test_parameters_of_every_family_are_those_of_the_model(kind: str) -> None:
    assert model_from(toy.SHAPES[kind]).parameters == count(toy.make_model(kind))


def test_a_dense_forward_pass_of_8b_takes_15_gigaflop_per_token() -> None:
    shape = model_from(SHAPES["llama31_8b"]).shape()
    assert (shape.attention, shape.ffn, shape.head) == (41_943_040, 176_160_768, 525_336_576)
    assert 2 * shape.matrices(0.0) == pytest.approx(13.96e9, rel=1e-3)
    assert 2 * (shape.matrices(0.0) + shape.head) == pytest.approx(15.0e9, rel=2e-3)


def test_a_shape_may_leave_projections_to_routing() -> None:
    model = Model(8, 2, 2, 1, 4, 16, 10)
    shape = model.shape(("k_proj", "v_proj"), routed=1)
    assert (shape.attention, shape.ffn) == (2 * 8 * 4, 2 * 8 * 8 + 3 * 8 * 16)
    assert shape.routed == 1


def test_a_config_without_a_size_is_named() -> None:
    config = {key: value for key, value in toy.BASE.items() if key != "intermediate_size"}
    with pytest.raises(ValueError, match="config has no intermediate_size"):
        model_from(config)


def test_the_folder_goes_before_the_published_shape(tmp_path: Path) -> None:
    suite = read_suite(
        {
            "suite": "tiny",
            "backbones": {"llama31_8b": {"path": "hub:a/b"}, "other": {"path": "hub:a/c"}},
            "rows": ["dense"],
            "budgets": [0.25],
            "seeds": [1],
            "tasks": ["piqa"],
        }
    )
    assert model_of(suite, "llama31_8b", tmp_path).layers == 32
    folder = tmp_path / "results/backbones/llama31_8b"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(toy.BASE))
    assert model_of(suite, "llama31_8b", tmp_path).layers == 6
    with pytest.raises(ValueError, match="'other': results/backbones/other has no config.json yet"):
        model_of(suite, "other", tmp_path)
