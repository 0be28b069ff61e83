"""The launches of a routed attention in decoding, at published shapes."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from methods.core.model.shapes import SHAPES
from methods.kernels.attention import attention_workspace
from methods.kernels.operands import AttentionCache, AttentionStep, AttentionWeights
from tests.compiled import Case

NAMES = ("llama31_8b", "llama2_7b", "llama2_13b")


def cases() -> Iterator[Case]:
    """One row in bf16 at every shape, a batch, and rows that leave nothing."""
    for name in NAMES:
        yield from attention_cases(name, 1)
    yield from attention_cases("llama31_8b", 8)
    yield from attention_cases("llama2_13b", 16)
    yield from attention_cases("llama2_7b", 1, evicts=True)


def attention_cases(name: str, batch: int, evicts: bool = False) -> Iterator[Case]:
    """The four launches at one shape in bf16."""
    from methods.kernels.attention_triton import launches

    shape = f"{name} batch {batch}" + (" evicting" if evicts else "")
    for launch in launches(attention_step(name, batch, evicts)):
        kernel = "attention_" + launch.kernel.__name__.removesuffix("_kernel")
        yield Case(kernel, shape, launch)


def attention_step(name: str, batch: int, evicts: bool = False) -> AttentionStep:
    """Meta tensors of a published shape, padded on the left in a cache of 4096 columns."""
    sizes = SHAPES[name]
    width, heads, shared = (
        sizes[key] for key in ("hidden_size", "num_attention_heads", "num_key_value_heads")
    )
    d = width // heads

    def empty(*shape: int, kind: torch.dtype = torch.bfloat16) -> torch.Tensor:
        return torch.empty(*shape, dtype=kind, device="meta")

    weights = AttentionWeights(
        empty(width, width), empty(shared * d, width), empty(shared * d, width),
        empty(width, width), *5 * [None], 0.0, d,
    )  # fmt: skip
    cache = AttentionCache(
        empty(batch, shared, 4096, d), empty(batch, shared, 4096, d),
        empty(batch, kind=torch.int32), empty(batch, kind=torch.int32),
    )  # fmt: skip
    execute, scale = empty(batch, kind=torch.bool), empty(batch, kind=torch.float32)
    space, rotary = attention_workspace(batch, weights), (empty(batch, d), empty(batch, d))
    streams = (empty(batch, width), empty(batch, width))
    out = empty(batch, width)
    return AttentionStep(*streams, execute, scale, weights, *rotary, cache, out, space, evicts)
