"""Where LaCo's walk goes, what it leaves, and the search for a budget."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from methods import laco, load_method
from methods.base import Fitted, Request
from methods.core.model.backbone import attention, count, decoder, layers
from tests.toys.models import keep_layers, make_model, wrap
from tests.toys.texts import calibration_data, ids_of

# Full attention everywhere, so that layers may merge; biases on q, k and v.
QWEN2 = {"use_sliding_window": False, "layer_types": None}
TEXTS = ids_of([9, 3, 14, 2, 11])
BOTH = pytest.mark.parametrize("merge", ["reference", "rdsc"])

WALKS = [
    {"C": 2, "H": 7, "Lw": 0, "I": 1, "T": 0.8},
    {"C": 3, "H": 7, "Lw": 0, "I": 1, "T": 0.5},
    {"C": 3, "H": 8, "Lw": 1, "I": 2, "T": 0.6},
    {"C": 4, "H": 7, "Lw": 0, "I": 1, "T": -1.0},
    {"C": 5, "H": 8, "Lw": 0, "I": 3, "T": 0.3},
]


def make(total: int = 8, kind: str = "llama", **changes: Any) -> PreTrainedModel:
    """A toy whose layers differ little, so that merging some of them is not absurd."""
    more = QWEN2 if kind == "qwen2" else {}
    small = {"num_hidden_layers": total, "initializer_range": 0.08}
    return make_model(kind, **(small | more | changes))


def same_weights(first: PreTrainedModel, second: PreTrainedModel) -> bool:
    pairs = zip(first.state_dict().items(), second.state_dict().items(), strict=True)
    return all(a == b and torch.equal(x, y) for (a, x), (b, y) in pairs)


def fit(
    model: PreTrainedModel,
    texts: list[list[int]] = TEXTS,
    budget: float | None = None,
    **params: Any,
) -> Fitted:
    method = load_method("laco", params)
    backbone = wrap(model)
    request = Request(budget, 0, Path())
    assert method.skip_reason(backbone, request) is None
    return method.fit(backbone, calibration_data(texts), request)


@BOTH
def test_groups_partition_the_layers_in_order(merge: str) -> None:
    for settings in WALKS:
        fitted = fit(make(), merge=merge, **settings)
        decisions = fitted.decisions
        assert [n for group in decisions["groups"] for n in group] == list(range(8))
        gone = sum(row["merged"] for row in decisions["merges"] if row["accepted"])
        assert len(decisions["groups"]) == len(layers(fitted.model)) == 8 - gone
        for row in decisions["merges"]:
            # What merges is a run of original layers, at least as many as present ones.
            group = row["group"]
            assert group == list(range(group[0], group[0] + len(group)))
            assert len(group) > row["merged"]
        merged = [layer for group in decisions["groups"] for layer in group[1:]]
        assert fitted.structure == {"removed_layers": merged}


@BOTH
def test_a_threshold_of_one_accepts_nothing(merge: str) -> None:
    dense, model = make(), make()
    fitted = fit(model, merge=merge, C=3, T=1)
    assert len(fitted.decisions["merges"]) == 5
    assert not any(row["accepted"] for row in fitted.decisions["merges"])
    assert same_weights(fitted.model, dense)
    assert decoder(fitted.model).config.num_hidden_layers == 8


@pytest.mark.parametrize(("width", "interval", "left"), [(2, 1, 2), (3, 2, 2), (4, 3, 3)])
def test_a_threshold_of_minus_one_accepts_all(width: int, interval: int, left: int) -> None:
    total, layer = 12, 11 - width
    while layer >= 0:
        total -= min(width - 1, total - layer - 1)
        layer -= interval
    fitted = fit(make(12), C=width, I=interval, T=-1)
    assert all(row["accepted"] for row in fitted.decisions["merges"])
    assert len(layers(fitted.model)) == total == left


def test_the_clamp_starts_the_next_window_inside_the_shortened_model() -> None:
    settings = {"C": 5, "H": 12, "I": 2, "T": -1}
    free, bound = (fit(make(12), clamp=clamp, **settings) for clamp in (False, True))
    assert [row["layer"] for row in free.decisions["merges"]] == [7, 5, 3, 1]
    assert [row["merged"] for row in free.decisions["merges"]] == [4, 2, 2, 2]
    # After the first merge 8 layers are left: 8 - 5 = 3 lies below 7 - 2.
    assert [row["layer"] for row in bound.decisions["merges"]] == [7, 3]
    assert [row["merged"] for row in bound.decisions["merges"]] == [4, 4]


def test_the_dense_model_is_the_measure_and_equals_itself() -> None:
    model = make()
    texts = list(calibration_data(TEXTS).calibration())
    trials = laco.Trials(model, texts, "reference", False)
    assert trials._similarity(list(layers(model)), ()) == pytest.approx(1, abs=1e-6)


def test_a_sentence_is_one_vector_whatever_its_batch() -> None:
    model = make()
    settings = {"C": 3, "T": 0.5}
    alone = [
        fit(copy.deepcopy(model), [ids], **settings).decisions["merges"][0]["similarity"]
        for ids in TEXTS
    ]
    together = fit(copy.deepcopy(model), **settings).decisions["merges"][0]["similarity"]
    assert together == pytest.approx(sum(alone) / len(alone), abs=1e-6)
    two = fit(copy.deepcopy(model), sentences=2, **settings).decisions["merges"][0]["similarity"]
    assert two == pytest.approx(sum(alone[:2]) / 2, abs=1e-6)


@pytest.mark.parametrize("kind", ["llama", "tied", "qwen2", "qwen3", "mistral"])
@BOTH
def test_a_merged_model_is_a_plain_one(merge: str, kind: str, tmp_path: Path) -> None:
    dense = make(6, kind)
    fitted = fit(copy.deepcopy(dense), C=3, I=2, T=-1, merge=merge)
    groups = fitted.decisions["groups"]
    assert len(groups) < 5
    by_hand = keep_layers(dense, [group[0] for group in groups])
    by_hand.load_state_dict(fitted.model.state_dict())
    fitted.model.save_pretrained(tmp_path)
    again = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    assert again.config.num_hidden_layers == len(layers(again)) == len(groups)
    assert [attention(layer).layer_idx for layer in layers(fitted.model)] == [*range(len(groups))]
    if getattr(again.config, "layer_types", None):
        assert len(again.config.layer_types) == len(groups)
    assert count(fitted.model) == count(dense) - (6 - len(groups)) * count(layers(dense)[0])
    ids = torch.tensor([TEXTS[2]])
    with torch.no_grad():
        expected = fitted.model(ids).logits
        assert torch.equal(by_hand(ids).logits, expected)
        assert torch.equal(again(ids).logits, expected)


def test_reference_without_norms_is_layer_dropping() -> None:
    """Norms of the toy are all ones, so the merged model is one of the last layer of each group."""
    dense = make()
    fitted = fit(copy.deepcopy(dense), C=4, T=0.5)
    groups = fitted.decisions["groups"]
    assert 1 < len(groups) < 8
    dropped = keep_layers(dense, [group[-1] for group in groups])
    ids = torch.tensor([TEXTS[2]])
    with torch.no_grad():
        assert torch.equal(fitted.model(ids).logits, dropped(ids).logits)


# The search


@BOTH
@pytest.mark.parametrize(("budget", "number"), [(0.12, 1), (0.25, 2), (0.37, 3), (0.60, 5)])
def test_a_budget_is_met_at_the_highest_threshold(budget: float, number: int, merge: str) -> None:
    # A layer holds 9,280 of 78,368 parameters: 11.8 %.
    fitted = fit(make(), budget=budget, merge=merge)
    decisions = fitted.decisions
    assert len(layers(fitted.model)) == 8 - number
    assert decisions["merges"][-1]["accepted"]
    best, trace = decisions["settings"]["T"], decisions["threshold_search"]
    assert {"T": best, "layers_removed": number} in trace
    assert len(trace) in (13, 14)
    missed = [row["T"] for row in trace if row["layers_removed"] < number and row["T"] > best]
    assert min(missed) - best == pytest.approx(2**-12)
    assert all(row["T"] <= best for row in trace if row["layers_removed"] == number)


def test_similarities_kept_from_other_walks_are_those_of_the_same_model() -> None:
    texts = list(calibration_data(TEXTS).calibration())
    shared = laco.Trials(make(), texts, "rdsc", False)
    paths = set()
    for threshold in (-1, 0.4, 0.6, 0.7, 0.8, 0.9):
        settings = laco.Settings(C=2, H=7, Lw=0, I=1, T=threshold)
        walk = shared.walk(settings, None)
        assert walk.merges == laco.Trials(make(), texts, "rdsc", False).walk(settings, None).merges
        paths.add(tuple(row["accepted"] for row in walk.merges))
    assert len(paths) > 3


def test_the_found_threshold_pinned_walks_the_same_way() -> None:
    found = fit(make(), budget=0.25).decisions
    pinned = fit(make(), budget=0.25, layers=2, **found["settings"]).decisions
    assert pinned["merges"] == found["merges"]
    assert pinned["groups"] == found["groups"]
    assert (pinned["threshold_search"], pinned["budget_search"]) == ([], [])


def test_a_pinned_threshold_wins_over_the_budget() -> None:
    free, given = (fit(make(), budget=budget, C=3, T=-1) for budget in (None, 0.12))
    assert given.decisions == free.decisions
    # C alone comes from the budget then: two of 8 layers in merges of two.
    given = fit(make(), budget=0.25, T=-1)
    assert given.decisions["settings"]["C"] == 2
    assert len(layers(given.model)) == 2


def test_pinned_layers_win_over_the_budget() -> None:
    fitted = fit(make(), budget=0.12, layers=4, C=3)
    assert len(layers(fitted.model)) == 4
    assert fitted.decisions["settings"]["C"] == 3


def test_the_last_merge_takes_no_more_than_is_left() -> None:
    fitted = fit(make(), layers=4, C=4, T=-1)
    assert [row["merged"] for row in fitted.decisions["merges"]] == [3, 1]


def test_no_layer_to_remove_is_the_identity() -> None:
    fitted = fit(make(), layers=0)
    assert fitted.decisions["merges"] == []
    assert same_weights(fitted.model, make())


def test_a_target_out_of_reach_comes_as_near_as_it_can() -> None:
    fitted = fit(make(), layers=5, C=2, Lw=4)
    assert len(layers(fitted.model)) == 6
    assert fitted.decisions["settings"]["T"] == -1


def test_walks_share_their_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    real = laco.last_states
    monkeypatch.setattr(laco, "last_states", lambda *args: calls.append(1) or real(*args))
    fitted = fit(make(), layers=3, C=4)
    assert len(fitted.decisions["threshold_search"]) >= 13
    # The dense states once, then at most the windows 0 to 3 of the untouched model.
    assert len(calls) <= 1 + 4


# What does not fit


def test_mixed_layer_types_are_refused() -> None:
    method = load_method("laco")
    request = Request(0.25, 0, Path())
    assert "layer_types" in method.skip_reason(wrap(make_model("qwen2")), request)
    assert "only one" in method.skip_reason(wrap(make_model(num_hidden_layers=1)), request)
    assert method.skip_reason(wrap(make(kind="qwen2")), request) is None
    assert method.skip_reason(wrap(make_model("mistral")), request) is None


@pytest.mark.parametrize(
    ("params", "fits"),
    [
        ({}, False),
        ({"C": 3}, False),
        ({"T": 0.5}, False),
        ({"C": 3, "T": 0.5}, True),
        ({"layers": 2}, True),
    ],
)
def test_without_a_budget_the_params_must_say_how_far(params: dict[str, Any], fits: bool) -> None:
    reason = load_method("laco", params).skip_reason(wrap(make()), Request(None, 0, Path()))
    assert (reason is None) == fits


@pytest.mark.parametrize(
    "params", [{"C": 1}, {"Lw": -1}, {"I": 0}, {"sentences": 0}, {"length": 0}, {"C": True}]
)
def test_wrong_numbers_are_refused_by_name(params: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"param '{next(iter(params))}' is"):
        load_method("laco", params)


def test_two_layers_are_a_window() -> None:
    assert fit(make(2), layers=1).decisions["groups"] == [[0, 1]]


def test_a_window_wider_than_the_model_is_refused() -> None:
    with pytest.raises(ValueError, match="param 'C' is 9, must be at most 8, the number of layers"):
        fit(make(), C=9, T=0.5)


@pytest.mark.parametrize("high", [2, 9])
def test_a_first_window_outside_the_model_is_refused(high: int) -> None:
    with pytest.raises(ValueError, match=f"param 'H' is {high}, must be from C = 3 to 8"):
        fit(make(), C=3, H=high, T=0.5)
