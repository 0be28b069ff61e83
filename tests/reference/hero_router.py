"""HeRo's router on its own: random weights, random streams, what every block says."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from methods.core.routing.router import Context, Tokens, Unit
from methods.hero.heads import Sizes
from methods.hero.router import HeroRouter, Trace

WIDTH, NORM_EPS = 24, 1e-5


def randomise(router: nn.Module, seed: int = 0, spread: float = 1.0) -> None:
    """Every weight of order ``spread`` / sqrt(inputs), so that every path matters."""
    rng = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in router.parameters():
            inputs = parameter.shape[-1] if parameter.dim() > 1 else 1
            noise = torch.randn(parameter.shape, generator=rng, dtype=parameter.dtype)
            parameter.copy_(spread * noise / math.sqrt(inputs))


def make_router(
    blocks: int,
    variant: str = "full",
    memory: int = 64,
    seed: int = 0,
) -> HeroRouter:
    sizes = Sizes(hidden=WIDTH, head=16, memory=memory, adapter=5)
    units = [Unit(n, "ffn", 10) for n in range(blocks)]
    router = HeroRouter(units, sizes, NORM_EPS, variant, 2.0, None)
    randomise(router, seed)
    return router


def streams(blocks: int, batch: int = 2, length: int = 3, seed: int = 1) -> Tensor:
    """hbar (R, B, T, D): a random walk over depth."""
    rng = torch.Generator().manual_seed(seed)
    steps = torch.randn(blocks, batch, length, WIDTH, generator=rng)
    return steps.cumsum(0)


def run(router: HeroRouter, hbar: Tensor, memory: Any = None) -> list[Trace]:
    """What every block says; ``memory`` takes the place of the router's own."""
    shape = hbar.shape[1:3]
    tokens = Tokens(None, torch.zeros(shape, dtype=torch.int64), torch.ones(shape) > 0)
    state = router.start(tokens, hbar[0], Context())
    state = state._replace(memory=memory or state.memory)
    if hbar.dtype == torch.float64:
        state = state._replace(p=state.p.double(), m=state.m.double())
    traces = []
    for index in range(len(hbar)):
        trace, state = router.step(index, hbar[index], state)
        traces.append(trace)
    return traces


def stacked(traces: list[Trace], name: str) -> Tensor:
    return torch.stack([getattr(trace, name) for trace in traces]).detach()
