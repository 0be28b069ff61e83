"""The launches of HeRo's router at published shapes, in decoding and for prompts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from methods.core.model.shapes import SHAPES
from methods.core.routing.router import Unit
from methods.hero.heads import Sizes
from methods.hero.merged import kernel_weights, merge
from methods.hero.router import HeroRouter
from methods.kernels.choose import MOST_ROWS
from methods.kernels.hero.formulas import Variant
from methods.kernels.hero.router import router_workspace
from methods.kernels.launch import Launch
from tests.compiled import TARGETS, Case

ROUTED = {"llama31_8b": 24, "llama2_7b": 16, "llama2_13b": 20}


def cases() -> Iterator[Case]:
    """Batch 1 at the published widths, and a batch."""
    # llama2_7b has the widths of llama31_8b and fewer blocks.
    yield from router_cases("llama31_8b", 1)
    yield from router_cases("llama2_7b", 1)
    yield from router_cases("llama2_13b", 1)
    yield from router_cases("llama31_8b", 8)
    yield from router_cases("llama31_8b", 2048)
    yield from router_cases("llama2_13b", 2048)
    yield from stream_cases("llama31_8b", 2048)
    yield from stream_cases("llama2_13b", 2048)


def router_cases(name: str, tokens: int, variant: Variant = "full") -> Iterator[Case]:
    """Both launches of one block; of a prompt the second, the first being of cuBLAS."""
    from methods.kernels.hero.prompt_triton import prompt_launch
    from methods.kernels.hero.router_triton import launches

    width = SHAPES[name]["hidden_size"]
    units = [Unit(n, "ffn", 1) for n in range(ROUTED[name])]
    with torch.device("meta"):
        router = HeroRouter(units, Sizes(width, 256, 64, 896), 1e-5, variant, 2.0, None)
        merged = merge(router.formula_parameters(), router.eps)
        packed = kernel_weights(merged, router.eps, router.variant)
        space = router_workspace(tokens, packed)
        hbar = torch.empty(tokens, width, dtype=torch.bfloat16)
        projected = torch.empty(tokens, len(packed.parts))
    if tokens > MOST_ROWS:
        launch = prompt_launch(3, [hbar] * 3, projected, packed, space, 0.5)
        yield _case(launch, f"{name} {tokens} tokens")
        return
    for dependent, targets in ((False, (80, 89)), (True, (90, 100))):
        for launch in launches(3, [hbar] * 3, packed, space, 0.5, dependent):
            yield _case(launch, f"{name} batch {tokens}", targets)


def stream_cases(name: str, tokens: int) -> Iterator[Case]:
    """What training adds to its products, forward and backward."""
    from methods.kernels.hero.streams_triton import gradients_launch, sums_launch

    with torch.device("meta"):
        streams = [torch.empty(tokens, SHAPES[name]["hidden_size"], dtype=torch.bfloat16)] * 3
        sums = torch.empty(tokens, 4)
        made = [sums_launch(streams, sums)]
        made += [gradients_launch(streams, streams[0].float(), sums, streams)]
    yield from (_case(launch, f"{name} {tokens} tokens") for launch in made)


def _case(launch: Launch, shape: str, targets: Sequence[int] = TARGETS) -> Case:
    kernel = "hero_" + launch.kernel.__name__.removesuffix("_kernel")
    return Case(kernel, shape, launch, targets)
