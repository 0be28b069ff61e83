"""LLM-Pruner's scores against loops over single units, its choice, and what it leaves."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from methods import load_method
from methods.base import Fitted, Request
from methods.core.backbone import Backbone, attention, count, ffn, layers, widths
from methods.core.ledger import Ledger, Tally
from tests import toy
from tests.near import ROUNDING

MATRICES = dict.fromkeys(("q_proj", "k_proj", "v_proj", "o_proj"), "self_attn")
MATRICES |= dict.fromkeys(("gate_proj", "up_proj", "down_proj"), "mlp")
Matrices = dict[str, Tensor]


def documents(lengths: list[int], seed: int = 0) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    return [rng.integers(0, 60, length).tolist() for length in lengths]


TEXTS = documents([7, 12, 3, 9])


def make(kind: str = "llama", **changes: Any) -> torch.nn.Module:
    """Four layers; ``mha``: as many key/value heads as query heads."""
    changes = {"num_hidden_layers": 4} | changes
    if kind == "mha":
        return toy.make_model("llama", num_key_value_heads=4, **changes)
    return toy.make_model(kind, **changes)


def fit(
    model: torch.nn.Module,
    texts: list[list[int]] = TEXTS,
    budget: float | None = None,
    **params: Any,
) -> Fitted:
    backbone = Backbone(model, None, Path(), None, "", count(model))
    given = {"ratio": 0.5, "start": 0, "end": len(layers(model))} if budget is None else {}
    method = load_method("llm-pruner", given | params)
    return method.fit(backbone, toy.calibration(texts), Request(budget, 0, Path()))


def loss_of(model: torch.nn.Module, texts: list[list[int]]) -> Tensor:
    """Mean over the predictions of all documents, one document after the other."""
    losses = []
    for ids in texts:
        logits = model(torch.tensor([ids])).logits[0, :-1].log_softmax(-1)
        losses += [-logits[t, word] for t, word in enumerate(ids[1:])]
    return torch.stack(losses).mean()


def gradients(model: torch.nn.Module, layer: int, texts: list[list[int]]) -> Matrices:
    model.zero_grad()
    loss_of(model, texts).backward()
    block = layers(model)[layer]
    return {
        name: block.get_submodule(part).get_submodule(name).weight.grad.double().clone()
        for name, part in MATRICES.items()
    }


def slow_saliences(model: torch.nn.Module, layer: int, kind: str) -> Matrices:
    """s of every weight, from whole backward passes."""
    block = layers(model)[layer]
    mean = gradients(model, layer, TEXTS)
    alone = [gradients(model, layer, [ids]) for ids in TEXTS]
    saliences = {}
    for name, part in MATRICES.items():
        w = block.get_submodule(part).get_submodule(name).weight.detach().double()
        a = sum(one[name] ** 2 for one in alone) / len(alone)
        saliences[name] = {
            "param_first": w * mean[name],
            "vectorize": w * mean[name],
            "param_second": w * a * w,
            "param_mix": w * mean[name] - 0.5 * w * a * w,
            "l1": abs(w),
            "l2": w * w,
        }[kind]
    return saliences


def one_unit(part: Tensor, kind: str) -> float:
    values = part.flatten().tolist()
    return abs(sum(values)) if kind == "vectorize" else sum(map(abs, values))


def slow_channel(s: Matrices, channel: int, kind: str) -> list[float]:
    """A channel's scores in gate, up, down."""
    rows = [one_unit(s[name][channel], kind) for name in ("gate_proj", "up_proj")]
    return [*rows, one_unit(s["down_proj"][:, channel], kind)]


def slow_head(s: Matrices, queries: list[int], head: int, x: int, kind: str) -> dict[str, float]:
    """Scores of channel x, of 8, of a key/value head that the query heads ``queries`` count for."""
    return {
        "q": sum(one_unit(s["q_proj"][8 * query + x], kind) for query in queries),
        "k": one_unit(s["k_proj"][8 * head + x], kind),
        "v": one_unit(s["v_proj"][8 * head + x], kind),
        "o": sum(one_unit(s["o_proj"][:, 8 * query + x], kind) for query in queries),
    }


def readers(head: int, key_heads: int, how: str) -> list[int]:
    """The query heads, of four, that count for a key/value head."""
    if how == "coupled":
        return [query for query in range(4) if query * key_heads // 4 == head]
    return [query for query in range(4) if query % key_heads == head]


@pytest.mark.parametrize("how", ["coupled", "official"])
@pytest.mark.parametrize(
    "kind", ["param_first", "vectorize", "param_second", "param_mix", "l1", "l2"]
)
@pytest.mark.parametrize("family", ["llama", "mha", "qwen2", "qwen3"])
def test_importance_equals_the_loop_over_units(family: str, kind: str, how: str) -> None:
    model = make(family)
    key_heads = widths(layers(model)[0]).key_value_heads
    expected_heads, expected_channels = [], []
    s = slow_saliences(model, 2, kind)
    share = 1.0 if kind not in ("l1", "l2") else None
    for head in range(key_heads):
        queries = readers(head, key_heads, how)
        scores = [slow_head(s, queries, head, x, kind) for x in range(8)]
        expected_heads.append(sum((share or 1 / 4) * sum(score.values()) for score in scores))
    for channel in range(64):
        expected_channels.append((share or 1 / 3) * sum(slow_channel(s, channel, kind)))
    model.zero_grad()
    decisions = fit(model, importance=kind, gqa_fold=how).decisions
    # A sum whose parts nearly cancel keeps the rounding of its parts.
    for part, expected in (("head", expected_heads), ("channel", expected_channels)):
        near = pytest.approx(expected, rel=0, abs=ROUNDING * max(expected))
        assert decisions[f"{part}_importance"][2] == near


@pytest.mark.parametrize("reduction", ["sum", "mean", "max", "prod", "first", "second"])
@pytest.mark.parametrize("family", ["llama", "mha"])
def test_reductions_over_the_coupled_matrices(family: str, reduction: str) -> None:
    model = make(family)
    key_heads = widths(layers(model)[0]).key_value_heads
    order = "qovk" if family == "mha" else "kovq"
    reduce = {
        **{"sum": sum, "mean": np.mean, "max": max, "prod": math.prod},
        **{"first": lambda members: members[0], "second": lambda members: members[1]},
    }[reduction]
    s = slow_saliences(model, 1, "param_first")
    expected = []
    for head in range(key_heads):
        queries = readers(head, key_heads, "coupled")
        scores = [slow_head(s, queries, head, x, "param_first") for x in range(8)]
        expected.append(sum(reduce([score[part] for part in order]) for score in scores))
    channels = [reduce(slow_channel(s, channel, "param_first")) for channel in range(64)]
    model.zero_grad()
    decisions = fit(model, group_reduction=reduction).decisions
    assert decisions["head_importance"][1] == pytest.approx(expected, rel=1e-4)
    assert decisions["channel_importance"][1] == pytest.approx(channels, rel=1e-4)


def scores_of(decisions: dict[str, Any]) -> np.ndarray:
    pairs = zip(decisions["head_importance"], decisions["channel_importance"], strict=True)
    return np.concatenate([np.array(values) for pair in pairs for values in pair])


def test_products_are_summed_with_their_signs_over_documents() -> None:
    both = scores_of(fit(make()).decisions)
    counts = [len(ids) - 1 for ids in TEXTS]
    alone = [scores_of(fit(make(), [ids]).decisions) for ids in TEXTS]
    unsigned = np.average(alone, axis=0, weights=counts)
    assert (both <= unsigned * (1 + 1e-5)).all()
    assert (both < 0.9 * unsigned).mean() > 0.9


@pytest.mark.parametrize("kind", ["param_first", "vectorize", "param_second", "param_mix"])
def test_importance_does_not_depend_on_the_order_of_documents(kind: str) -> None:
    texts = documents([5, 11, 8] * 9)
    first = scores_of(fit(make(), texts, importance=kind).decisions)
    other = scores_of(fit(make(), texts[::-1], importance=kind).decisions)
    assert first == pytest.approx(other, rel=1e-4)


def heads_of(family: str, how: str) -> np.ndarray:
    return np.array(fit(make(family), gqa_fold=how).decisions["head_importance"])


def test_folds_coincide_without_grouped_queries() -> None:
    assert np.array_equal(heads_of("mha", "official"), heads_of("mha", "coupled"))


def test_folds_share_the_same_sum_out_differently() -> None:
    official, coupled = heads_of("llama", "official"), heads_of("llama", "coupled")
    assert official.sum(1) == pytest.approx(coupled.sum(1), rel=1e-5)
    assert (abs(official - coupled) > 1e-3 * coupled).all()


def test_vectorize_never_exceeds_param_first() -> None:
    first = scores_of(fit(make()).decisions)
    vector = scores_of(fit(make(), importance="vectorize").decisions)
    assert (vector <= first * (1 + 1e-5)).all()
    assert (vector < 0.9 * first).mean() > 0.9


@pytest.mark.parametrize(("family", "head"), [("mha", 2), ("llama", 1), ("qwen3", 0)])
def test_a_head_without_output_scores_zero_and_goes_first(family: str, head: int) -> None:
    model = make(family)
    group = attention(layers(model)[0]).num_key_value_groups
    with torch.no_grad():
        columns = slice(8 * group * head, 8 * group * (head + 1))
        attention(layers(model)[1]).o_proj.weight[:, columns] = 0
    ratio = 1 / widths(layers(model)[0]).key_value_heads
    decisions = fit(model, ratio=ratio).decisions
    assert decisions["head_importance"][1][head] == 0
    assert decisions["dropped_heads"][1] == [head]
    assert min(decisions["head_importance"][2]) > 0


def test_a_channel_without_output_scores_zero_and_goes_first() -> None:
    model = make()
    with torch.no_grad():
        ffn(layers(model)[3]).down_proj.weight[:, [40, 7]] = 0
    decisions = fit(model, ratio=0.03).decisions
    assert decisions["dropped_channels"][3] == [7, 40]
    assert [decisions["channel_importance"][3][n] for n in (7, 40)] == [0, 0]


def test_the_lowest_go_and_are_listed_ascending() -> None:
    decisions = fit(make("mha"), ratio=0.5).decisions
    for part, units in (("head", "heads"), ("channel", "channels")):
        for scores, dropped in zip(
            decisions[f"{part}_importance"], decisions[f"dropped_{units}"], strict=True
        ):
            assert dropped == sorted(np.argsort(scores)[: len(scores) // 2].tolist())


def test_protected_layers_are_not_scored_and_keep_their_bits() -> None:
    dense = make().state_dict()
    fitted = fit(make(), start=1, end=3)
    decisions, pruned = fitted.decisions, fitted.model.state_dict()
    assert decisions["pruned_layers"] == [1, 2]
    for key in ("dropped_heads", "dropped_channels", "head_importance", "channel_importance"):
        assert [bool(values) for values in decisions[key]] == [False, True, True, False]
    for name, tensor in dense.items():
        if ".layers.1." not in name and ".layers.2." not in name:
            assert torch.equal(pruned[name], tensor)


@pytest.mark.parametrize(
    ("total", "start", "end"), [(4, 0, 4), (6, 1, 6), (12, 2, 11), (32, 4, 30), (40, 4, 38)]
)
def test_protected_layers_scale_with_the_depth(total: int, start: int, end: int) -> None:
    assert load_method("llm-pruner")._span(total) == range(start, end)


def test_ratio_zero_is_the_identity() -> None:
    ids = torch.tensor([TEXTS[1]])
    fitted = fit(make(), ratio=0.0)
    with torch.no_grad():
        assert torch.equal(fitted.model(ids).logits, make()(ids).logits)


@pytest.mark.parametrize(
    ("family", "ratio", "heads", "channels"),
    [
        ("llama", 0.43, 0, 28),  # 16 - int(9.12) = 7 rows are less than a head
        ("llama", 0.44, 1, 29),  # 16 - int(8.96) = 8 rows are one
        ("llama", 0.5, 1, 32),
        ("llama", 0.9, 1, 58),
        ("mha", 0.2, 0, 13),
        ("mha", 0.25, 1, 16),
        ("mha", 0.7, 2, 45),
    ],
)
def test_heads_and_channels_are_rounded_as_upstream(
    family: str, ratio: float, heads: int, channels: int
) -> None:
    decisions = fit(make(family), ratio=ratio).decisions
    assert {len(units) for units in decisions["dropped_heads"]} == {heads}
    assert {len(units) for units in decisions["dropped_channels"]} == {channels}


@pytest.mark.parametrize("budget", [0.1, 0.25, 0.4, 0.6])
@pytest.mark.parametrize("family", [*sorted(toy.SHAPES), "mha"])
def test_a_budget_takes_the_nearest_ratio_on_the_true_count(family: str, budget: float) -> None:
    model = make(family, num_hidden_layers=6)
    total = count(model)
    fitted = fit(model, budget=budget)
    trace = fitted.decisions["budget_search"]
    found = next(row for row in trace if row["setting"] == fitted.decisions["ratio"])
    assert found["skip"] == pytest.approx(1 - count(fitted.model) / total, abs=1e-12)
    assert abs(found["skip"] - budget) == min(abs(row["skip"] - budget) for row in trace)
    assert [row["skip"] for row in trace] == sorted(row["skip"] for row in trace)
    tally = Tally(Ledger.of(fitted.model, total, 6), tokens=1)
    assert load_method("llm-pruner").authors_skip(tally.rates()) == tally.rates().skip


def test_a_pinned_ratio_wins_over_the_budget() -> None:
    decisions = fit(make(), budget=0.1, ratio=0.5).decisions
    assert decisions["ratio"] == 0.5
    assert decisions["budget_search"] == []


@pytest.mark.parametrize("kind", ["param_first", "param_mix", "l2"])
def test_a_16_bit_backbone_is_scored_in_float32(kind: str) -> None:
    rounded = make().to(torch.bfloat16)
    exact = scores_of(fit(make().to(torch.bfloat16).float(), importance=kind).decisions)
    found = scores_of(fit(rounded, importance=kind).decisions)
    # Gradients are rounded on their way forward and back through eight sublayers.
    steps = 16 * torch.finfo(torch.bfloat16).eps
    assert found == pytest.approx(exact, rel=1e-5 if kind == "l2" else steps)
    assert not np.array_equal(found, torch.tensor(found).to(torch.bfloat16).double().numpy())
    assert next(rounded.parameters()).dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"ratio": 1.0}, "param 'ratio' is 1.0, must be at least 0 and below 1"),
        ({"ratio": -0.1}, "param 'ratio' is -0.1"),
        ({"ratio": 0.95}, "param 'ratio' is 0.95, which would empty a layer"),
        ({"start": 3, "end": 3}, "param 'start' is 3 and param 'end' is 3, must be 0 <= start"),
        ({"start": 0, "end": 5}, "param 'end' is 5"),
        ({"start": -1}, "param 'start' is -1"),
    ],
)
def test_impossible_params_are_refused(params: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        fit(make(), **params)


def test_neither_budget_nor_ratio_is_not_applicable() -> None:
    model = make()
    backbone = Backbone(model, None, Path(), None, "", count(model))
    reason = load_method("llm-pruner").skip_reason(backbone, Request(None, 0, Path()))
    assert "how much to remove" in reason


def test_samples_and_length_choose_the_calibration_tokens() -> None:
    texts = documents([10, 4, 11, 9], seed=3)
    middles = [texts[0][2:8], texts[2][2:8]]
    chosen = fit(make(), texts, samples=2, length=6).decisions
    assert chosen == fit(make(), middles).decisions
    assert chosen != fit(make(), texts).decisions


@pytest.mark.parametrize("name", ["samples", "length"])
def test_no_calibration_tokens_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"param '{name}' is 0, must be at least 1 or null"):
        load_method("llm-pruner", {name: 0})
