"""Bounds of Llama-3.1-8B, against figures worked out apart from this code; of a tiny shape."""

import pytest

from workflows.timing.bounds import DecoderSizes, prefill_flops, training_flops

ATTENTION, FFN, HEAD = 41_943_040, 176_160_768, 525_336_576
DENSE = DecoderSizes(4096, 32, ATTENTION, FFN, HEAD)
ROUTED = DecoderSizes(
    4096, 32, ATTENTION, FFN, HEAD, routed=16, adapter=7_340_032, router=2_169_554
)
LORA = 335_544_320
# Of four layers the last two are routed.
TINY = DecoderSizes(width=2, layers=4, attention=10, ffn=30, head=7, routed=2, adapter=5, router=3)


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


def test_a_prompt_by_hand() -> None:
    """Three prompts of six tokens; logits of the last token of each alone."""
    routed = 0.75 * 30 + 0.25 * 5 + 3
    matrices, scores = 4 * 10 + 2 * 30 + 2 * routed, 4 * 2 * 2 * 6
    assert prefill_flops(TINY, 3, 6, 0.25) == 18 * (2 * matrices + scores) + 3 * 2 * 7


@pytest.mark.parametrize(
    ("reached", "lora", "layers", "plain"), [(None, 0, 2, 0), (3, 0, 3, 1), (4, 11, 4, 2)]
)
@pytest.mark.parametrize("again", [False, True])
def test_a_training_step_by_hand(
    reached: int | None, lora: int, layers: int, plain: int, again: bool
) -> None:
    """Gradients flow through ``layers``, of which ``plain`` are not routed; six tokens."""
    routed = 0.75 * 30 + 0.25 * 5 + 3
    scores = 2 * 2 * 6
    forward = 2 * (4 * 10 + 2 * 30 + 2 * routed + 7) + 4 * scores
    upper = layers * 10 + plain * 30 + 2 * routed
    trained = 2 * (0.25 * 5 + 3)
    backward = 2 * (upper + trained + 7) + 2 * layers * scores
    recomputed = again * (2 * upper + layers * scores)
    found = training_flops(TINY, 6, 0.25, lora, again, reached)
    assert found == forward + backward + recomputed + (6 + 2 * again) * lora


def test_without_routing_gradients_reach_every_layer() -> None:
    plain = DecoderSizes(width=2, layers=4, attention=10, ffn=30, head=7)
    step = training_flops(plain, 6, 0.0)
    assert step == training_flops(plain, 6, 0.0, reached=4)
    assert step == 2 * (4 * 40 + 7) + 4 * 24 + 2 * (4 * 40 + 7) + 2 * 4 * 24
