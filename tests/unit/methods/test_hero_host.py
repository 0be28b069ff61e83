"""HeRo's router in decoding on a CPU, against the formulas, and what a decode step calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from methods.core.model.backbone import decoder
from methods.core.routing.routed import router_of
from methods.core.routing.router import Context, Tokens, Unit
from methods.hero import router as hero_router
from methods.hero.heads import Sizes
from methods.hero.host import HostSteps
from methods.hero.merged import host_weights
from methods.hero.reading import PathState
from methods.hero.router import HeroRouter, Trace
from methods.kernels.hero import streams as hero_streams
from methods.kernels.hero.formulas import Variant
from tests.near import assert_near
from tests.toys.routed import decide
from tests.toys.training import build_row

BLOCKS, WIDTH = 5, 48
REMEMBERING = ("full", "no-memread", "no-aux", "no-position")
IDS = torch.arange(12)[None]


def make_router(variant: Variant = "full") -> HeroRouter:
    """A router whose every weight says something."""
    units = [Unit(n, "ffn", 1) for n in range(BLOCKS)]
    sizes = Sizes(hidden=WIDTH, head=32, memory=24, adapter=14)
    rng = torch.Generator().manual_seed(3)
    router = HeroRouter(units, sizes, 1e-5, variant, 0.0, rng)
    with torch.no_grad():
        for parameter in router.parameters():
            spread = parameter.shape[-1] ** -0.5 if parameter.dim() > 1 else 1.0
            parameter.normal_(std=spread, generator=rng)
    return router.eval()


def stream(seed: int = 1) -> Tensor:
    """hbar of every block (R, 1, 1, D)."""
    rng = torch.Generator().manual_seed(seed)
    return torch.randn(BLOCKS, 1, 1, WIDTH, generator=rng).cumsum(0)


def begun(router: HeroRouter, hbar: Tensor) -> Any:
    ones = torch.ones(hbar.shape[:2])
    return router.start(Tokens(None, 0 * ones.long(), ones > 0), hbar, Context())


@torch.no_grad()
def by_formula(router: HeroRouter, steps: Tensor) -> list[Trace]:
    state, traces = router.empty(steps[0]), []
    for index, hbar in enumerate(steps):
        trace, state = router.step(index, hbar, state)
        traces.append(trace)
    return traces


@torch.no_grad()
def compare(router: HeroRouter, steps: Tensor) -> None:
    state = begun(router, steps[0])
    assert isinstance(state, HostSteps)
    for index, trace in enumerate(by_formula(router, steps)):
        decision, state = decide(router, index, steps[index], steps[index], state)
        torch.testing.assert_close(decision.soft, trace.gate, rtol=0, atol=1e-6)
        assert torch.equal(decision.execute, trace.gate >= router.threshold)
        scale = torch.where(decision.execute, decision.soft, 1 - decision.soft)
        assert torch.equal(decision.scale, scale)


@pytest.mark.parametrize("variant", REMEMBERING)
def test_equal_to_the_formulas(variant: Variant, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory that is not written yet is NaN: nothing reads it."""
    monkeypatch.setattr(np, "empty", lambda shape, dtype: np.full(shape, np.nan).astype(dtype))
    for seed in (1, 2):
        compare(make_router(variant), stream(seed))


def test_a_tie_executes() -> None:
    router = make_router()
    with torch.no_grad():
        for name in ("local_head", "history_head"):
            getattr(router, name)[2].weight.zero_()
            getattr(router, name)[2].bias.zero_()
        hbar = stream()[0]
        decision, _ = decide(router, 0, hbar, hbar, begun(router, hbar))
    assert decision.soft.flatten().tolist() == [0.5]
    assert bool(decision.execute.all())


def _load(router: HeroRouter, assign: bool) -> None:
    other = {name: weight + 0.1 for name, weight in router.state_dict().items()}
    router.load_state_dict(other, assign=assign)


def _swap(router: HeroRouter) -> None:
    router.key.weight.data = router.key.weight.data + 0.3


def _write(router: HeroRouter) -> None:
    router.hidden_down.weight.data.mul_(1.5)


def _train(router: HeroRouter) -> None:
    optimizer = torch.optim.SGD(router.parameters(), 0.1)
    state = begun(router, stream()[0])
    for index, hbar in enumerate(stream()):
        gate, state = router.gate(index, hbar, hbar, state, Context())
    gate.value.sum().backward()
    optimizer.step()


CHANGES: dict[str, Callable[[HeroRouter], None]] = {
    "a state that is loaded": lambda router: _load(router, assign=False),
    "tensors that are put in": lambda router: _load(router, assign=True),
    "data that is exchanged": _swap,
    "data that is written": _write,
    "an update": _train,
}


@pytest.mark.parametrize("change", CHANGES)
def test_weights_that_change_are_seen(change: str) -> None:
    router, steps = make_router(), stream()
    compare(router, steps)
    before = by_formula(router, steps)[-1].gate
    CHANGES[change](router)
    assert (by_formula(router, steps)[-1].gate - before).abs().max() > 1e-4
    compare(router, steps)


def test_only_a_new_token_that_teaches_nothing_is_decided_on_the_host() -> None:
    router, hbar = make_router(), stream()[0]
    assert isinstance(begun(router, hbar), PathState)  # gradients
    with torch.no_grad():
        assert isinstance(begun(router, hbar), HostSteps)
        assert isinstance(begun(router, hbar.expand(1, 2, -1)), PathState)
        assert isinstance(begun(router, hbar.expand(2, 1, -1)), PathState)
        assert isinstance(begun(make_router("no-history"), hbar), PathState)
        assert isinstance(begun(make_router().double(), hbar), PathState)
        assert isinstance(begun(make_router().to("meta"), hbar.to("meta")), PathState)
        with torch.autocast("cpu"):
            assert isinstance(begun(router, hbar), PathState)


@torch.no_grad()
def test_decoding_goes_this_way_and_equals_the_full_forward(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Steps from the first token; then two generations, each packing the weights once."""
    decided, packed, plain = [], [], HostSteps.decide
    monkeypatch.setattr(
        HostSteps, "decide", lambda self, *args: decided.append(args[0]) or plain(self, *args)
    )
    monkeypatch.setattr(
        hero_router, "host_weights", lambda *args: packed.append(1) or host_weights(*args)
    )
    model = build_row("hero").eval()
    full = decoder(model)(IDS)
    assert 0 < float(full.executed.double().mean()) < 1
    assert not decided
    cache, parts = None, []
    for t in range(12):
        parts.append(decoder(model)(IDS[:, t : t + 1], past_key_values=cache, use_cache=True))
        cache = parts[-1].past_key_values
    blocks = list(range(len(router_of(model).units)))
    assert (decided, len(packed)) == (blocks * 12, 1)
    assert torch.equal(torch.cat([part.executed for part in parts], dim=-1), full.executed)
    assert_near(torch.cat([part.soft for part in parts], dim=-1), full.soft)
    for turn in (1, 2):
        model.generate(IDS[:, :5], min_new_tokens=6, max_new_tokens=6, do_sample=False)
        assert (decided, len(packed)) == (blocks * (12 + 5 * turn), 1 + turn)


class Operations(TorchDispatchMode):
    """Counts operations of torch that are no views."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += not func.is_view
        return func(*args, **(kwargs or {}))


@torch.no_grad()
def test_a_block_on_the_host_calls_at_most_4_operations() -> None:
    router, steps = make_router(), stream()
    state = begun(router, steps[0])
    assert max(operations(router, state, steps)) <= 4


@pytest.mark.parametrize("streams", [False, True], ids=["written out", "streams by kernels"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_block_calls_at_most_45_operations(
    dtype: torch.dtype, streams: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many blocks came before; where a kernel reads the streams, beside its launch."""
    sums = torch.ones(1, 4)
    if streams:
        monkeypatch.setattr(hero_router, "use_streams", lambda hidden: True)
        monkeypatch.setattr(hero_streams, "path_sums", lambda streams, kernel: sums)
    router, steps = make_router(), stream().to(dtype)
    counts = operations(router, router.empty(steps[0]), steps)
    assert counts[2:] == [counts[2]] * (BLOCKS - 2)
    assert 30 < max(counts) <= 45


def operations(router: HeroRouter, state: Any, steps: Tensor) -> list[int]:
    """Of torch, that are no views, by block."""
    counts = []
    for index, hbar in enumerate(steps):
        with Operations() as counted:
            _, state = router.gate(index, hbar, hbar, state, Context())
        counts.append(counted.count)
    return counts
