"""Properties of HeRo's router that follow from its equations."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from methods.core.model.backbone import decoder, ffn, layers
from methods.core.routing.routed import route
from methods.core.routing.router import Unit, ffn_units
from methods.hero.heads import Sizes
from methods.hero.router import HeroRouter
from tests.reference.hero_router import (
    NORM_EPS,
    WIDTH,
    make_router,
    randomise,
    run,
    stacked,
    streams,
)
from tests.toys.models import make_model
from tests.toys.routed import decide

IDS = torch.randint(0, 60, (3, 11), generator=torch.Generator().manual_seed(5))


def test_local_bias_of_100_gives_gates_of_one_and_the_dense_logits() -> None:
    """Property 1."""
    dense = make_model()(IDS).logits
    model, router = routed()
    force(router, 100.0)
    output = decoder(model)(input_ids=IDS)
    assert output.soft.dtype == torch.float32
    assert bool((output.soft == 1.0).all())
    assert bool(output.executed.all())
    assert torch.equal(model(IDS).logits, dense)


def test_local_bias_of_minus_100_with_silent_adapters_removes_the_ffns() -> None:
    """Property 2."""
    removed = make_model()
    for layer in layers(removed)[2:]:
        nn.init.zeros_(ffn(layer).down_proj.weight)
    model, router = routed()
    force(router, -100.0)
    for adapter in router.adapters:
        nn.init.zeros_(adapter.up.weight)
    assert not bool(decoder(model)(input_ids=IDS).executed.any())
    assert torch.equal(model(IDS).logits, removed(IDS).logits)


def test_a_bypass_adds_the_adapter_of_the_normed_state_times_what_the_gate_leaves() -> None:
    model, router = routed()
    force(router, -1.0)
    last = layers(model)[-1]
    seen: dict[str, Tensor] = {}
    last.post_attention_layernorm.register_forward_hook(
        lambda _, args, out: seen.update(middle=args[0], rows=out)
    )
    decoder(model).norm.register_forward_hook(lambda _, args, out: seen.update(end=args[0]))
    soft = decoder(model)(input_ids=IDS).soft
    down, up = (part.weight for part in router.adapters[-1].children())
    inner = seen["rows"] @ down.T
    update = (inner * torch.sigmoid(inner)) @ up.T
    expected = seen["middle"] + (1 - soft[:, -1, :, None]) * update
    assert 0.2 < float(soft.detach().mean()) < 0.35
    torch.testing.assert_close(seen["end"], expected, rtol=1e-5, atol=1e-6)


def test_a_gate_of_exactly_one_half_executes() -> None:
    """Property 3."""
    model, router = routed()
    force(router, 0.0)
    output = decoder(model)(input_ids=IDS)
    assert bool((output.soft == 0.5).all())
    assert bool(output.executed.all())


def test_start_of_the_path() -> None:
    """Property 4."""
    router = make_router(4)
    traces = run(router, streams(4))
    assert bool((traces[0].context == 0).all())
    assert bool((traces[0].novelty == 0).all())
    path = stacked(traces, "path")
    assert bool((path[0, ..., 2] == 0).all()), "distance at the first block"
    assert bool((path[:2, ..., 3] == 0).all()), "bend at the first two blocks"
    assert bool((path[1:, ..., 2] > 0).all())
    assert bool((path[2:, ..., 3] != 0).all())
    assert path[0, ..., 4:].unique().tolist() == [1.0]
    assert path[..., 0].unique().tolist() == [0.25, 0.5, 0.75, 1.0]
    assert path[..., 1].unique().tolist() == [0.0, 0.25, 0.5, 0.75]
    p, m = stacked(traces, "p"), stacked(traces, "m")
    torch.testing.assert_close(m, p.cumprod(0))
    assert bool((m[1:] <= m[:-1]).all())
    assert torch.equal(path[1:, ..., 4], p[:-1])
    assert torch.equal(path[1:, ..., 5], m[:-1])


def test_a_gradient_through_a_standing_token_is_finite() -> None:
    """delta may be zero; the norm's gradient there is zero, not NaN."""
    router = make_router(4)
    hbar = streams(1).expand(4, -1, -1, -1).clone().requires_grad_()
    torch.stack([trace.gate for trace in run(router, hbar)]).sum().backward()
    assert bool(torch.isfinite(hbar.grad).all())


def test_first_and_last_decay_get_no_gradient() -> None:
    """Property 6, second part."""
    router = make_router(5)
    torch.stack([trace.gate for trace in run(router, streams(5))]).sum().backward()
    gradient = router.eta.grad
    assert gradient[0] == 0
    assert gradient[-1] == 0
    assert bool((gradient[1:-1] != 0).all())


def test_a_gate_sees_its_own_token_alone() -> None:
    """Property 8, second part: tokens do not interact in the router."""
    router = make_router(4)
    hbar = streams(4)
    other = hbar.clone()
    other[:, 1, 2] += 1.0
    change = stacked(run(router, other), "gate") - stacked(run(router, hbar), "gate")
    assert bool((change[:, 1, 2] != 0).all())
    change[:, 1, 2] = 0
    assert bool((change == 0).all())


def test_a_memory_without_values_is_the_ablation_apart_from_novelty() -> None:
    """Property 11."""
    full, ablated = make_router(5), make_router(5, "no-memread")
    for name in ("W_v", "W_c"):
        nn.init.zeros_(full.formula_parameters()[name])
    ablated.load_state_dict(full.state_dict())
    assert bool((stacked(run(full, streams(5)), "novelty")[1:] == 1).all())
    assert bool((stacked(run(ablated, streams(5)), "novelty") == 0).all())
    for router in (full, ablated):
        nn.init.zeros_(router.formula_parameters()["hist_W1"][:, -1])
    for name in ("gate", "history_logit", "p", "m", "context"):
        assert torch.equal(
            stacked(run(full, streams(5)), name), stacked(run(ablated, streams(5)), name)
        )


def test_the_gate_is_decided_in_float32_whatever_the_stream_holds() -> None:
    router = make_router(3)
    hbar = streams(3).bfloat16()
    gates = stacked(run(router, hbar), "gate")
    assert gates.dtype == torch.float32
    assert torch.equal(gates, stacked(run(router, hbar.float()), "gate"))
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(gates, stacked(run(router, hbar), "gate"))


def test_the_threshold_decides_and_the_gate_scales() -> None:
    router = make_router(2)
    hbar = streams(1)[0]
    start = router.empty(hbar)
    gate = router.step(0, hbar, start)[0].gate
    gate = gate.detach()
    router.threshold = float(gate.median())
    decision, _ = decide(router, 0, hbar, hbar, start)
    assert torch.equal(decision.execute, gate >= gate.median())
    assert 0 < int(decision.execute.sum()) < 6
    assert torch.equal(decision.soft, gate)
    assert torch.equal(decision.scale, torch.where(gate >= gate.median(), gate, 1 - gate))


def test_a_new_router_starts_open_and_remembers_most() -> None:
    sizes = Sizes(hidden=WIDTH, head=16, memory=64, adapter=5)
    units = [Unit(n, "ffn", 10) for n in range(6)]
    router = HeroRouter(units, sizes, NORM_EPS, "full", 2.0, torch.Generator().manual_seed(0))
    gates = stacked(run(router, streams(6)), "gate")
    assert bool(((gates - 0.88).abs() < 0.02).all())
    torch.testing.assert_close(torch.sigmoid(router.eta), torch.full((6,), 0.98))
    assert all(bool((adapter.up.weight == 0).all()) for adapter in router.adapters)
    assert all(bool((adapter.down.weight != 0).any()) for adapter in router.adapters)
    third = router.formula_parameters()["path_W1"][:, 2].abs().max()
    others = router.formula_parameters()["path_W1"][:, [0, 1, 3, 4, 5]].abs().max()
    assert third < 2 * others / math.sqrt(WIDTH)


def routed() -> tuple[nn.Module, HeroRouter]:
    """A toy Llama of six layers whose last four are routed."""
    model = make_model().requires_grad_(False)
    sizes = Sizes(hidden=32, head=16, memory=64, adapter=7)
    router = HeroRouter(
        ffn_units(model, [2, 3, 4, 5]), sizes, 1e-6, "full", 2.0, None
    ).requires_grad_(True)
    randomise(router)
    return route(model, router), router


def force(router: HeroRouter, logit: float) -> None:
    """Both heads give a constant: history 0, local ``logit``."""
    named = router.formula_parameters()
    for name in ("hist_W2", "hist_b2", "local_W2"):
        nn.init.zeros_(named[name])
    nn.init.constant_(named["local_b2"], logit)
