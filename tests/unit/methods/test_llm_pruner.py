"""LLM-Pruner's scores against loops over single units, and what they rest on."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from methods import load_method
from methods.core.model.backbone import layers, widths
from tests.near import ROUNDING
from tests.toys.models import make_four
from tests.toys.static import PRUNED_BY, fit_llm_pruner
from tests.toys.texts import ids_of

MATRICES = dict.fromkeys(("q_proj", "k_proj", "v_proj", "o_proj"), "self_attn")
MATRICES |= dict.fromkeys(("gate_proj", "up_proj", "down_proj"), "mlp")
Matrices = dict[str, Tensor]


def scores_of(decisions: dict[str, Any]) -> np.ndarray:
    pairs = zip(decisions["head_importance"], decisions["channel_importance"], strict=True)
    return np.concatenate([np.array(values) for pair in pairs for values in pair])


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
    mean = gradients(model, layer, PRUNED_BY)
    alone = [gradients(model, layer, [ids]) for ids in PRUNED_BY]
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
    model = make_four(family)
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
    decisions = fit_llm_pruner(model, importance=kind, gqa_fold=how).decisions
    # A sum whose parts nearly cancel keeps the rounding of its parts.
    for part, expected in (("head", expected_heads), ("channel", expected_channels)):
        near = pytest.approx(expected, rel=0, abs=ROUNDING * max(expected))
        assert decisions[f"{part}_importance"][2] == near


@pytest.mark.parametrize("reduction", ["sum", "mean", "max", "prod", "first", "second"])
@pytest.mark.parametrize("family", ["llama", "mha"])
def test_reductions_over_the_coupled_matrices(family: str, reduction: str) -> None:
    model = make_four(family)
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
    decisions = fit_llm_pruner(model, group_reduction=reduction).decisions
    assert decisions["head_importance"][1] == pytest.approx(expected, rel=1e-4)
    assert decisions["channel_importance"][1] == pytest.approx(channels, rel=1e-4)


def test_products_are_summed_with_their_signs_over_documents() -> None:
    both = scores_of(fit_llm_pruner(make_four()).decisions)
    counts = [len(ids) - 1 for ids in PRUNED_BY]
    alone = [scores_of(fit_llm_pruner(make_four(), [ids]).decisions) for ids in PRUNED_BY]
    unsigned = np.average(alone, axis=0, weights=counts)
    assert (both <= unsigned * (1 + 1e-5)).all()
    assert (both < 0.9 * unsigned).mean() > 0.9


@pytest.mark.parametrize("kind", ["param_first", "vectorize", "param_second", "param_mix"])
def test_importance_does_not_depend_on_the_order_of_documents(kind: str) -> None:
    texts = ids_of([5, 11, 8] * 9)
    first = scores_of(fit_llm_pruner(make_four(), texts, importance=kind).decisions)
    other = scores_of(fit_llm_pruner(make_four(), texts[::-1], importance=kind).decisions)
    assert first == pytest.approx(other, rel=1e-4)


def heads_of(family: str, how: str) -> np.ndarray:
    return np.array(fit_llm_pruner(make_four(family), gqa_fold=how).decisions["head_importance"])


def test_folds_coincide_without_grouped_queries() -> None:
    assert np.array_equal(heads_of("mha", "official"), heads_of("mha", "coupled"))


def test_folds_share_the_same_sum_out_differently() -> None:
    official, coupled = heads_of("llama", "official"), heads_of("llama", "coupled")
    assert official.sum(1) == pytest.approx(coupled.sum(1), rel=1e-5)
    assert (abs(official - coupled) > 1e-3 * coupled).all()


def test_vectorize_never_exceeds_param_first() -> None:
    first = scores_of(fit_llm_pruner(make_four()).decisions)
    vector = scores_of(fit_llm_pruner(make_four(), importance="vectorize").decisions)
    assert (vector <= first * (1 + 1e-5)).all()
    assert (vector < 0.9 * first).mean() > 0.9


@pytest.mark.parametrize("kind", ["param_first", "param_mix", "l2"])
def test_a_16_bit_backbone_is_scored_in_float32(kind: str) -> None:
    rounded = make_four().to(torch.bfloat16)
    exact = scores_of(
        fit_llm_pruner(make_four().to(torch.bfloat16).float(), importance=kind).decisions
    )
    found = scores_of(fit_llm_pruner(rounded, importance=kind).decisions)
    # Gradients are rounded on their way forward and back through eight sublayers.
    steps = 16 * torch.finfo(torch.bfloat16).eps
    assert found == pytest.approx(exact, rel=1e-5 if kind == "l2" else steps)
    assert not np.array_equal(found, torch.tensor(found).to(torch.bfloat16).double().numpy())
    assert next(rounded.parameters()).dtype == torch.bfloat16


def test_samples_and_length_choose_the_calibration_tokens() -> None:
    texts = ids_of([10, 4, 11, 9], seed=3)
    middles = [texts[0][2:8], texts[2][2:8]]
    chosen = fit_llm_pruner(make_four(), texts, samples=2, length=6).decisions
    assert chosen == fit_llm_pruner(make_four(), middles).decisions
    assert chosen != fit_llm_pruner(make_four(), texts).decisions


@pytest.mark.parametrize("name", ["samples", "length"])
def test_no_calibration_tokens_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"param '{name}' is 0, must be at least 1 or null"):
        load_method("llm-pruner", {name: 0})
