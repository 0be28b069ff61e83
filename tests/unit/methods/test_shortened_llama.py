"""Block scores against slow references, and the choice they lead to."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from methods import load_method
from methods.base import Fitted, Request
from methods.core.model.backbone import layers
from tests.near import ROUNDING
from tests.slow_perplexity import slow_perplexity, token_losses
from tests.toys import static
from tests.toys.models import CONFIGS, keep_layers, make_model, wrap
from tests.toys.texts import ids_of

# The names of the spec, spelt out: what is scored must not follow from the code under test.
SCORED = (
    "self_attn.q_proj",
    "self_attn.k_proj",
    "self_attn.v_proj",
    "self_attn.o_proj",
    "mlp.gate_proj",
    "mlp.up_proj",
    "mlp.down_proj",
    "input_layernorm",
    "post_attention_layernorm",
)
RAGGED = ids_of([9, 3, 14, 2, 9, 1, 11])
EVEN = ids_of([8] * 10)


def fit(
    model: PreTrainedModel, texts: list[list[int]], budget: float | None = None, **params: Any
) -> Fitted:
    if budget is None:
        params = {"layers": 1} | params
    return static.fit("shortened-ppl", model, texts, budget, **params)


def scores(model: PreTrainedModel, texts: list[list[int]], **params: Any) -> list[float]:
    """Scores of the blocks of a model that keeps them all."""
    return fit(model, texts, layers=0, **params).decisions["scores"]


def slow_salience(
    model: PreTrainedModel, groups: list[list[list[int]]], signed: bool = True
) -> list[list[Tensor]]:
    """Sum over groups of weight * gradient of the mean loss of a group, (L, 9) tensors."""
    weights = [[layer.get_submodule(n).weight for n in SCORED] for layer in layers(model)]
    flat = [weight for block in weights for weight in block]
    sums = [torch.zeros_like(weight) for weight in flat]
    for group in groups:
        loss = torch.cat([token_losses(model, ids) for ids in group if len(ids) > 1]).mean()
        for total, weight, grad in zip(sums, flat, torch.autograd.grad(loss, flat), strict=True):
            product = weight.detach() * grad
            total += product if signed else product.abs()
    return [sums[start : start + 9] for start in range(0, len(sums), 9)]


def slow_reduce(values: list[float], how: str) -> float:
    if how == "prod":
        return math.prod(values)
    return {"sum": sum(values), "mean": sum(values) / len(values), "max": max(values)}[how]


def slow_scores(
    saliences: list[list[Tensor]], norm: int = 1, weight: str = "sum", block: str = "sum"
) -> list[float]:
    results = []
    for tensors in saliences:
        parts = []
        for tensor in tensors:
            rows = tensor.double().abs() ** norm
            outputs = rows.tolist() if rows.dim() == 1 else [sum(row) for row in rows.tolist()]
            parts.append(slow_reduce(outputs, weight))
        results.append(slow_reduce(parts, block))
    return results


def order(values: list[float]) -> list[int]:
    return sorted(range(len(values)), key=values.__getitem__)


@pytest.mark.parametrize("kind", sorted(CONFIGS))
def test_ppl_equals_a_model_built_by_hand_read_one_document_at_a_time(kind: str) -> None:
    model = make_model(kind)
    total = len(layers(model))
    without = [[n for n in range(total) if n != block] for block in range(total)]
    expected = [slow_perplexity(keep_layers(model, kept), RAGGED) for kept in without]
    assert scores(model, RAGGED) == pytest.approx(expected, rel=ROUNDING)
    assert len({round(score, 3) for score in expected}) == total


def test_ppl_pools_tokens_not_documents() -> None:
    model = make_model()
    short, long = ids_of([3, 20])
    alone = [math.log(scores(model, [ids])[2]) for ids in (short, long)]
    pooled = math.log(scores(model, [short, long])[2])
    assert pooled == pytest.approx((2 * alone[0] + 19 * alone[1]) / 21, rel=1e-6)
    assert abs(pooled - sum(alone) / 2) > 1e-3


@pytest.mark.parametrize("criterion", ["ppl", "taylor"])
def test_documents_without_a_prediction_are_refused(criterion: str) -> None:
    with pytest.raises(ValueError, match="no token to predict"):
        scores(make_model(), ids_of([1, 1]), criterion=criterion)


def test_a_trial_runs_only_the_blocks_above_the_one_left_out() -> None:
    model, calls = make_model(), [0] * 6
    for number, layer in enumerate(layers(model)):
        layer.register_forward_hook(lambda *_, n=number: calls.__setitem__(n, calls[n] + 1))
    scores(model, EVEN)
    assert calls == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("block", [1, 4])
def test_a_block_that_adds_nothing(block: int) -> None:
    model = static.silence(make_model(), block)
    expected = slow_perplexity(model, RAGGED)
    assert scores(model, RAGGED)[block] == pytest.approx(expected, rel=ROUNDING)
    fitted = fit(model, RAGGED, criterion="taylor")
    assert fitted.decisions["scores"][block] == 0
    assert fitted.decisions["removed_layers"] == [block]


@pytest.mark.parametrize("size", [None, 3, 1])
@pytest.mark.parametrize("kind", sorted(CONFIGS))
def test_taylor_equals_the_loop(kind: str, size: int | None) -> None:
    model = make_model(kind)
    texts = [ids for ids in RAGGED if len(ids) > 1]
    step = size or len(texts)
    groups = [texts[start : start + step] for start in range(0, len(texts), step)]
    expected = slow_scores(slow_salience(model, groups))
    assert scores(model, texts, criterion="taylor", batch_size=size) == pytest.approx(
        expected, rel=1e-4
    )


@pytest.mark.parametrize(
    ("weight", "block", "norm"),
    [("sum", "mean", 1), ("mean", "max", 2), ("max", "prod", 1), ("prod", "sum", 2)],
)
@pytest.mark.parametrize("criterion", ["taylor", "magnitude"])
def test_norms_and_reductions(criterion: str, weight: str, block: str, norm: int) -> None:
    # A narrow model, for products over outputs would leave the range of numbers.
    model = make_model(
        num_hidden_layers=2, hidden_size=4, intermediate_size=6, num_attention_heads=2
    )
    saliences = slow_salience(model, [EVEN])
    if criterion == "magnitude":
        saliences = [
            [layer.get_submodule(n).weight.detach() for n in SCORED] for layer in layers(model)
        ]
    found = scores(
        model, EVEN, criterion=criterion, norm=norm, weight_reduction=weight, block_reduction=block
    )
    expected = slow_scores(saliences, norm, weight, block)
    assert found == pytest.approx(expected, rel=1e-3, abs=0)


def test_norms_of_gemma_count_with_the_one_that_they_add() -> None:
    """Stored weights of zero multiply by one: by norms alone a fresh layer's four hold 4 D."""
    model = make_model("gemma2")
    for layer in layers(model):
        for weight in layer.parameters():
            weight.data.zero_()
    width, total = model.config.hidden_size, len(layers(model))
    assert scores(model, EVEN, criterion="magnitude") == [4 * width] * total


def test_products_are_summed_with_their_sign_before_the_absolute_value() -> None:
    model = make_model()
    groups = [EVEN[:5], EVEN[5:]]
    unsigned = slow_scores(slow_salience(model, groups, signed=False))
    found = scores(model, EVEN, criterion="taylor", batch_size=5)
    assert found == pytest.approx(slow_scores(slow_salience(model, groups)), rel=1e-4)
    assert all(a < 0.95 * b for a, b in zip(found, unsigned, strict=True))


@pytest.mark.parametrize(("norm", "factor"), [(1, 10), (2, 100)])
def test_ten_batches_of_one_against_one_batch_of_ten(norm: int, factor: int) -> None:
    model = make_model()
    one, ten = (
        scores(model, EVEN, criterion="taylor", norm=norm, batch_size=size) for size in (10, 1)
    )
    assert ten == pytest.approx([factor * score for score in one], rel=1e-4)
    assert order(one) == order(ten)


@pytest.mark.parametrize("params", [{}, {"criterion": "taylor", "batch_size": 2}])
def test_importance_does_not_depend_on_the_order_of_batches(params: dict[str, Any]) -> None:
    model = make_model()
    turned = [*EVEN[6:], *EVEN[2:6], *EVEN[:2]]
    first, second = (scores(model, texts, **params) for texts in (EVEN, turned))
    assert first == pytest.approx(second, rel=1e-5)
    assert order(first) == order(second)


@pytest.mark.parametrize(
    ("total", "first", "last"),
    [(4, 0, 0), (6, 1, 0), (12, 2, 1), (16, 2, 1), (32, 4, 2), (40, 4, 2), (80, 4, 2)],
)
def test_protected_blocks_scale_with_depth(total: int, first: int, last: int) -> None:
    free = list(load_method("shortened-ppl")._unprotected(total))
    assert free == list(range(first, total - last))
    assert list(load_method("shortened-ppl", {"protect": False})._unprotected(total)) == list(
        range(total)
    )


@pytest.mark.parametrize("criterion", ["ppl", "taylor", "magnitude"])
def test_the_plus_rule_keeps_the_ends_and_no_more(criterion: str) -> None:
    model = make_model(num_hidden_layers=32, initializer_range=0.05)
    fitted = fit(model, EVEN, layers=26, criterion=criterion)
    assert fitted.decisions["protected"] == [0, 1, 2, 3, 30, 31]
    removed, values = fitted.decisions["removed_layers"], fitted.decisions["scores"]
    assert sorted(removed) == list(range(4, 30))
    assert [values[block] for block in removed] == sorted(values[block] for block in removed)
    model = make_model(num_hidden_layers=32)
    with pytest.raises(ValueError, match="param 'layers' is 27, must be at most 26"):
        fit(model, EVEN, layers=27, criterion=criterion)


def test_pinned_and_absent_protection() -> None:
    dense = make_model()
    values = scores(dense, EVEN)
    lowest = order(values)
    for protect, free in ((False, range(6)), ([2, 1], range(2, 5)), ([0, 3], range(3))):
        model = make_model()
        fitted = fit(model, EVEN, layers=2, protect=protect)
        expected = [block for block in lowest if block in free][:2]
        assert fitted.decisions["removed_layers"] == expected
        assert fitted.decisions["scores"] == values
    assert lowest[0] not in range(2, 5) or lowest[1] not in range(2, 5)


def test_a_budget_beyond_the_unprotected_blocks_is_not_applicable() -> None:
    backbone = wrap(make_model())
    # A block holds 15.5 %: 70 % are 5 of 6, 40 % are 3.
    for budget, fits in ((0.40, True), (0.70, False)):
        method = load_method("shortened-ppl", {"protect": [2, 1]})
        reason = method.skip_reason(backbone, Request(budget, 0, Path()))
        assert (reason is None) == fits
    assert "'protect' leaves 3" in str(reason)
    with pytest.raises(ValueError, match="must be at most 3"):
        fit(make_model(), EVEN, budget=0.70, protect=[2, 1])


def test_samples_and_length_choose_the_calibration_tokens() -> None:
    model = make_model()
    texts = ids_of([10, 4, 11, 9])
    expected = scores(model, [texts[0][2:8], texts[2][2:8]])
    assert scores(model, texts, samples=2, length=6) == expected


@pytest.mark.parametrize(
    "params", [{"samples": 0}, {"length": 0}, {"batch_size": 0}, {"protect": [1]}, {"norm": 3}]
)
def test_wrong_numbers_are_refused_by_name(params: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"param '{next(iter(params))}' is"):
        load_method("shortened-taylor", params)


def test_a_score_that_is_no_number_is_refused() -> None:
    model = make_model()
    torch.nn.init.constant_(layers(model)[3].mlp.up_proj.weight, float("inf"))
    with pytest.raises(ValueError, match=r"criterion 'magnitude': layers \[3\] score no number"):
        fit(model, EVEN, criterion="magnitude")


def test_a_product_that_float64_does_not_hold_is_refused() -> None:
    model = make_model(intermediate_size=512)
    torch.nn.init.constant_(layers(model)[3].mlp.up_proj.weight, 1e-4)
    said = "param 'weight_reduction' is prod: the product over a matrix is below what float64 holds"
    with pytest.raises(ValueError, match=said):
        fit(model, EVEN, criterion="magnitude", weight_reduction="prod")


def test_half_precision() -> None:
    float16 = wrap(make_model().half())
    request = Request(0.25, 0, Path())
    assert "float16" in str(load_method("shortened-taylor").skip_reason(float16, request))
    assert load_method("shortened-ppl").skip_reason(float16, request) is None
    exact = scores(make_model(), EVEN, criterion="taylor")
    model = make_model().to(torch.bfloat16)
    assert scores(model, EVEN, criterion="taylor") == pytest.approx(exact, rel=0.1)
