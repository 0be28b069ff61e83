"""Attention kernels in a CUDA graph: one capture follows every later decision and length."""

from __future__ import annotations

import pytest
import torch

from methods.kernels.attention import attention_workspace, routed_attention_decode
from methods.kernels.operands import AttentionCache, AttentionStep, AttentionWeights

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
pytest.importorskip("triton", reason="Triton is not installed")
WIDTH, HEAD, CAPACITY, STEPS = 4096, 128, 2048, 12


@pytest.mark.parametrize("evicts", [False, True], ids=["leaves", "evicts"])
@pytest.mark.parametrize("shared", [8, 32])
@pytest.mark.parametrize("batch", [1, 5, 16])
@torch.no_grad()
def test_a_graph_follows_decisions_and_lengths(batch: int, shared: int, evicts: bool) -> None:
    """Every replay appends to its cache; outputs and cache equal the twin's."""
    maker = torch.Generator().manual_seed(batch)

    def normal(*shape: int) -> torch.Tensor:
        values = torch.randn(*shape, generator=maker) * shape[-1] ** -0.5
        return values.to("cuda", torch.bfloat16)

    narrow = shared * HEAD
    weights = AttentionWeights(
        normal(WIDTH, WIDTH), normal(narrow, WIDTH), normal(narrow, WIDTH), normal(WIDTH, WIDTH),
        *5 * [None], 0.0, HEAD,
    )  # fmt: skip
    lengths = torch.randint(1, CAPACITY - STEPS, (batch,), generator=maker).int().cuda()
    first = None if evicts else lengths // 3
    filled = [normal(batch, shared, CAPACITY, HEAD) * HEAD**0.5 for _ in range(2)]
    sides = [
        AttentionCache(*(part.clone() for part in filled), lengths.clone(), first) for _ in range(2)
    ]
    hidden, normed = normal(batch, WIDTH), normal(batch, WIDTH)
    execute = torch.ones(batch, dtype=torch.bool, device="cuda")
    scale = torch.ones(batch, device="cuda")
    rotary = [torch.empty(batch, HEAD, dtype=torch.bfloat16, device="cuda") for _ in range(2)]
    outs = [torch.empty_like(hidden) for _ in sides]
    space = attention_workspace(batch, weights)

    def step(side: int, kernel: bool) -> None:
        cache = sides[side]
        arguments = AttentionStep(
            hidden, normed, execute, scale, weights, *rotary, cache, outs[side], space, evicts
        )
        routed_attention_decode(arguments, kernel)
        if not evicts:
            cache.stored.add_(1)

    step(0, True)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    torch.cuda.set_sync_debug_mode("error")
    try:
        with torch.cuda.graph(graph):
            step(0, True)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    for kept, start in zip(sides[0][:2], filled, strict=True):
        kept.copy_(start)
    sides[0].stored.copy_(lengths)
    for _ in range(STEPS):
        for stream in (hidden, normed):
            stream.copy_(normal(batch, WIDTH) * 64)
        execute.copy_(torch.rand(batch, generator=maker) < 0.5)
        scale.copy_(torch.rand(batch, generator=maker) + 0.5)
        angles = torch.rand(batch, HEAD // 2, generator=maker).repeat(1, 2) * 6
        rotary[0].copy_(angles.cos())
        rotary[1].copy_(angles.sin())
        graph.replay()
        step(1, False)
        assert torch.equal(sides[0].stored, sides[1].stored)
        torch.testing.assert_close(outs[0], outs[1], rtol=2e-2, atol=2e-2)
    for ours, theirs in zip(sides[0][:2], sides[1][:2], strict=True):
        torch.testing.assert_close(ours, theirs, rtol=2e-2, atol=2e-2)
