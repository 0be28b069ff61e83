"""What LLM-Pruner takes away, by its scores, for a ratio or a budget."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from methods import load_method
from methods.base import Request
from methods.core.model.backbone import attention, count, ffn, layers, widths
from methods.core.model.ledger import Ledger, Tally
from tests.toys.models import CONFIGS, make_four, wrap
from tests.toys.static import PRUNED_BY, fit_llm_pruner


@pytest.mark.parametrize(("family", "head"), [("mha", 2), ("llama", 1), ("qwen3", 0)])
def test_a_head_without_output_scores_zero_and_goes_first(family: str, head: int) -> None:
    model = make_four(family)
    group = attention(layers(model)[0]).num_key_value_groups
    with torch.no_grad():
        columns = slice(8 * group * head, 8 * group * (head + 1))
        attention(layers(model)[1]).o_proj.weight[:, columns] = 0
    ratio = 1 / widths(layers(model)[0]).key_value_heads
    decisions = fit_llm_pruner(model, ratio=ratio).decisions
    assert decisions["head_importance"][1][head] == 0
    assert decisions["dropped_heads"][1] == [head]
    assert min(decisions["head_importance"][2]) > 0


def test_a_channel_without_output_scores_zero_and_goes_first() -> None:
    model = make_four()
    with torch.no_grad():
        ffn(layers(model)[3]).down_proj.weight[:, [40, 7]] = 0
    decisions = fit_llm_pruner(model, ratio=0.03).decisions
    assert decisions["dropped_channels"][3] == [7, 40]
    assert [decisions["channel_importance"][3][n] for n in (7, 40)] == [0, 0]


def test_the_lowest_go_and_are_listed_ascending() -> None:
    decisions = fit_llm_pruner(make_four("mha"), ratio=0.5).decisions
    for part, units in (("head", "heads"), ("channel", "channels")):
        for scores, dropped in zip(
            decisions[f"{part}_importance"], decisions[f"dropped_{units}"], strict=True
        ):
            assert dropped == sorted(np.argsort(scores)[: len(scores) // 2].tolist())


def test_protected_layers_are_not_scored_and_keep_their_bits() -> None:
    dense = make_four().state_dict()
    fitted = fit_llm_pruner(make_four(), start=1, end=3)
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
    ids = torch.tensor([PRUNED_BY[1]])
    fitted = fit_llm_pruner(make_four(), ratio=0.0)
    with torch.no_grad():
        assert torch.equal(fitted.model(ids).logits, make_four()(ids).logits)


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
    decisions = fit_llm_pruner(make_four(family), ratio=ratio).decisions
    assert {len(units) for units in decisions["dropped_heads"]} == {heads}
    assert {len(units) for units in decisions["dropped_channels"]} == {channels}


@pytest.mark.parametrize("budget", [0.1, 0.25, 0.4, 0.6])
@pytest.mark.parametrize("family", [*sorted(CONFIGS), "mha"])
def test_a_budget_takes_the_nearest_ratio_on_the_true_count(family: str, budget: float) -> None:
    model = make_four(family, num_hidden_layers=6)
    total = count(model)
    fitted = fit_llm_pruner(model, budget=budget)
    trace = fitted.decisions["budget_search"]
    found = next(row for row in trace if row["setting"] == fitted.decisions["ratio"])
    assert found["skip"] == pytest.approx(1 - count(fitted.model) / total, abs=1e-12)
    assert abs(found["skip"] - budget) == min(abs(row["skip"] - budget) for row in trace)
    assert [row["skip"] for row in trace] == sorted(row["skip"] for row in trace)
    tally = Tally(Ledger.of(fitted.model, total, 6), tokens=1)
    assert load_method("llm-pruner").authors_skip(tally.rates()) == tally.rates().skip


def test_a_pinned_ratio_wins_over_the_budget() -> None:
    decisions = fit_llm_pruner(make_four(), budget=0.1, ratio=0.5).decisions
    assert decisions["ratio"] == 0.5
    assert decisions["budget_search"] == []


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
        fit_llm_pruner(make_four(), **params)


def test_neither_budget_nor_ratio_is_not_applicable() -> None:
    reason = load_method("llm-pruner").skip_reason(wrap(make_four()), Request(None, 0, Path()))
    assert "how much to remove" in reason


def test_a_budget_beyond_all_heads_and_channels_is_not_applicable() -> None:
    method, dense = load_method("llm-pruner"), wrap(make_four())
    reason = method.skip_reason(dense, Request(0.9, 0, Path()))
    assert reason is not None and "heads and channels in reach hold" in reason
    assert method.skip_reason(dense, Request(0.25, 0, Path())) is None
    assert (
        load_method("llm-pruner", {"ratio": 0.5}).skip_reason(dense, Request(0.9, 0, Path()))
        is None
    )
