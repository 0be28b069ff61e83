"""Parameters that LLM-Pruner leaves of the published shapes, on meta tensors."""

from __future__ import annotations

import pytest

from methods.core.backbone import count, empty_backbone, layers, shape_config, widths
from methods.llm_pruner import LLMPruner, removals


def left(shape: str, ratio: float, start: int, end: int) -> tuple[int, int, float]:
    """Heads and channels dropped per pruned layer, and the share of parameters gone."""
    backbone = empty_backbone(shape_config(shape))
    total = backbone.layer_count
    heads, channels = removals(widths(layers(backbone.model)[0]), ratio)
    structure = {
        name: [list(range(number)) if start <= n < end else [] for n in range(total)]
        for name, number in (("dropped_heads", heads), ("dropped_channels", channels))
    }
    pruned = LLMPruner().build(backbone, structure)
    return heads, channels, 1 - count(pruned) / backbone.parameters


@pytest.mark.parametrize(
    ("shape", "dense", "remaining"),
    [
        ("llama2_7b", 6_738_415_616, 5_422_977_024),  # LLaMA-7B has the shape of Llama-2-7B
        ("llama31_8b", 8_030_261_248, 6_612_586_496),
    ],
)
def test_the_counts_of_the_official_logs(shape: str, dense: int, remaining: int) -> None:
    _, _, gone = left(shape, 0.25, 4, 30)
    assert empty_backbone(shape_config(shape)).parameters == dense
    assert round((1 - gone) * dense) == remaining


@pytest.mark.parametrize(
    ("shape", "ratio", "heads", "channels", "percent"),
    [
        ("llama31_8b", 0.37, 2, 5305, 24.50),
        ("llama31_8b", 0.58, 4, 8315, 39.87),
        ("llama2_7b", 0.33, 10, 3633, 25.32),
        ("llama2_7b", 0.32, 10, 3523, 24.80),
        ("llama2_7b", 0.52, 16, 5725, 40.09),
        ("llama2_13b", 0.30, 12, 4148, 24.86),
        ("llama2_13b", 0.49, 19, 6774, 40.19),
    ],
)
def test_what_a_ratio_removes_outside_four_first_and_two_last_layers(
    shape: str, ratio: float, heads: int, channels: int, percent: float
) -> None:
    end = shape_config(shape).num_hidden_layers - 2
    *dropped, gone = left(shape, ratio, 4, end)
    assert dropped == [heads, channels]
    assert 100 * gone == pytest.approx(percent, abs=0.005)


@pytest.mark.parametrize(
    ("shape", "ratio", "percent"),
    [
        ("llama31_8b", 0.30, 25.24),
        ("llama31_8b", 0.48, 39.97),
        ("llama2_7b", 0.27, 25.32),
        ("llama2_13b", 0.26, 25.03),
    ],
)
def test_what_a_ratio_removes_from_all_layers(shape: str, ratio: float, percent: float) -> None:
    _, _, gone = left(shape, ratio, 0, shape_config(shape).num_hidden_layers)
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
def test_the_search_in_thousandths(shape: str, budget: float, ratio: float, percent: float) -> None:
    backbone, method = empty_backbone(shape_config(shape)), LLMPruner()
    span = method._span(backbone.layer_count)
    found, _ = method._ratio(backbone, span, budget)
    *_, gone = left(shape, found, span.start, span.stop)
    assert (found, round(100 * gone, 2)) == (ratio, percent)
