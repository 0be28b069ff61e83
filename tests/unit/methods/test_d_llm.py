"""D-LLM: components, reserved tokens, eviction in both forms, penalty, ramp."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from methods import d_llm, load_method
from methods.base import Request
from methods.core.model.backbone import attention, attention_norm, decoder, ffn, ffn_norm, layers
from methods.core.routing import eviction
from tests.near import TERMS, assert_near
from tests.toys.models import make_model, wrap
from tests.toys.routed import (
    IDS,
    SIMPLE_D_LLM,
    build_variant,
    causal_reads,
    fit,
    set_routers,
    shake_variant,
    slow_attention,
    training_context,
    without_pads,
)

EVICTING = pytest.mark.parametrize("variant", ["d-llm", "d-llm-skipgpt"])


def two_logits(router: nn.Module, rows: Tensor) -> Tensor:
    """Component 0 skips, component 1 executes; rows (T, D) to (T, 2)."""
    if isinstance(router, nn.Linear):
        return rows @ router.weight.T + router.bias
    first, norm, _, last = router
    hidden = rows @ first.weight.T + first.bias
    hidden = norm.weight * hidden / (hidden.square().mean(dim=-1, keepdim=True) + norm.eps).sqrt()
    return hidden / (1 + (-hidden).exp()) @ last.weight.T + last.bias


def slow_states(
    model: Any, ids: Tensor, start: int, reserved: int, evict: bool, noise: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """One sequence (T,), noise (U, T) on component 1; final states and decisions (U, T)."""
    hidden, decided = decoder(model).embed_tokens(ids), []
    for number, layer in enumerate(layers(model)):
        runs = [True] * len(ids)
        if number >= start:
            logits = two_logits(model.model.router.routers[number - start], hidden)
            if noise is not None:
                logits[:, 1] += noise[number - start]
            runs = [t < reserved or bool(logits[t, 1] >= logits[t, 0]) for t in range(len(ids))]
            decided.append(torch.tensor(runs))
        seen = causal_reads(len(ids))
        if evict:
            # A token that is skipped is invisible; what it would read itself does not matter.
            seen = [[s for s in read if runs[s]] for read in seen]
        mixed = slow_attention(model, layer, attention_norm(layer)(hidden), seen)
        middle = hidden + mixed
        after = middle + ffn(layer)(ffn_norm(layer)(middle))
        hidden = torch.stack([after[t] if runs[t] else hidden[t] for t in range(len(ids))])
    return decoder(model).norm(hidden), torch.stack(decided)


@torch.no_grad()
def test_states_and_decisions_equal_the_loop_over_tokens() -> None:
    model = shake_variant("d-llm")
    output = model.model(IDS, use_cache=False)
    for row, ids in enumerate(IDS):
        states, decided = slow_states(model, ids, start=1, reserved=2, evict=True)
        assert torch.equal(output.executed[row], decided)
        torch.testing.assert_close(output.last_hidden_state[row], states, rtol=1e-5, atol=1e-5)
    assert 0.2 < output.executed[..., 2:].float().mean() < 0.8


@EVICTING
@torch.no_grad()
def test_training_equals_the_loop_on_stated_noise(
    variant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, evict = shake_variant(variant), variant == "d-llm"
    count = len(model.model.router.units)
    noise = torch.randn(4, count, 11, generator=torch.Generator().manual_seed(2))
    monkeypatch.setattr(d_llm, "logistic_noise", lambda *_: noise)
    output = model.model(IDS, use_cache=False, context=training_context())
    start, reserved = (1, 2) if evict else (0, 0)
    for row, ids in enumerate(IDS):
        states, decided = slow_states(model, ids, start, reserved, evict, noise[row])
        assert torch.equal(output.executed[row], decided)
        # The training form divides by a sum that is 1e-6 too large.
        torch.testing.assert_close(output.last_hidden_state[row], states, rtol=1e-4, atol=1e-4)
    assert torch.equal(output.soft, output.executed.float())


@pytest.mark.parametrize("eps", [1e-6, 0.0])
@torch.no_grad()
def test_the_training_form_equals_the_inference_form(
    eps: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Property 3; where nearly all of a token's attention is evicted, 1e-6 of the sum is much."""
    assert eviction.EPS == 1e-6
    model = shake_variant("d-llm") if eps == 0 else build_variant("d-llm")
    for router in model.model.router.routers:
        router[-1].bias.zero_()
    monkeypatch.setattr(eviction, "EPS", eps)
    monkeypatch.setattr(d_llm, "logistic_noise", lambda units, *_: torch.zeros(4, units, 11))
    dense = model.model(IDS, use_cache=False, context=training_context())
    monkeypatch.undo()
    sparse = model.model(IDS, use_cache=False)
    assert torch.equal(dense.executed, sparse.executed)
    assert 0.2 < sparse.executed.float().mean() < 0.8
    terms = TERMS if eps == 0 else 2 * TERMS
    assert_near(dense.last_hidden_state, sparse.last_hidden_state, terms)
    assert not torch.equal(dense.last_hidden_state, sparse.last_hidden_state)


@EVICTING
@torch.no_grad()
def test_open_gates_give_the_dense_logits(variant: str) -> None:
    """Property 1, the tie with it; fresh LoRA adds nothing."""
    model, dense = build_variant(variant), make_model()(IDS).logits
    biases = [(0.0, 100.0)] if variant == "d-llm-skipgpt" else [(0.0, 1.0), (0.3, 0.3)]
    for bias in biases:
        set_routers(model, bias)
        assert_near(model(IDS).logits, dense)
    set_routers(model, (0.0, 100.0))
    opened = model.model(IDS, context=training_context()).last_hidden_state
    assert_near(model.lm_head(opened), dense)


@torch.no_grad()
def test_closed_gates_leave_the_layers_that_always_run() -> None:
    model = build_variant("d-llm-skipgpt")
    set_routers(model, (100.0, 0.0))
    inner = decoder(model)
    assert torch.equal(model.model(IDS).last_hidden_state, inner.norm(inner.embed_tokens(IDS)))
    model = build_variant("d-llm")
    set_routers(model, (100.0, 0.0))
    output = model.model(IDS)
    first = make_model(num_hidden_layers=1)
    decoder(first).load_state_dict(decoder(make_model()).state_dict(), strict=False)
    expected = decoder(first)(IDS).last_hidden_state
    torch.testing.assert_close(output.last_hidden_state[:, 2:], expected[:, 2:])
    assert (output.last_hidden_state[:, :2] - expected[:, :2]).abs().max() > 0.1


@pytest.mark.parametrize("side", ["left", "right"])
@torch.no_grad()
def test_the_first_two_real_tokens_always_execute(side: str) -> None:
    """Property 4, counted from the first real token, also in training and in a cache."""
    model = build_variant("d-llm")
    set_routers(model, (100.0, 0.0))
    pads, ones = torch.zeros(4, 3, dtype=torch.int64), torch.ones_like(IDS)
    pair = ([pads, IDS], [pads, ones]) if side == "left" else ([IDS, pads], [ones, pads])
    ids, mask = (torch.cat(parts, dim=1) for parts in pair)
    expected = (mask.cumsum(1) <= 2) & mask.bool()
    for at in ({}, {"context": training_context()}):
        executed = model.model(ids, attention_mask=mask, **at).executed
        assert torch.equal(executed, expected[:, None].expand_as(executed))
    step = model.model(IDS[:, :1], use_cache=True)
    for t in (1, 2):
        step = model.model(IDS[:, t : t + 1], past_key_values=step.past_key_values, use_cache=True)
        assert bool(step.executed.all()) == bool(step.executed.any()) == (t == 1)
    packed = torch.cat([torch.arange(6), torch.arange(5)])[None].expand(4, -1)
    executed = model.model(IDS, position_ids=packed, use_cache=False).executed
    assert torch.equal(executed, (packed < 2)[:, None].expand_as(executed))


@torch.no_grad()
def test_prefill_equals_single_steps_in_double_precision() -> None:
    """Property 2."""
    model = shake_variant("d-llm", dtype=torch.float64)
    full, executed = model(IDS).logits, model.model(IDS, use_cache=False).executed
    step = model.model(IDS[:, :4], use_cache=True)
    states, decided = [step.last_hidden_state], [step.executed]
    for t in range(4, 11):
        step = model.model(IDS[:, t : t + 1], past_key_values=step.past_key_values, use_cache=True)
        states.append(step.last_hidden_state)
        decided.append(step.executed)
    assert torch.equal(torch.cat(decided, dim=2), executed)
    logits = model.lm_head(torch.cat(states, dim=1))
    torch.testing.assert_close(logits, full, rtol=0, atol=1e-12)


@torch.no_grad()
def test_the_value_of_an_evicted_token_changes_nothing_in_training() -> None:
    """Property 5; inference projects no evicted token at all (test_eviction.py)."""
    model = shake_variant("d-llm")
    plain = model.model(IDS, use_cache=False, context=training_context())
    gone = ~plain.executed[:, 2]
    assert bool(gone[:, :-1].any())
    v_proj = attention(layers(model)[3]).v_proj

    def changed(where: Tensor) -> Tensor:
        hook = v_proj.register_forward_hook(lambda _, __, value: value + 7.0 * where[..., None])
        output = model.model(IDS, use_cache=False, context=training_context())
        hook.remove()
        return output.last_hidden_state

    assert torch.equal(changed(gone), plain.last_hidden_state)
    assert not torch.equal(changed(~gone), plain.last_hidden_state)


def test_the_gradient_is_that_of_temperature_one_and_spares_reserved_tokens() -> None:
    model = build_variant("d-llm")
    logits: list[Tensor] = []

    def keep(module: nn.Module, inputs: Any, output: Tensor) -> None:
        output.retain_grad()
        logits.append(output)

    model.model.router.routers[3].register_forward_hook(keep)
    output = model.model(IDS, use_cache=False, context=training_context())
    output.soft[:, 3].sum().backward()
    _, noise = model.model.router.start(without_pads(IDS), logits[0], training_context())
    soft = torch.sigmoid(logits[0].diff(dim=-1).squeeze(-1).detach() + noise[:, 3])
    slope = soft * (1 - soft) * (torch.arange(11) >= 2)
    torch.testing.assert_close(logits[0].grad, torch.stack([-slope, slope], dim=-1))


def test_how_routers_start() -> None:
    """P(execute) = sigmoid(1.9); the norm starts at one with the backbone's epsilon."""
    model = build_variant("d-llm")
    for router in model.model.router.routers:
        assert torch.equal(router[-1].bias, torch.tensor([0.1, 2.0]))
        assert torch.equal(router[1].weight, torch.ones(32))
        assert router[1].eps == model.config.rms_norm_eps
        with torch.no_grad():
            router[-1].weight.zero_()
    ids = torch.randint(0, 60, (32, 64), generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        soft = model.model(ids, use_cache=False, context=training_context()).executed[..., 2:]
    assert float(soft.float().mean()) == pytest.approx(0.8699, abs=0.006)


@torch.no_grad()
def test_decisions_are_made_in_float32() -> None:
    """2 and 2.001 are the same number in bfloat16, and a tie would execute."""
    model = build_variant("d-llm", dtype=torch.bfloat16)
    set_routers(model, (2.001, 2.0))
    assert not bool(model.model(IDS, use_cache=False).executed[..., 2:].any())
    assert {p.dtype for p in model.model.router.parameters()} == {torch.float32}


def test_the_training_log_holds_the_ramped_penalty_without_reserved_tokens(tmp_path: Path) -> None:
    """Closed gates: the first of six layers runs, 1/6 of the depth; two tokens do not count."""

    def closed(self: nn.Module) -> None:
        for router in self.routers:
            nn.init.zeros_(router[-1].weight)
            router[-1].bias.data = torch.tensor([100.0, 0.0])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(d_llm.EvictingRouter, "_initialise", closed)
        fitted = fit("d-llm", tmp_path, None, omega=0.5, learning_rate=1e-9)
    for entry in fitted.decisions["training"]:
        ramp = math.sin(math.pi / 2 * entry["update"] / 6)
        assert entry["penalty"] == pytest.approx(ramp * (0.5 - 1 / 6), rel=1e-5)
        assert (entry["alpha"], entry["executed"]) == (5.0, 0.0)
    assert fitted.decisions["omega"] == {"pooled": 0.5} and "calibration" not in fitted.decisions
    assert fit("d-llm", tmp_path / "budget", 0.25).decisions["training"][-1]["alpha"] == 5.0


def test_the_simplified_form(tmp_path: Path) -> None:
    """Every layer routed by a linear map, keys kept, q and v adapted, noise at evaluation too."""
    model = shake_variant("d-llm-skipgpt")
    router = model.model.router
    assert [(unit.layer, unit.kind) for unit in router.units] == [(n, "block") for n in range(6)]
    assert all(isinstance(made, nn.Linear) and made.out_features == 2 for made in router.routers)
    adapted = {name.split(".")[4] for name, _ in model.named_parameters() if "lora_A" in name}
    assert adapted == {"q_proj", "v_proj"}
    with torch.no_grad():
        drawn = model.model(IDS, use_cache=False).executed
        noise = d_llm.hashed_noise(7, 6, without_pads(IDS))
        for row, ids in enumerate(IDS):
            _, decided = slow_states(model, ids, 0, 0, False, noise[row])
            assert torch.equal(drawn[row], decided)
    assert not bool(drawn[..., 0].all())
    log = fit("d-llm-skipgpt", tmp_path, None, omega=0.7).decisions["training"]
    for entry in log:
        # Blocks are of one size: the mean over tokens first, no ramp.
        assert entry["penalty"] == pytest.approx(abs(entry["executed"] / 6 - 0.7), abs=1e-6)
        assert entry["alpha"] == 10.0


@pytest.mark.parametrize("modules", ["qkv", "qv"])
def test_lora_sits_in_every_layer_and_scales_by_one(modules: str) -> None:
    method = load_method("d-llm", {"modules": modules, "rank": 4})
    model = method.build(wrap(make_model()), {"seed": 1, "threshold": 0.5})
    names = [name.split(".") for name, _ in model.named_parameters() if "lora_A" in name]
    expected = {(str(n), f"{letter}_proj") for n in range(6) for letter in modules}
    assert {(parts[2], parts[4]) for parts in names} == expected
    assert attention(layers(model)[0]).q_proj.scaling == {"default": 1.0}


def test_what_does_not_apply_and_what_is_refused(tmp_path: Path) -> None:
    dense, method = wrap(make_model()), load_method("d-llm")
    assert "neither a budget nor 'omega'" in method.skip_reason(dense, Request(None, 1, tmp_path))
    share = 5 * 9280 / dense.parameters
    assert method.skip_reason(dense, Request(share - 0.01, 1, tmp_path)) is None
    assert f"{share:.1%}" in method.skip_reason(dense, Request(share + 0.01, 1, tmp_path))
    sliding = wrap(make_model("mistral"))
    assert "sliding window" in method.skip_reason(sliding, Request(0.25, 1, tmp_path))
    keeping = load_method("d-llm", SIMPLE_D_LLM)
    assert keeping.skip_reason(sliding, Request(0.25, 1, tmp_path)) is None
    wrong = {"omega": 1.0, "start_layer": 0, "reserved": -1, "router_width": 0, "lora_alpha": 0}
    for name, value in wrong.items():
        with pytest.raises(ValueError, match=f"param '{name}'"):
            load_method("d-llm", {name: value})
    with pytest.raises(ValueError, match="param 'start_layer' is 6, the last layer is 5"):
        load_method("d-llm", {"start_layer": 6}).build(dense, {"seed": 1, "threshold": 0.5})
