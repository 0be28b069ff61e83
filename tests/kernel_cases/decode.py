"""The launches of a routed FFN in decoding, at published shapes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import torch

from methods.core.model.shapes import SHAPES
from methods.kernels.decode import decode_workspace
from methods.kernels.operands import AdapterWeights, FfnStep, FfnWeights
from tests.compiled import Case

Form = Literal["bottleneck", "slim", "none"]
NAMES = ("llama31_8b", "llama2_7b", "llama2_13b")


def cases() -> Iterator[Case]:
    """Batch 1 in bf16 at every shape, and with a slim SwiGLU."""
    for name in NAMES:
        yield from decode_cases(name, 1)
    yield from decode_cases("llama2_7b", 1, "slim")


def decode_cases(name: str, batch: int, adapter: Form = "bottleneck") -> Iterator[Case]:
    """Both launches at one shape in bf16."""
    from methods.kernels.decode_triton import launches

    shape = f"{name} batch {batch}" + {"none": " no adapter", "slim": " slim"}.get(adapter, "")
    for launch in launches(decode_step(name, batch, adapter)):
        kernel = "decode_" + launch.kernel.__name__.removesuffix("_kernel")
        yield Case(kernel, shape, launch)


def decode_step(name: str, batch: int, adapter: Form = "bottleneck") -> FfnStep:
    """Meta tensors of a published shape: a bottleneck 896 wide at D = 4096, a SwiGLU F / 16."""
    width, inner = SHAPES[name]["hidden_size"], SHAPES[name]["intermediate_size"]
    narrow = inner // 16 if adapter == "slim" else round(width * 896 / 4096)

    def empty(*shape: int, kind: torch.dtype = torch.bfloat16) -> torch.Tensor:
        return torch.empty(*shape, dtype=kind, device="meta")

    ffn = FfnWeights(empty(inner, width), empty(inner, width), empty(width, inner))
    factor = empty(narrow, width) if adapter == "slim" else None
    other = AdapterWeights(empty(narrow, width), empty(width, narrow), factor)
    other = None if adapter == "none" else other
    stream, execute = empty(batch, width), empty(batch, kind=torch.bool)
    scale = empty(batch, kind=torch.float32)
    space = decode_workspace(batch, ffn, other)
    out = empty(batch, width)
    return FfnStep(stream, empty(batch, width), execute, scale, ffn, other, out, space)
