"""FLAP's statistics, scores, cut and biases against loops over documents and units."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from methods.base import Fitted
from methods.core.model.backbone import count, layers, projections, widths
from methods.flap import Units, choose, standardise
from methods.flap.statistics import Pooled, Released
from tests.toys import static
from tests.toys.models import cast, draw_biases, make_four
from tests.toys.static import logits
from tests.toys.texts import ids_of

TEXTS = ids_of([7, 12, 3, 9, 21])
IDS = torch.arange(24).reshape(2, 12)
NAMES = {"heads": "o_proj", "channels": "down_proj"}
Kept = dict[str, list[list[int]]]


def make(kind: str = "llama", **changes: Any) -> Any:
    return cast(make_four(kind, **changes), torch.float64)


def fit(
    model: Any, texts: list[list[int]] = TEXTS, budget: float | None = None, **params: Any
) -> Fitted:
    params = ({"ratio": 0.3} if budget is None else {}) | params
    return static.fit("flap", model, texts, budget, **params)


def inputs(model: Any) -> list[dict[str, list[np.ndarray]]]:
    """Layer -> map -> what enters it, (T, C) per document."""
    found: list[dict[str, list[np.ndarray]]] = []
    hooks = []
    for layer in layers(model):
        found.append({name: [] for name in NAMES.values()})
        for name, kept in found[-1].items():
            hooks.append(
                projections(layer)[name].register_forward_pre_hook(
                    lambda _, given, kept=kept: kept.append(given[0][0].numpy())
                )
            )
    with torch.no_grad():
        for ids in TEXTS:
            model(torch.tensor([ids]), use_cache=False)
    for hook in hooks:
        hook.remove()
    return found


def slow_released(documents: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Mean and fluctuation as the released update makes them, document by document."""
    mean = fluctuation = np.zeros(documents[0].shape[1])
    for seen, rows in enumerate(documents):
        mean = mean * (seen / (seen + 1)) + rows.mean(0) / (seen + 1)
        if seen:
            fluctuation = fluctuation * ((seen - 1) / seen)
            fluctuation = fluctuation + ((rows - mean) ** 2).sum(0) / (seen + 1)
    return mean, fluctuation


def slow_scores(
    model: Any, metric: str, fluctuation: str, square: bool = True
) -> dict[str, list[list[float]]]:
    """Scores of each layer's heads and channels, unit by unit."""
    found: dict[str, list[list[float]]] = {"heads": [], "channels": []}
    for layer, seen in zip(layers(model), inputs(model), strict=True):
        size = widths(layer)
        for kind, name in NAMES.items():
            weight = projections(layer)[name].weight.detach().numpy()
            rows = np.concatenate(seen[name])
            spread = rows.var(0) if fluctuation == "variance" else slow_released(seen[name])[1]
            salience = {
                "WIFV": lambda c, s=spread, w=weight: s[c] * (w[:, c] ** 2).sum(),
                "IFV": lambda c, s=spread: s[c],
                "WIFN": lambda c, x=rows, w=weight: abs(w[:, c]).mean() * np.linalg.norm(x[:, c]),
            }[metric]
            power = 2 if square and kind == "heads" else 1
            values = np.array([salience(c) ** power for c in range(weight.shape[1])])
            z = (values - values.mean()) / values.std(ddof=1)
            part = size.head * (size.query_heads // size.key_value_heads) if kind == "heads" else 1
            found[kind].append([z[u : u + part].mean() for u in range(0, len(z), part)])
    return found


def slow_kept(scores: dict[str, list[list[float]]], ratio: float, weight: float) -> Kept:
    """One list of all units from high to low, the best of each layer first, cut by weight."""
    units = []
    for kind, per_layer in scores.items():
        for number, values in enumerate(per_layer):
            for place, score in enumerate(values):
                best = score == max(values)
                units.append((math.inf if best else score, kind, number, place))
    units.sort(key=lambda unit: -unit[0])
    weights = [weight if kind == "heads" else 1.0 for _, kind, _, _ in units]
    away, running, threshold = math.inf, 0.0, -math.inf
    for unit, size in zip(units, weights, strict=True):
        running += size
        if abs(running - (1 - ratio) * sum(weights)) < away:
            away, threshold = abs(running - (1 - ratio) * sum(weights)), unit[0]
    kept: Kept = {kind: [[] for _ in values] for kind, values in scores.items()}
    for score, kind, number, place in units:
        if score > threshold:
            kept[kind][number].append(place)
    return {kind: [sorted(places) for places in values] for kind, values in kept.items()}


def head_weight(model: Any) -> float:
    size = widths(layers(model)[0])
    return size.head * (2 * size.query_heads // size.key_value_heads + 2) / 3


@pytest.mark.parametrize("fluctuation", ["variance", "released"])
@pytest.mark.parametrize("metric", ["WIFV", "IFV", "WIFN"])
@pytest.mark.parametrize("kind", ["llama", "mha", "qwen2", "qwen3", "mistral"])
def test_scores_and_kept_units_equal_the_loop(kind: str, metric: str, fluctuation: str) -> None:
    model = make(kind)
    expected = slow_scores(model, metric, fluctuation)
    decisions = fit(make(kind), metric=metric, fluctuation=fluctuation).decisions
    for part, values in expected.items():
        np.testing.assert_allclose(decisions["scores"][part], values, rtol=0, atol=1e-8)
    assert decisions["kept"] == slow_kept(expected, 0.3, head_weight(model))


@pytest.mark.parametrize("ratio", [0.05, 0.2, 0.5])
@pytest.mark.parametrize("square", [True, False])
def test_the_cut_equals_the_loop_at_other_shares(ratio: float, square: bool) -> None:
    scores = slow_scores(make("mha"), "WIFV", "variance", square)
    decisions = fit(make("mha"), ratio=ratio, square_attention=square).decisions
    assert decisions["kept"] == slow_kept(scores, ratio, head_weight(make("mha")))


def test_no_share_cuts_nothing_and_adds_zeros() -> None:
    fitted = fit(make(), ratio=0.0)
    assert torch.equal(logits(fitted.model), logits(make()))
    assert fitted.decisions["kept"]["channels"] == [list(range(64))] * 4
    assert fitted.decisions["bias_norms"] == {"attention": [0.0] * 4, "ffn": [0.0] * 4}
    assert fitted.decisions["threshold"] is None


def masked(model: Any, kept: Kept) -> Any:
    """The dense model with the columns of what goes at zero and its mean in a bias."""
    seen = inputs(model)
    with torch.no_grad():
        for number, layer in enumerate(layers(model)):
            for kind, name in NAMES.items():
                linear = projections(layer)[name]
                part = linear.in_features // (
                    widths(layer).key_value_heads if kind == "heads" else 64
                )
                stays = [unit * part + n for unit in kept[kind][number] for n in range(part)]
                gone = sorted(set(range(linear.in_features)) - set(stays))
                mean = torch.tensor(np.concatenate(seen[number][name]).mean(0))
                bias = linear.weight[:, gone] @ mean[gone]
                before = 0 if linear.bias is None else linear.bias
                linear.bias = torch.nn.Parameter(before + bias)
                linear.weight[:, gone] = 0
    return model


@pytest.mark.parametrize("kind", ["llama", "mha", "qwen2", "qwen3"])
def test_cutting_equals_zeroing_with_the_mean_in_a_bias(kind: str) -> None:
    fitted = fit(make(kind))
    expected = logits(masked(make(kind), fitted.decisions["kept"]))
    torch.testing.assert_close(logits(fitted.model), expected, rtol=0, atol=1e-9)


def biased() -> Any:
    """Biases everywhere, so that the new ones are added to old ones."""
    return draw_biases(make(mlp_bias=True, attention_bias=True))


def test_biases_that_are_there_are_added_to() -> None:
    fitted = fit(biased())
    expected = logits(masked(biased(), fitted.decisions["kept"]))
    torch.testing.assert_close(logits(fitted.model), expected, rtol=0, atol=1e-9)


def constant() -> Any:
    """Channels 5 and 40 of every layer are silu(1) * 2 whatever the token is."""
    model = make(mlp_bias=True)
    with torch.no_grad():
        for layer in layers(model):
            for name, value in (("gate_proj", 1.0), ("up_proj", 2.0)):
                projections(layer)[name].weight[[5, 40]] = 0
                projections(layer)[name].bias[[5, 40]] = value
    return model


def test_constant_channels_go_without_a_trace_but_for_their_bias() -> None:
    share = {"structure": "UL-UM", "ratio": 2 / 64}
    fitted = fit(constant(), **share)
    assert fitted.structure["dropped_channels"] == [[5, 40]] * 4
    torch.testing.assert_close(logits(fitted.model), logits(constant()), rtol=0, atol=1e-9)
    bare = fit(constant(), **share, compensate=False)
    assert bare.structure["dropped_channels"] == [[5, 40]] * 4
    assert (logits(bare.model) - logits(constant())).abs().max() > 0.01
    assert bare.decisions["bias_norms"] == {"attention": [], "ffn": []}
    assert count(fitted.model) - count(bare.model) == 4 * 32  # down_proj has one here


def test_scores_have_mean_0_and_deviation_1_and_no_scale() -> None:
    dense, grown = make(), make()
    with torch.no_grad():
        # Nothing but the head reads the last layer.
        projections(layers(grown)[3])["down_proj"].weight *= 10
    found = [fit(model).decisions for model in (dense, grown)]
    values = torch.tensor(found[0]["scores"]["channels"], dtype=torch.float64)
    torch.testing.assert_close(values.mean(1), torch.zeros(4).double(), rtol=0, atol=1e-12)
    torch.testing.assert_close(values.std(1), torch.ones(4).double(), rtol=0, atol=1e-12)
    assert found[0]["kept"] == found[1]["kept"]
    assert standardise(torch.ones(4)).tolist() == [0, 0, 0, 0]


def test_scores_that_are_no_numbers_are_not_equal_ones() -> None:
    values = torch.tensor([1.0, float("nan"), 2.0], dtype=torch.float64)
    assert standardise(values).isnan().all()
    assert standardise(torch.ones(3)).tolist() == [0.0, 0.0, 0.0]
    assert standardise(torch.ones(1)).tolist() == [0.0]


def kept_units(fitted: Fitted) -> set[tuple[str, int, int]]:
    return {
        (kind, number, unit)
        for kind, per_layer in fitted.decisions["kept"].items()
        for number, units in enumerate(per_layer)
        for unit in units
    }


def test_a_larger_share_keeps_a_part_of_what_a_smaller_one_keeps() -> None:
    shares = [0.0, 0.1, 0.25, 0.3, 0.6, 0.9, 0.99]
    kept = [kept_units(fit(make("mha"), ratio=share)) for share in shares]
    assert all(after < before for before, after in pairwise(kept[:-1]))
    # Every layer keeps a head and a channel.
    assert {unit[:2] for unit in kept[-1]} == {(k, n) for k in NAMES for n in range(4)}


@pytest.mark.parametrize("ratio", [0.1, 0.37, 0.6])
@pytest.mark.parametrize("kind", ["llama", "mha"])
def test_what_is_kept_weighs_as_asked_and_the_threshold_goes(kind: str, ratio: float) -> None:
    model = make(kind)
    weight, heads = head_weight(model), widths(layers(model)[0]).key_value_heads
    fitted = fit(model, ratio=ratio)
    kept = kept_units(fitted)
    total = 4 * (heads * weight + 64)
    assert (
        abs(sum(weight if k == "heads" else 1 for k, _, _ in kept) - (1 - ratio) * total) <= weight
    )
    scores, threshold = fitted.decisions["scores"], fitted.decisions["threshold"]
    at = [
        (k, n, u)
        for k in NAMES
        for n, values in enumerate(scores[k])
        for u, score in enumerate(values)
        if score == threshold
    ]
    assert at and kept.isdisjoint(at)


def test_equal_scores_at_the_threshold_all_go() -> None:
    channels = torch.tensor([[3.0, 1.0, 1.0, 1.0, 0.0, 2.0]], dtype=torch.float64)
    heads = torch.tensor([[9.0]], dtype=torch.float64)
    cut = choose(Units(heads, channels, 2.0), 0.3, "AL-AM", 0)
    assert cut.channels.tolist() == [[False, True, True, True, True, False]]
    assert (cut.heads.tolist(), cut.threshold) == ([[False]], 1.0)


def tallied(kind: type, rows: list[Tensor]) -> Any:
    statistics = kind()
    for part in rows:
        statistics.add(part)
    return statistics


def test_the_variance_forgets_how_tokens_came_and_the_released_one_does_not() -> None:
    draw = torch.Generator().manual_seed(5)
    rows = 3 + torch.randn(5000, 6, generator=draw, dtype=torch.float64)
    whole = tallied(Pooled, [rows])
    assert (whole.fluctuation / 5000).numpy() == pytest.approx(rows.numpy().var(0), rel=1e-12)
    order = torch.randperm(5000, generator=draw)
    other = tallied(Pooled, list(rows[order].split([1, 4000, 999])))
    for name in ("mean", "fluctuation", "energy"):
        torch.testing.assert_close(getattr(other, name), getattr(whole, name), rtol=1e-12, atol=0)
    parts = list(rows.split([1000, 500, 3500]))
    released = tallied(Released, parts)
    mean, fluctuation = slow_released([part.numpy() for part in parts])
    assert released.mean.numpy() == pytest.approx(mean, rel=1e-12)
    assert (released.fluctuation / 2).numpy() == pytest.approx(fluctuation, rel=1e-12)
    turned = tallied(Released, parts[::-1])
    assert (turned.fluctuation - released.fluctuation).abs().max() > 1
    assert tallied(Released, parts[:1]).fluctuation.tolist() == [0] * 6


def test_query_heads_with_keys_of_their_own_and_shared_ones_score_alike() -> None:
    """Four query heads on two key/value heads, or on four of which two each are equal."""
    shared, own = make(), make("mha")
    weights = {
        name: tensor.view(2, 8, 32).repeat_interleave(2, 0).reshape(32, 32)
        if "k_proj" in name or "v_proj" in name
        else tensor
        for name, tensor in shared.state_dict().items()
    }
    own.load_state_dict(weights)
    torch.testing.assert_close(logits(own), logits(shared), rtol=0, atol=1e-9)
    found = [torch.tensor(fit(model).decisions["scores"]["heads"]) for model in (shared, own)]
    torch.testing.assert_close(found[1].view(4, 2, 2).mean(2), found[0], rtol=0, atol=1e-6)
