"""Decoding kernels in a CUDA graph: one capture follows every later decision."""

from __future__ import annotations

import pytest
import torch

from methods.core.routing.router import Unit
from methods.hero.heads import Sizes
from methods.hero.merged import kernel_weights, merge
from methods.hero.router import HeroRouter
from methods.kernels.decode import decode_workspace, routed_ffn_decode
from methods.kernels.hero.router import router_step, router_workspace
from methods.kernels.operands import AdapterWeights, FfnStep, FfnWeights

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
pytest.importorskip("triton", reason="Triton is not installed")
WIDTH, INNER, NARROW, ROUTED = 4096, 14336, 896, 4


@pytest.mark.parametrize("batch", [1, 5, 16])
@pytest.mark.parametrize("slim", [False, True])
@torch.no_grad()
def test_a_graph_of_routed_blocks_follows_its_inputs(slim: bool, batch: int) -> None:
    """Decisions, gates and states of replays equal the twins'; nothing waits for the host."""
    maker = torch.Generator().manual_seed(batch)
    units = [Unit(n, "ffn", 1) for n in range(ROUTED)]
    router = HeroRouter(units, Sizes(WIDTH, 256, 64, NARROW), 1e-5, "full", 0.0, maker)
    for name in ("local_head", "history_head"):
        torch.nn.init.normal_(getattr(router, name)[2].weight, std=0.5, generator=maker)
    merged = merge(router.cuda().formula_parameters(), router.eps)
    packed = kernel_weights(merged, router.eps, router.variant)

    def normal(*shape: int) -> torch.Tensor:
        values = torch.randn(*shape, generator=maker) * shape[-1] ** -0.5
        return values.to("cuda", torch.bfloat16)

    ffn = FfnWeights(normal(INNER, WIDTH), normal(INNER, WIDTH), normal(WIDTH, INNER))
    factor = normal(NARROW, WIDTH) if slim else None
    adapter = AdapterWeights(normal(NARROW, WIDTH), normal(WIDTH, NARROW), factor)
    streams = [normal(batch, WIDTH) * 64 for _ in range(ROUTED)]
    sides = [
        (router_workspace(batch, packed), decode_workspace(batch, ffn, adapter), kernel)
        for kernel in (True, False)
    ]
    outs = [[torch.empty_like(streams[0]) for _ in range(ROUTED)] for _ in sides]

    def step(side: int) -> None:
        space, rows, kernel = sides[side]
        for index, hidden in enumerate(streams):
            met = streams[max(0, index - 2) : index + 1]
            router_step(index, met, packed, space, 0.5, kernel)
            out, decided = outs[side][index], (space.execute, space.scale)
            arguments = FfnStep(hidden, hidden, *decided, ffn, adapter, out, rows)
            routed_ffn_decode(arguments, kernel)

    step(0)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    torch.cuda.set_sync_debug_mode("error")
    try:
        with torch.cuda.graph(graph):
            step(0)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    for _ in range(4):
        for hidden in streams:
            hidden.copy_(normal(batch, WIDTH) * 64)
        graph.replay()
        step(1)
        found, expected = sides[0][0], sides[1][0]
        torch.testing.assert_close(found.gate, expected.gate, rtol=1e-4, atol=1e-4)
        assert torch.equal(found.execute, expected.execute)
        for ours, theirs in zip(*outs, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=2e-2, atol=2e-2)
