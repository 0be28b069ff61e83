"""MoD-D: who wins the competition, what the weight multiplies, both forms of inference."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from methods import load_method
from methods.base import Request
from methods.core.model.backbone import attention_norm, decoder, ffn, ffn_norm, layers
from methods.core.routing.calibration import weigh
from methods.mod_d import measure_levels
from methods.mod_d.competition import capacity_for
from tests.near import ROUNDING
from tests.toys.models import make_model, wrap
from tests.toys.routed import (
    IDS,
    Texts,
    build_variant,
    causal_reads,
    fit,
    shake_variant,
    slow_attention,
    training_context,
    winners,
)


def test_when_all_weights_are_equal_nobody_runs() -> None:
    """Property 2: the output of such a layer is its input."""
    model = build_variant("mod-d-topk")
    with torch.no_grad():
        for router in model.model.router.routers:
            router.weight.zero_()
            router.bias.fill_(1.0)
        output = model.model(IDS, use_cache=False)
        two = make_model(num_hidden_layers=2)
        dense = make_model()
        decoder(two).load_state_dict(decoder(dense).state_dict(), strict=False)
        two.model.layers[1] = dense.model.layers[5]
        expected = decoder(two)(IDS, use_cache=False).last_hidden_state
    assert not bool(output.executed.any())
    torch.testing.assert_close(output.last_hidden_state, expected)


@pytest.mark.parametrize("at", [{}, {"context": training_context()}], ids=["inference", "training"])
def test_weights_of_one_at_full_capacity_give_the_dense_logits(at: dict[str, Any]) -> None:
    """Property 4, bit for bit."""
    model = load_method("mod-d", {"compare": "inclusive", "inference": "topk"}).build(
        wrap(make_model()), {"seed": 1, "threshold": 0.5, "capacity": 1.0, "levels": None}
    )
    with torch.no_grad():
        for router in model.model.router.routers:
            router.weight.zero_()
            router.bias.fill_(1.0)
        states = model.model(IDS, **at).last_hidden_state
        assert torch.equal(model.lm_head(states), make_model()(IDS).logits)


def slow_states(model: Any, ids: Tensor, capacity: float) -> tuple[Tensor, Tensor]:
    """One sequence (T,): final states, decisions (U, T)."""
    hidden, decided, last = decoder(model).embed_tokens(ids), [], len(layers(model)) - 1
    for number, layer in enumerate(layers(model)):
        factors = [torch.ones(len(ids)), torch.ones(len(ids))]
        if 0 < number < last:
            # Both routers read the raw input of the layer.
            for place in (0, 1):
                router = model.model.router.routers[2 * (number - 1) + place]
                weights = hidden @ router.weight[0] + router.bias
                run = torch.tensor(winners(weights.tolist(), capacity, "strict"))
                decided.append(run)
                factors[place] = torch.where(run, weights, 0.0)
        mixed = slow_attention(model, layer, attention_norm(layer)(hidden), causal_reads(len(ids)))
        middle = torch.stack([h + f * m for h, f, m in zip(hidden, factors[0], mixed, strict=True)])
        rows = zip(middle, factors[1], ffn(layer)(ffn_norm(layer)(middle)), strict=True)
        hidden = torch.stack([h + f * u for h, f, u in rows])
    return decoder(model).norm(hidden), torch.stack(decided)


@pytest.mark.parametrize("at", [{}, {"context": training_context()}], ids=["inference", "training"])
@torch.no_grad()
def test_states_and_decisions_equal_the_loop_over_tokens(at: dict[str, Any]) -> None:
    """Property 5 with it: the first and the last layer have no router and run whole."""
    model = shake_variant("mod-d-topk")
    assert sorted({unit.layer for unit in model.model.router.units}) == [1, 2, 3, 4]
    output = model.model(IDS, use_cache=False, **at)
    for row, ids in enumerate(IDS):
        states, decided = slow_states(model, ids, 0.7)
        assert torch.equal(output.executed[row], decided)
        torch.testing.assert_close(output.last_hidden_state[row], states, rtol=1e-4, atol=1e-4)
    # Of eleven tokens k is 7, and six run.
    assert bool((output.executed.sum(dim=2) == 6).all())


def test_gradients_reach_the_router_through_the_weight_of_tokens_that_ran() -> None:
    """Property 9."""
    model = shake_variant("mod-d-topk")
    weights: dict[int, Tensor] = {}

    def keep(number: int) -> Any:
        def hook(module: Any, inputs: Any, output: Tensor) -> None:
            output.retain_grad()
            weights[number] = output

        return hook

    for number, router in enumerate(model.model.router.routers):
        router.register_forward_hook(keep(number))
    output = model.model(IDS, use_cache=False, context=training_context())
    output.last_hidden_state.square().mean().backward()
    assert output.soft is None
    for number, found in weights.items():
        moved = found.grad.squeeze(-1) != 0
        assert torch.equal(moved, output.executed[:, number])


@torch.no_grad()
def test_the_training_rule_is_not_causal() -> None:
    """Property 7: later tokens change the routes of earlier ones; a single step runs everything."""
    model = shake_variant("mod-d-topk")
    whole = model.model(IDS, use_cache=False).executed
    alone = model.model(IDS[:, :6], use_cache=False).executed
    assert not torch.equal(whole[..., :6], alone)
    full = model(IDS).logits
    step = model.model(IDS[:, :6], use_cache=True)
    gap = 0.0
    for t in range(6, 11):
        step = model.model(IDS[:, t : t + 1], past_key_values=step.past_key_values, use_cache=True)
        assert bool(step.executed.all())
        gap = max(
            gap, float((model.lm_head(step.last_hidden_state)[:, 0] - full[:, t]).abs().max())
        )
    assert gap > 0.1


@torch.no_grad()
def test_threshold_mode_is_causal() -> None:
    """Property 7, second half."""
    model = shake_variant("mod-d", dtype=torch.float64)
    full = model.model(IDS, use_cache=False)
    changed = IDS.clone()
    changed[:, 6:] = (changed[:, 6:] + 11) % 60
    other = model.model(changed, use_cache=False)
    assert torch.equal(full.executed[..., :6], other.executed[..., :6])
    assert not torch.equal(full.executed[..., 6:], other.executed[..., 6:])
    step = model.model(IDS[:, :6], use_cache=True)
    states, decided = [step.last_hidden_state], [step.executed]
    for t in range(6, 11):
        step = model.model(IDS[:, t : t + 1], past_key_values=step.past_key_values, use_cache=True)
        states.append(step.last_hidden_state)
        decided.append(step.executed)
    assert torch.equal(torch.cat(decided, dim=2), full.executed)
    torch.testing.assert_close(
        torch.cat(states, dim=1), full.last_hidden_state, rtol=1e-10, atol=1e-10
    )
    assert 0.2 < full.executed.float().mean() < 0.8


@torch.no_grad()
def test_threshold_mode_compares_with_level_and_shift() -> None:
    model = shake_variant("mod-d")
    router = model.model.router
    router.levels, router.threshold = [[0.2, 0.5]] * 8, 0.8
    weights: list[Tensor] = []
    router.routers[0].register_forward_hook(lambda _, __, out: weights.append(out.squeeze(-1)))
    executed = model.model(IDS, use_cache=False).executed[:, 0]
    assert torch.equal(executed, weights[0] > 0.2 + 0.5 * math.log(0.8 / 0.2))
    assert bool(executed.any()) and not bool(executed.all())


@torch.no_grad()
def test_levels_are_means_over_documents() -> None:
    model = shake_variant("mod-d-topk")
    router = model.model.router
    texts = Texts().probe()
    levels = measure_levels(model, router, weigh(texts, "pooled"), split=False)
    taus: list[list[float]] = [[] for _ in router.units]
    seen: list[list[float]] = [[] for _ in router.units]
    heard: dict[int, list[float]] = {}
    hooks = [
        made.register_forward_hook(
            lambda _, __, out, n=n: heard.update({n: out.flatten().tolist()})
        )
        for n, made in enumerate(router.routers)
    ]
    for document in texts:
        model.model(torch.tensor([document.ids]), use_cache=False)
        k = max(1, math.floor(0.7 * len(document.ids) + 1e-9))
        for number, found in heard.items():
            taus[number].append(sorted(found, reverse=True)[k - 1])
            seen[number] += found
    for hook in hooks:
        hook.remove()
    for number, level in enumerate(levels):
        near = ROUNDING * max(map(abs, seen[number]))
        assert level.mean == pytest.approx(sum(taus[number]) / len(texts), abs=near)
        spread = torch.tensor(seen[number], dtype=torch.float64).std()
        assert level.deviation == pytest.approx(float(spread), rel=1e-4)
    assert all(not made._forward_hooks for made in router.routers)


def test_initial_values() -> None:
    """Weights start near one, where the strict comparison still finds winners, or near zero."""
    structure = {"seed": 7, "threshold": 0.5, "capacity": 0.7, "levels": None}

    def started(**params: Any) -> Any:
        method = load_method("mod-d", {"inference": "topk", **params})
        return method.build(wrap(make_model()), structure)

    model, near_zero = started(), started(initial="default")
    pairs = zip(near_zero.model.router.routers, model.model.router.routers, strict=True)
    for default, near_one in pairs:
        assert float(default.weight.detach().abs().max()) <= 32**-0.5
        assert 0 < float(default.bias.detach().abs()) <= 32**-0.5
        assert float(near_one.bias.detach()) == 1.0
        assert float(near_one.weight.detach().std()) == pytest.approx(1e-3, rel=0.4)
    with torch.no_grad():
        executed = model.model(IDS, use_cache=False).executed
    assert bool((executed.sum(dim=2) == 6).all())


def test_topk_is_not_matched_for_answers() -> None:
    method = load_method("mod-d", {"inference": "topk"})
    reasons = [
        method.skip_reason(wrap(make_model()), Request(0.2, 1, Path(), match))
        for match in ("pooled", "split")
    ]
    assert reasons[0] is None
    assert "param 'inference' 'topk' does not repeat" in str(reasons[1])


@pytest.mark.parametrize("variant", ["mod-d", "mod-d-topk"])
def test_a_budget_becomes_a_capacity(variant: str, tmp_path: Path) -> None:
    fitted = fit(variant, tmp_path, 0.2)
    total = wrap(make_model()).parameters
    # Four of six layers, queries and output 2 D^2 and FFN 3 D F; keys and values count as used.
    target = 1 - 0.2 * total / (4 * (2048 + 6144))
    lengths = [len(document.ids) for document in Texts().probe()]
    assert fitted.decisions["capacity"] == capacity_for(target, lengths, "strict")
    assert fitted.structure["capacity"] == fitted.decisions["capacity"]
    if variant == "mod-d":
        assert fitted.decisions["calibration"][-1]["skip"] == pytest.approx(0.2, abs=0.01)
        assert fitted.structure["levels"] == fitted.model.model.router.levels
        assert fitted.structure["threshold"] == fitted.model.model.router.threshold
        return
    # What the rule itself skips on the documents it was computed for.
    ran = 0
    for document in Texts().probe():
        with torch.no_grad():
            ran += int(fitted.model.model(torch.tensor([document.ids])).executed.sum())
    assert ran / (8 * sum(lengths)) == pytest.approx(target, abs=0.03)
    assert fitted.structure["levels"] is None


def test_a_pinned_capacity_is_not_calibrated(tmp_path: Path) -> None:
    fitted = fit("mod-d", tmp_path, None, capacity=0.75)
    assert fitted.decisions["capacity"] == 0.75
    assert "calibration" not in fitted.decisions
    assert fitted.structure["threshold"] == 0.5
    assert len(fitted.structure["levels"]) == 8
    # The loss is that of the language model alone.
    assert {(e["penalty"], e["alpha"]) for e in fitted.decisions["training"]} == {(0.0, 0.0)}


def test_what_does_not_apply_and_what_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dense, method = wrap(make_model()), load_method("mod-d")
    parted = load_method("mod-d", {"micro_tokens": 64})
    split = Request(0.1, 1, tmp_path, "split")
    assert "'micro_tokens' would divide" in parted.skip_reason(dense, split)
    assert method.skip_reason(dense, split) is None
    # A capacity decides alone, whatever the protocol.
    pinned = load_method("mod-d", {"micro_tokens": 64, "capacity": 0.7})
    assert pinned.skip_reason(dense, split) is None
    with monkeypatch.context() as patch:
        patch.setattr("methods.mod_d.rank_and_world", lambda: (0, 2))
        assert "which several processes would divide" in method.skip_reason(dense, split)
        assert method.skip_reason(dense, Request(0.1, 1, tmp_path)) is None
    assert "neither a budget nor 'capacity'" in method.skip_reason(
        dense, Request(None, 1, tmp_path)
    )
    share = 4 * (2048 + 6144) / dense.parameters
    assert method.skip_reason(dense, Request(share - 0.01, 1, tmp_path)) is None
    assert f"{share:.1%}" in method.skip_reason(dense, Request(share + 0.01, 1, tmp_path))
    short = wrap(make_model(num_hidden_layers=2))
    assert "none of the 2 layers" in method.skip_reason(short, Request(0.1, 1, tmp_path))
    for name, value in (("capacity", 0.0), ("capacity", 1.1), ("protected_first", -1)):
        with pytest.raises(ValueError, match=f"param '{name}'"):
            load_method("mod-d", {name: value})
