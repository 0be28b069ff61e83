"""HeRo's router kernels, under Triton's interpreter or on a GPU, against twin and router."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from methods.core.routing.router import Context, Tokens, Unit
from methods.hero.heads import Sizes
from methods.hero.merged import kernel_weights, merge
from methods.hero.router import HeroRouter
from methods.kernels import choose
from methods.kernels.hero.formulas import Variant
from methods.kernels.hero.operands import KernelWeights, RouterWorkspace
from methods.kernels.hero.router import project, router_step, router_workspace
from methods.kernels.launch import Launch
from tests.interpreted import DEVICE, prepare
from tests.unit.methods.test_hero_host import REMEMBERING, Operations

pytest.importorskip("triton", reason="Triton is not installed")
prepare()

ROUTED = 5


def make_router(variant: Variant = "full", width: int = 48, memory: int = 64) -> HeroRouter:
    """A router whose heads, norm and decays say something."""
    units = [Unit(n, "ffn", 1) for n in range(ROUTED)]
    maker = torch.Generator().manual_seed(3)
    sizes = Sizes(hidden=width, head=32, memory=memory, adapter=14)
    router = HeroRouter(units, sizes, 1e-5, variant, 0.0, maker)
    with torch.no_grad():
        for name in ("local_head", "history_head"):
            getattr(router, name)[2].weight.normal_(std=0.6, generator=maker)
        router.norm_weight.uniform_(0.5, 1.5, generator=maker)
        router.eta.normal_(generator=maker)
    return router.to(DEVICE)


def packed_of(router: HeroRouter) -> KernelWeights:
    return kernel_weights(
        merge(router.formula_parameters(), router.eps), router.eps, router.variant
    )


def stream(batch: int, width: int, seed: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """hbar of every block (R, B, D)."""
    maker = torch.Generator().manual_seed(seed)
    steps = torch.randn(ROUTED, batch, width, generator=maker)
    return steps.cumsum(0).to(DEVICE, dtype)


def up_to(index: int, streams: Tensor) -> list[Tensor]:
    """What the router meets at a block: hbar there and at the two before."""
    return list(streams[max(0, index - 2) : index + 1])


def poisoned(batch: int, packed: KernelWeights) -> RouterWorkspace:
    space = router_workspace(batch, packed)
    for part in space:
        part.fill_(float("nan") if part.is_floating_point() else True)
    return space


def near(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("kernel", [True, False], ids=["triton", "twin"])
@pytest.mark.parametrize("variant", REMEMBERING)
@pytest.mark.parametrize("batch", [1, 3, 37])
@torch.no_grad()
def test_equal_to_the_router(batch: int, variant: Variant, kernel: bool) -> None:
    """Two steps with one workspace: the second meets what the first left there."""
    width = 48
    router = make_router(variant, width)
    packed = packed_of(router)
    space = poisoned(batch, packed)
    for seed in (1, 2):
        streams = stream(batch, width, seed)
        state = router.empty(streams[0][:, None])
        for index, hbar in enumerate(streams):
            trace, state = router.step(index, hbar[:, None], state)
            router_step(index, up_to(index, streams), packed, space, 0.5, kernel)
            near(space.gate, trace.gate[:, 0])
            near(space.p, state.p[:, 0])
            near(space.m, state.m[:, 0])
            near(space.key[:, index], state.memory.keys[index][:, 0])
            near(space.value[:, index], state.memory.values[index][:, 0, :-1])
            runs = trace.gate[:, 0] >= 0.5
            assert torch.equal(space.execute, runs)
            near(space.scale, torch.where(runs, space.gate, 1 - space.gate))


SHAPES = [(1, 64, 64), (2, 64, 16), (9, 48, 64), (17, 48, 8), (32, 160, 64), (45, 48, 64)]


@pytest.mark.parametrize(("batch", "width", "memory"), SHAPES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@torch.no_grad()
def test_kernels_equal_their_twin(batch: int, width: int, memory: int, dtype: torch.dtype) -> None:
    packed = packed_of(make_router(width=width, memory=memory))
    spaces = [poisoned(batch, packed) for _ in range(2)]
    streams = stream(batch, width, 4, dtype)
    for index in range(ROUTED):
        for space, kernel in zip(spaces, (True, False), strict=True):
            router_step(index, up_to(index, streams), packed, space, 0.4, kernel)
        found, expected = spaces
        assert torch.equal(found.execute, expected.execute)
        for name in ("gate", "scale", "p", "m"):
            near(getattr(found, name), getattr(expected, name))
        near(found.key[:, : index + 1], expected.key[:, : index + 1])
        near(found.value[:, : index + 1], expected.value[:, : index + 1])
        assert found.key[:, index + 1 :].isnan().all()


@torch.no_grad()
def test_two_bfloat16_matrices_stand_for_one_of_float32() -> None:
    """Where the input is bfloat16, as near to the exact product as a product in float32."""
    packed = packed_of(make_router(width=1024))
    hbar = stream(64, 1024, 6, torch.bfloat16)[0]
    found = project(hbar, packed).double()
    exact = hbar.double() @ packed.wide.double().T
    size = hbar.double().norm(dim=1)[:, None] * packed.wide.double().norm(dim=1)
    halves = found[:, : len(packed.wide)] + found[:, len(packed.wide) :]
    assert ((halves - exact).abs() / size).max() < 2**-20
    assert ((found[:, : len(packed.wide)] - exact).abs() / size).max() > 2**-16


@pytest.mark.parametrize("kernel", [True, False], ids=["triton", "twin"])
@pytest.mark.parametrize("batch", [2, 20])
@torch.no_grad()
def test_a_tie_executes(kernel: bool, batch: int) -> None:
    router = make_router()
    for name in ("local_head", "history_head"):
        getattr(router, name)[2].weight.zero_()
        getattr(router, name)[2].bias.zero_()
    packed = packed_of(router)
    space = poisoned(batch, packed)
    router_step(0, [stream(batch, 48, 5)[0]], packed, space, 0.5, kernel)
    assert space.gate.tolist() == [0.5] * batch
    assert space.execute.all()


@pytest.mark.parametrize(("batch", "launches"), [(2, 2), (16, 2), (40, 1)])
@torch.no_grad()
def test_few_operations_beside_the_launches(
    batch: int, launches: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a decode step what holds the results; for a prompt its product as well."""
    launched: list[Launch] = []
    monkeypatch.setattr(choose, "missing", lambda tensor: None)
    monkeypatch.setattr(Launch, "run", lambda self: launched.append(self))
    router, streams = make_router(), stream(batch, 48, 8)[:, None]
    tokens = Tokens(None, torch.zeros(1, batch), torch.ones(1, batch, dtype=torch.bool))
    state = router.start(tokens, streams[0], Context())
    for index, hbar in enumerate(streams):
        with Operations() as operations:
            _, state = router.gate(index, hbar, hbar, state, Context())
        assert operations.count <= 5
        assert len(launched) == launches * (index + 1)


def test_what_does_not_fit_is_named() -> None:
    packed = packed_of(make_router())
    space = router_workspace(2, packed)
    with pytest.raises(ValueError, match="5 routed FFNs, none has index 5"):
        router_step(ROUTED, [torch.zeros(2, 48)] * 3, packed, space)
    with pytest.raises(ValueError, match="FFN 3 takes 3 streams, not 2"):
        router_step(3, [torch.zeros(2, 48)] * 2, packed, space)
    with pytest.raises(ValueError, match=r"'workspace.key' must be contiguous"):
        router_step(0, [torch.zeros(3, 48)], packed, space)
