"""The launches of HeRo's router in decoding, at published shapes."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from methods.core.routing.router import Unit
from methods.core.shapes import SHAPES
from methods.hero.heads import Sizes, Variant
from methods.hero.kernels.router import pack, router_workspace
from methods.hero.router import HeroRouter
from tests.compiled import Case

ROUTED = {"llama31_8b": 24, "llama2_7b": 16, "llama2_13b": 20}


def cases() -> Iterator[Case]:
    """Batch 1 at the published widths, and a batch."""
    # llama2_7b has the widths of llama31_8b and fewer blocks.
    yield from router_cases("llama31_8b", 1)
    yield from router_cases("llama2_7b", 1)
    yield from router_cases("llama2_13b", 1)
    yield from router_cases("llama31_8b", 8)


def router_cases(name: str, batch: int, variant: Variant = "full") -> Iterator[Case]:
    """Both launches of one block."""
    from methods.hero.kernels.router_triton import launches

    width = SHAPES[name]["hidden_size"]
    units = [Unit(n, "ffn", 1) for n in range(ROUTED[name])]
    with torch.device("meta"):
        router = HeroRouter(units, Sizes(width, 256, 64, 896), 1e-5, variant, 2.0, None)
        packed = pack(router.formula_parameters(), router.eps, router.variant)
        space = router_workspace(batch, packed)
        hbar = torch.empty(batch, width, dtype=torch.bfloat16)
    for launch in launches(3, hbar, packed, space, 0.5):
        kernel = "hero_" + launch.kernel.__name__.removesuffix("_kernel")
        shape = f"{name} batch {batch}"
        yield Case(kernel, shape, launch.kernel, launch.arguments, launch.warps, launch.stages)
