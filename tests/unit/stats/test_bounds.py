"""Bounds of Llama-3.1-8B, against figures worked out apart from this code."""

import pytest

from workflows.stats.bounds import Shape, prefill_flops, training_flops

ATTENTION, FFN, HEAD = 41_943_040, 176_160_768, 525_336_576
DENSE = Shape(4096, 32, ATTENTION, FFN, HEAD)
ROUTED = Shape(4096, 32, ATTENTION, FFN, HEAD, routed=16, adapter=7_340_032, router=2_169_554)
LORA = 335_544_320


@pytest.mark.parametrize(
    ("bypass", "with_traffic"), [(0.25, 1.09), (0.5, 1.21), (0.765, 1.37), (1, 1.55)]
)
def test_prefill_bound_lies_just_above_the_one_that_also_counts_traffic(
    bypass: float, with_traffic: float
) -> None:
    ratio = prefill_flops(DENSE, 1, 2048, 0) / prefill_flops(ROUTED, 1, 2048, bypass)
    assert with_traffic - 0.005 <= ratio <= 1.03 * with_traffic


@pytest.mark.parametrize(("recompute", "giga"), [(True, 18.4), (False, 15.4)])
def test_training_step_of_the_routed_model(recompute: bool, giga: float) -> None:
    flops = training_flops(ROUTED, 700, 0.765, 0, recompute)
    assert flops / 1e9 == pytest.approx(giga, rel=0.02)


@pytest.mark.parametrize(("recompute", "giga"), [(True, 47.2), (False, 32.4)])
def test_training_step_of_lora_on_every_linear_layer(recompute: bool, giga: float) -> None:
    flops = training_flops(DENSE, 700, 0.0, LORA, recompute)
    assert flops / 1e9 == pytest.approx(giga, rel=0.02)
