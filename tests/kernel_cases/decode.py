"""The launches of a routed FFN in decoding, at published shapes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from methods.core.routing.kernels.decode import decode_workspace
from methods.core.routing.kernels.weights import AdapterWeights, FfnWeights
from methods.core.shapes import SHAPES
from tests.compiled import Case

NAMES = ("llama31_8b", "llama2_7b", "llama2_13b")


def cases() -> Iterator[Case]:
    """Batch 1 in bf16 at every shape."""
    for name in NAMES:
        yield from decode_cases(name, 1)


def decode_cases(name: str, batch: int, adapter: bool = True) -> Iterator[Case]:
    """Both launches at one shape in bf16."""
    from methods.core.routing.kernels.decode_triton import launches

    shape = f"{name} batch {batch}" + ("" if adapter else " no adapter")
    for launch in launches(*decode_arguments(name, batch, torch.bfloat16, adapter)):
        kernel = "decode_" + launch.kernel.__name__.removesuffix("_kernel")
        yield Case(kernel, shape, launch.kernel, launch.arguments, launch.warps, launch.stages)


def decode_arguments(
    name: str, batch: int, dtype: torch.dtype, adapter: bool = True
) -> tuple[Any, ...]:
    """Meta tensors of a published shape, the adapter 896 wide at D = 4096."""
    width, inner = SHAPES[name]["hidden_size"], SHAPES[name]["intermediate_size"]
    narrow = round(width * 896 / 4096)

    def empty(*shape: int, kind: torch.dtype = dtype) -> torch.Tensor:
        return torch.empty(*shape, dtype=kind, device="meta")

    ffn = FfnWeights(empty(inner, width), empty(inner, width), empty(width, inner))
    other = AdapterWeights(empty(narrow, width), empty(width, narrow)) if adapter else None
    stream, execute = empty(batch, width), empty(batch, kind=torch.bool)
    scale = empty(batch, kind=torch.float32)
    space = decode_workspace(batch, ffn, other)
    return stream, empty(batch, width), execute, scale, ffn, other, empty(batch, width), space
