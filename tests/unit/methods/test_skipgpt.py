"""SkipGPT: which component executes, what each router reads, temperature, penalty, counts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from methods import load_method, skipgpt
from methods.base import Request
from methods.core.model.backbone import (
    attention_norm,
    decoder,
    ffn,
    ffn_norm,
    layers,
)
from methods.core.routing.router import Context
from tests.near import assert_near
from tests.toys.models import make_model, wrap
from tests.toys.routed import (
    IDS,
    build_variant,
    causal_reads,
    decide,
    fit,
    set_routers,
    shake_variant,
    slow_attention,
    training_context,
    without_pads,
)

ROWS = pytest.mark.parametrize("variant", ["skipgpt-rt", "skipgpt-rt-mlp", "skipgpt-joint"])


def two_logits(router: nn.Module, rows: Tensor) -> Tensor:
    """Component 0 executes, component 1 skips; rows (T, D) to (T, 2)."""
    if isinstance(router, nn.Linear):
        return rows @ router.weight.T + router.bias
    first, last = router[0], router[2]
    hidden = (rows @ first.weight.T + first.bias).clamp(min=0)
    return hidden @ last.weight.T + last.bias


def added_where(runs: Tensor, rows: Tensor, update: Tensor) -> Tensor:
    return torch.stack([r + u if on else r for on, r, u in zip(runs, rows, update, strict=True)])


def slow_states(model: Any, ids: Tensor, noise: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """One sequence (T,), noise (U, T) on the first component; final states and decisions (U, T)."""
    hidden, decided = decoder(model).embed_tokens(ids), []
    for number, layer in enumerate(layers(model)):
        runs = []
        for place in (2 * number, 2 * number + 1):
            logits = two_logits(model.model.router.routers[place], hidden)
            added = torch.zeros(len(ids)) if noise is None else noise[place]
            rows = zip(logits.tolist(), added.tolist(), strict=True)
            runs.append(torch.tensor([first + more >= second for (first, second), more in rows]))
        decided += runs
        mixed = slow_attention(model, layer, attention_norm(layer)(hidden), causal_reads(len(ids)))
        middle = added_where(runs[0], hidden, mixed)
        hidden = added_where(runs[1], middle, ffn(layer)(ffn_norm(layer)(middle)))
    return decoder(model).norm(hidden), torch.stack(decided)


@ROWS
@torch.no_grad()
def test_states_and_decisions_equal_the_loop_over_tokens(variant: str) -> None:
    model = shake_variant(variant)
    output = model.model(IDS, use_cache=False)
    for row, ids in enumerate(IDS):
        states, decided = slow_states(model, ids)
        assert torch.equal(output.executed[row], decided)
        torch.testing.assert_close(output.last_hidden_state[row], states, rtol=1e-5, atol=1e-5)
    assert 0.3 < output.executed.float().mean() < 0.7


@ROWS
@torch.no_grad()
def test_training_equals_the_loop_on_stated_noise(
    variant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = shake_variant(variant)
    noise = torch.randn(4, 12, 11, generator=torch.Generator().manual_seed(2))
    monkeypatch.setattr(skipgpt, "logistic_noise", lambda *_: noise)
    output = model.model(IDS, use_cache=False, context=training_context())
    for row, ids in enumerate(IDS):
        states, decided = slow_states(model, ids, noise[row])
        assert torch.equal(output.executed[row], decided)
        torch.testing.assert_close(output.last_hidden_state[row], states, rtol=1e-5, atol=1e-5)
    assert torch.equal(output.soft, output.executed.float())
    monkeypatch.undo()
    assert not torch.equal(output.executed, model.model(IDS, use_cache=False).executed)


@ROWS
@pytest.mark.parametrize("at", [Context(), training_context()], ids=["inference", "training"])
@torch.no_grad()
def test_open_gates_give_the_dense_logits_bit_for_bit(variant: str, at: Context) -> None:
    """Property 1, also in the form of training, with biases that no noise can turn."""
    model = build_variant(variant)
    set_routers(model, (100.0, -100.0))
    logits = model.lm_head(model.model(IDS, context=at).last_hidden_state)
    assert torch.equal(logits, make_model()(IDS).logits)


@ROWS
@pytest.mark.parametrize("at", [Context(), training_context()], ids=["inference", "training"])
@torch.no_grad()
def test_closed_gates_leave_embeddings_norm_and_head(variant: str, at: Context) -> None:
    model = build_variant(variant)
    set_routers(model, (-100.0, 100.0))
    dense = make_model()
    expected = dense.lm_head(decoder(dense).norm(decoder(dense).embed_tokens(IDS)))
    output = model.model(IDS, context=at)
    assert torch.equal(model.lm_head(output.last_hidden_state), expected)
    assert not bool(output.executed.any())


@torch.no_grad()
def test_an_uneven_rate_is_that_of_component_zero() -> None:
    """Property 6: swapped components would turn 0.73 into 0.27."""
    model = build_variant("skipgpt-rt")
    set_routers(model, (0.5, -0.5))
    ids = torch.randint(0, 60, (32, 64), generator=torch.Generator().manual_seed(3))
    executed = model.model(ids, use_cache=False, context=training_context()).executed
    assert float(executed.float().mean()) == pytest.approx(0.7311, abs=0.01)
    set_routers(model, (0.0, 0.0))
    assert bool(model.model(ids, use_cache=False).executed.all()), "a tie executes"


@torch.no_grad()
def test_decisions_are_made_in_float32() -> None:
    """10 and 10.01 are the same number in bfloat16, and a tie would execute."""
    model = build_variant("skipgpt-rt", dtype=torch.bfloat16)
    set_routers(model, (10.0, 10.01))
    assert not bool(model.model(IDS, use_cache=False).executed.any())
    assert {p.dtype for p in model.model.router.parameters()} == {torch.float32}
    output = shake_variant("skipgpt-rt", dtype=torch.bfloat16).model(IDS, use_cache=False)
    assert output.last_hidden_state.dtype == torch.bfloat16


def router_call(progress: float) -> tuple[Tensor, Tensor]:
    """Of one unit whose two logits are 0.7 apart: noise, and the slope of the soft gate."""
    model = build_variant("skipgpt-rt")
    set_routers(model, (0.7, 0.0))
    router, at = model.model.router, training_context(progress)
    hidden = torch.zeros(4, 11, 32)
    state = router.start(without_pads(IDS), hidden, at)
    decision, _ = decide(router, 3, hidden, None, state, at)
    decision.soft.sum().backward()
    return state[:, 3], router.routers[3].bias.grad[0]


@pytest.mark.parametrize(
    ("progress", "temperature"), [(0.0, 5.0), (0.25, 4.0), (0.5, 3.0), (1.0, 1.0)]
)
def test_the_temperature_falls_from_five_to_one(progress: float, temperature: float) -> None:
    noise, slope = router_call(progress)
    soft = torch.sigmoid((0.7 + noise) / temperature)
    torch.testing.assert_close(slope, (soft * (1 - soft) / temperature).sum())


@pytest.mark.parametrize("variant", ["skipgpt-rt", "skipgpt-joint"])
def test_the_temperature_follows_the_optimizer_step(
    variant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[float] = []
    real = skipgpt.sample_gates

    def spy(difference: Tensor, noise: Tensor, temperature: float) -> Any:
        seen.append(temperature)
        return real(difference, noise, temperature)

    monkeypatch.setattr(skipgpt, "sample_gates", spy)
    fit(variant, tmp_path, updates=4, micro_tokens=40, checkpointing=True)
    # Neither micro-batches nor replays advance it.
    assert sorted(set(seen), reverse=True) == [5.0, 4.0, 3.0, 2.0]
    assert all(seen.count(t) == 12 * 2 * 2 for t in set(seen))


def test_every_forward_pass_draws_noise_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[float] = []
    real = skipgpt.logistic_noise

    def spy(units: int, tokens: Any, at: Context) -> Tensor | None:
        noise = real(units, tokens, at)
        if noise is not None:
            drawn.append(float(noise[0, 0, 0]))
        return noise

    monkeypatch.setattr(skipgpt, "logistic_noise", spy)
    fit("skipgpt-rt", tmp_path, updates=4, micro_tokens=40)
    assert len(drawn) == len(set(drawn)) == 4 * 2


@pytest.mark.parametrize(
    ("params", "target", "weight"),
    [
        ({}, 0.2, None),
        ({"measure": "module"}, 0.2, None),
        ({"sparsity": 0.25, "measure": "module"}, 0.25, 1 / 12),
    ],
    ids=["budget", "module", "literal"],
)
def test_what_a_fit_asks_of_its_penalty(
    params: dict[str, Any], target: float, weight: float | None,
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    asked: list[tuple[Tensor, float]] = []
    real = skipgpt.mean_deviation

    def spy(soft: Tensor, counted: Tensor, weights: Tensor, skip: float) -> Tensor:
        asked.append((weights, skip))
        return real(soft, counted, weights, skip)

    monkeypatch.setattr(skipgpt, "mean_deviation", spy)
    fitted = fit("skipgpt-rt", tmp_path, updates=2, **params)
    weights, aimed = asked[0]
    dense = make_model()
    # D 32, F 64: queries and output 2 D^2, FFN 3 D F.
    share = torch.tensor([2048.0, 6144.0] * 6).double() / wrap(dense).parameters
    expected = share if weight is None else torch.full_like(share, weight)
    torch.testing.assert_close(weights, expected)
    assert aimed == target
    assert {entry["alpha"] for entry in fitted.decisions["training"]} == {20.0}
    # A pinned target is the authors' recipe: nothing is calibrated.
    assert ("calibration" in fitted.decisions) == ("sparsity" not in params)


def test_the_training_log_holds_the_penalty_of_its_own_gates(tmp_path: Path) -> None:
    log = fit("skipgpt-rt", tmp_path, None, sparsity=0.3, updates=5).decisions["training"]
    for entry in log:
        # Budget None, measure params: one micro-batch, so the mean is that of the log.
        assert entry["penalty"] == pytest.approx(abs(entry["skip"] - 0.3), abs=1e-6)
        assert entry["alpha"] == 20.0


def test_router_tuning_leaves_the_backbone_its_bits(tmp_path: Path) -> None:
    """Property 8."""
    model = fit("skipgpt-rt", tmp_path).model
    after, start = model.state_dict(), build_variant("skipgpt-rt").state_dict()
    for name, value in make_model().state_dict().items():
        assert torch.equal(after[name], value)
    trained = {name for name, p in model.named_parameters() if p.requires_grad}
    assert trained == {name for name in after if name.startswith("model.router.")}
    assert all(not torch.equal(after[name], start[name]) for name in trained)


@torch.no_grad()
def test_sampled_evaluation_draws_the_same_in_a_cache() -> None:
    model = shake_variant("skipgpt-rt-sampled")
    full = model(IDS).logits
    first = model(IDS[:, :4], use_cache=True)
    parts, cache = [first.logits], first.past_key_values
    for t in range(4, 11):
        step = model(IDS[:, t : t + 1], past_key_values=cache, use_cache=True)
        parts.append(step.logits)
    assert_near(torch.cat(parts, dim=1), full)
    drawn = model.model(IDS, use_cache=False).executed
    assert not torch.equal(drawn, shake_variant("skipgpt-rt").model(IDS, use_cache=False).executed)
    set_routers(model, (0.5, -0.5))
    ids = torch.randint(0, 60, (32, 64), generator=torch.Generator().manual_seed(3))
    rate = float(model.model(ids, use_cache=False).executed.float().mean())
    assert rate == pytest.approx(0.7311, abs=0.02)


@pytest.mark.parametrize("router", ["linear", "mlp"])
def test_how_routers_start(router: str) -> None:
    model = load_method("skipgpt-rt", {"router": router}).build(
        wrap(make_model(hidden_size=256)), {"seed": 7, "threshold": 0.5}
    )
    for made in model.model.router.routers:
        parts = [made] if router == "linear" else [made[0], made[2]]
        bounds = [(3 / 256) ** 0.5] if router == "linear" else [(6 / 256) ** 0.5, (3 / 64) ** 0.5]
        for linear, bound in zip(parts, bounds, strict=True):
            assert not bool(linear.bias.any())
            assert 0.9 * bound < float(linear.weight.detach().abs().max()) <= bound


def test_what_does_not_apply_and_what_is_refused(tmp_path: Path) -> None:
    dense = wrap(make_model())
    method = load_method("skipgpt-rt")
    assert "neither a budget nor 'sparsity'" in method.skip_reason(
        dense, Request(None, 1, tmp_path)
    )
    share = 6 * (2048 + 6144) / dense.parameters
    assert method.skip_reason(dense, Request(share - 0.01, 1, tmp_path)) is None
    assert f"{share:.1%}" in method.skip_reason(dense, Request(share + 0.01, 1, tmp_path))
    for sparsity in (1.0, 0.0):
        with pytest.raises(ValueError, match="param 'sparsity'"):
            load_method("skipgpt-rt", {"sparsity": sparsity})
