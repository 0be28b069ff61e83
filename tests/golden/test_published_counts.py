"""What a budget removes from the paper's backbones, and parameter counts of logs and papers, on
meta tensors."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from methods import load_method
from methods.base import Request
from methods.core.budget import layers_to_remove
from methods.core.model.backbone import (
    Backbone,
    count,
    empty_backbone,
    layers,
    shape_config,
    widths,
)
from methods.laco import merge_width
from methods.llm_pruner import LLMPruner, removals
from methods.slicegpt import SliceGPT, width_for
from workflows.report.paper.printed import PARAMETERS

# Shape, its parameters, those of a layer.
SHAPES = [
    ("llama31_8b", 8_030_261_248, 218_112_000),
    ("llama2_7b", 6_738_415_616, 202_383_360),
    ("llama2_13b", 13_015_864_320, 317_204_480),
]
# Shape, budget, layers to remove, layers per merge of LaCo, share of the parameters.
LAYERS = [
    ("llama31_8b", 0.25, 9, 4, 0.2445),
    ("llama31_8b", 0.40, 15, 4, 0.4074),
    ("llama2_7b", 0.25, 8, 5, 0.2403),
    ("llama2_7b", 0.40, 13, 2, 0.3904),
    ("llama2_13b", 0.25, 10, 6, 0.2437),
    ("llama2_13b", 0.40, 16, 5, 0.3899),
]
# SliceGPT: shape, s, D, share of the dense parameters removed, share of the fused model.
FRACTIONS = [
    ("llama31_8b", 0.25, 3072, 0.156, 0.256),
    ("llama2_7b", 0.25, 3072, 0.153, 0.270),
    ("llama2_13b", 0.25, 3840, 0.155, 0.272),
]
WIDTHS = [
    ("llama31_8b", 0.25, 2728, 0.2499),
    ("llama31_8b", 0.40, 2160, 0.4006),
    ("llama2_7b", 0.25, 2744, 0.2494),
    ("llama2_7b", 0.40, 2216, 0.3997),
    ("llama2_13b", 0.25, 3432, 0.2509),
    ("llama2_13b", 0.40, 2784, 0.3999),
]
# LLM-Pruner outside four first and two last layers: shape, ratio, heads, channels, percent.
RATIOS = [
    ("llama31_8b", 0.37, 2, 5305, 24.50),
    ("llama31_8b", 0.58, 4, 8315, 39.87),
    ("llama2_7b", 0.33, 10, 3633, 25.32),
    ("llama2_7b", 0.52, 16, 5725, 40.09),
    ("llama2_13b", 0.30, 12, 4148, 24.86),
    ("llama2_13b", 0.49, 19, 6774, 40.19),
]


def skipped(row: str, backbone: Backbone, removed: list[int]) -> float:
    """The share of the parameters that go with some layers."""
    built = load_method(row).build(backbone, {"removed_layers": removed})
    return 1 - count(built) / backbone.parameters


@pytest.mark.parametrize(("shape", "total", "layer"), SHAPES)
def test_parameters_of_the_published_shapes(shape: str, total: int, layer: int) -> None:
    backbone = empty_backbone(shape_config(shape))
    assert backbone.parameters == total
    assert count(layers(backbone.model)[0]) == layer
    assert total in PARAMETERS.values()


@pytest.mark.parametrize(("shape", "budget", "number", "width", "skip"), LAYERS)
def test_layers_that_a_budget_removes(
    shape: str, budget: float, number: int, width: int, skip: float
) -> None:
    def fresh() -> Backbone:
        return empty_backbone(shape_config(shape))

    assert layers_to_remove(fresh(), budget, None)[0] == number
    assert load_method("shortened-ppl").skip_reason(fresh(), Request(budget, 0, Path())) is None
    for row in ("shortgpt", "shortened-ppl"):
        removed = list(range(4, 4 + number))
        assert skipped(row, fresh(), removed) == pytest.approx(skip, abs=5e-5)
    assert merge_width(number, fresh().layer_count) == width
    merges = number // (width - 1)
    assert merges * (width - 1) == number
    removed = [n * width + k for n in range(merges) for k in range(1, width)]
    assert skipped("laco", fresh(), removed) == pytest.approx(skip, abs=5e-5)


@pytest.mark.parametrize("row", ["shortened-taylor", "laco"])
@pytest.mark.parametrize(
    ("shape", "removed", "left"),
    [("llama2_7b", 6, 5_524_115_456), ("llama31_8b", 1, 7_812_149_248)],
)
def test_counts_of_published_models(row: str, shape: str, removed: int, left: int) -> None:
    backbone = empty_backbone(shape_config(shape))
    structure = {"removed_layers": list(range(1, removed + 1))}
    assert count(load_method(row).build(backbone, structure)) == left


@pytest.mark.parametrize(
    ("shape", "blocks", "printed", "skip"),
    [
        ("llama31_8b", 8, 0.25, 0.2173),
        ("llama31_8b", 13, 0.40625, 0.3531),
        ("llama2_7b", 8, 0.25, 0.2403),
        ("llama2_13b", 10, 0.25, 0.2437),
    ],
)
def test_rates_that_shortened_llama_prints_are_shares_of_blocks(
    shape: str, blocks: int, printed: float, skip: float
) -> None:
    backbone = empty_backbone(shape_config(shape))
    assert blocks / backbone.layer_count == printed
    found = skipped("shortened-ppl", backbone, list(range(blocks)))
    assert found == pytest.approx(skip, abs=5e-5)


@pytest.mark.parametrize(
    ("target", "total", "width"), [(0, 12, 2), (1, 12, 2), (3, 12, 2), (6, 12, 2), (20, 80, 11)]
)
def test_a_merge_fits_twice_at_least(target: int, total: int, width: int) -> None:
    assert merge_width(target, total) == width


def sliced(shape: str, width: int) -> tuple[int, Any]:
    """Parameters of a shape that SliceGPT cut, and its config."""
    structure = {"width": width, "slice_head": False}
    built = SliceGPT().build(empty_backbone(shape_config(shape)), structure)
    return count(built), built.config


def by_formula(backbone: Backbone, width: int) -> int:
    """V D + V H + per layer 2 H D + 2 K D + 2 I D + I D' + D^2 + D D', D' = H in the last."""
    config = backbone.config
    full, inner = config.hidden_size, config.intermediate_size
    keys = config.num_key_value_heads * full // config.num_attention_heads
    total = config.vocab_size * (width + full)
    for number in range(config.num_hidden_layers):
        after = full if number == config.num_hidden_layers - 1 else width
        total += (2 * full + 2 * keys + 2 * inner) * width + inner * after
        total += width * width + width * after
    return total


@pytest.mark.parametrize(("shape", "fraction", "width", "removed", "authors"), FRACTIONS)
def test_fractions_that_slicegpt_prints(
    shape: str, fraction: float, width: int, removed: float, authors: float
) -> None:
    backbone = empty_backbone(shape_config(shape))
    assert width_for(backbone.config.hidden_size, fraction, 8) == width
    parameters, config = sliced(shape, width)
    assert parameters == by_formula(backbone, width)
    assert 1 - parameters / backbone.parameters == pytest.approx(removed, abs=5e-4)
    ledger = SimpleNamespace(resident=parameters, fused=config.fused_parameters)
    rates: Any = SimpleNamespace(ledger=ledger)
    assert SliceGPT().authors_skip(rates) == pytest.approx(authors, abs=5e-4)


@pytest.mark.parametrize(("shape", "budget", "width", "skip"), WIDTHS)
def test_the_width_nearest_to_a_budget(shape: str, budget: float, width: int, skip: float) -> None:
    backbone = empty_backbone(shape_config(shape))
    found, trace = SliceGPT()._width(backbone, budget)
    assert found == width
    skips = {row["setting"]: row["skip"] for row in trace}
    assert skips[width] == pytest.approx(skip, abs=5e-5)
    assert skips[width] == 1 - sliced(shape, width)[0] / backbone.parameters


def test_slicegpt_in_the_table_of_hero() -> None:
    backbone = empty_backbone(shape_config("llama31_8b"))
    assert width_for(4096, 0.33, 8) == 2744
    parameters, _ = sliced("llama31_8b", 2744)
    assert 1 - parameters / backbone.parameters == pytest.approx(0.2456, abs=5e-5)


def pruned(shape: str, ratio: float, start: int, end: int) -> tuple[int, int, float]:
    """Heads and channels that LLM-Pruner drops per layer, and the share of parameters gone."""
    backbone = empty_backbone(shape_config(shape))
    total = backbone.layer_count
    heads, channels = removals(widths(layers(backbone.model)[0]), ratio)
    structure = {
        name: [list(range(number)) if start <= n < end else [] for n in range(total)]
        for name, number in (("dropped_heads", heads), ("dropped_channels", channels))
    }
    built = LLMPruner().build(backbone, structure)
    return heads, channels, 1 - count(built) / backbone.parameters


# LLaMA-7B has the shape of Llama-2-7B.
@pytest.mark.parametrize(
    ("shape", "dense", "left"),
    [("llama2_7b", SHAPES[1][1], 5_422_977_024), ("llama31_8b", SHAPES[0][1], 6_612_586_496)],
)
def test_counts_of_the_logs_of_llm_pruner(shape: str, dense: int, left: int) -> None:
    *_, gone = pruned(shape, 0.25, 4, 30)
    assert round((1 - gone) * dense) == left


@pytest.mark.parametrize(("shape", "ratio", "heads", "channels", "percent"), RATIOS)
def test_what_a_ratio_removes(
    shape: str, ratio: float, heads: int, channels: int, percent: float
) -> None:
    *dropped, gone = pruned(shape, ratio, 4, shape_config(shape).num_hidden_layers - 2)
    assert dropped == [heads, channels]
    assert 100 * gone == pytest.approx(percent, abs=0.005)


@pytest.mark.parametrize(
    ("shape", "budget", "ratio", "percent"),
    [
        # At 0.375 a third key/value head would go and 26.5 % with it.
        ("llama31_8b", 0.25, 0.374, 24.73),
        ("llama31_8b", 0.40, 0.582, 39.99),
        ("llama2_7b", 0.25, 0.324, 25.00),
        ("llama2_13b", 0.25, 0.303, 25.02),
    ],
)
def test_the_ratio_nearest_to_a_budget(
    shape: str, budget: float, ratio: float, percent: float
) -> None:
    backbone, method = empty_backbone(shape_config(shape)), LLMPruner()
    span = method._span(backbone.layer_count)
    found, _ = method._ratio(backbone, span, budget)
    *_, gone = pruned(shape, found, span.start, span.stop)
    assert (found, round(100 * gone, 2)) == (ratio, percent)
