"""HeRo's router for prompts at a published width, in bfloat16, against its twin in float32."""

from __future__ import annotations

import pytest
import torch

from methods.core.routing.router import Unit
from methods.hero.heads import Sizes
from methods.hero.merged import kernel_weights, merge
from methods.hero.router import HeroRouter
from methods.kernels.hero.router import router_step, router_workspace

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
pytest.importorskip("triton", reason="Triton is not installed")
WIDTH, ROUTED = 4096, 4


@pytest.mark.parametrize("tokens", [17, 512, 2100])
@torch.no_grad()
def test_a_prompt_is_decided_as_by_the_twin(tokens: int) -> None:
    maker = torch.Generator().manual_seed(tokens)
    units = [Unit(n, "ffn", 1) for n in range(ROUTED)]
    router = HeroRouter(units, Sizes(WIDTH, 256, 64, 896), 1e-5, "full", 0.0, maker)
    for name in ("local_head", "history_head"):
        torch.nn.init.normal_(getattr(router, name)[2].weight, std=0.5, generator=maker)
    merged = merge(router.cuda().formula_parameters(), router.eps)
    packed = kernel_weights(merged, router.eps, router.variant)
    streams = torch.randn(ROUTED, tokens, WIDTH, generator=maker).cumsum(0)
    streams = streams.to("cuda", torch.bfloat16)
    spaces = [router_workspace(tokens, packed) for _ in range(2)]

    def decide(index: int, kernel: bool) -> None:
        met = list(streams[max(0, index - 2) : index + 1])
        router_step(index, met, packed, spaces[not kernel], 0.5, kernel)

    for index in range(ROUTED):
        decide(index, True)  # compiles
        decide(index, False)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for index in range(ROUTED):
            decide(index, True)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    found, expected = spaces
    near = (expected.gate - 0.5).abs() < 1e-4
    assert torch.equal(found.execute[~near], expected.execute[~near])
    for name in ("gate", "p", "m", "key", "value"):
        ours, theirs = getattr(found, name), getattr(expected, name)
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
