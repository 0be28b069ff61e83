"""The two kernels of :mod:`methods.kernels.hero.streams`, and their launches."""

from __future__ import annotations

from collections.abc import Sequence

import triton
import triton.language as tl
from torch import Tensor

from methods.kernels.hero.router_triton import CHUNK, Streams, by_age, path_sums, stream_and_deltas
from methods.kernels.launch import Launch

WARPS = 4


@triton.jit(do_not_specialize=["index"])
def sums_kernel(
    streams: Streams, sums: tl.tensor, index: tl.tensor, D: tl.constexpr, CHUNK: tl.constexpr,
) -> None:  # fmt: skip
    """The sums over D of one token."""
    path_sums(streams, sums, index, tl.program_id(0).to(tl.int64), D, CHUNK)


@triton.jit(do_not_specialize=["index"])
def gradients_kernel(
    streams: Streams, base: tl.tensor, by_sums: tl.tensor, by_streams: Streams, index: tl.tensor,
    D: tl.constexpr, CHUNK: tl.constexpr,
) -> None:  # fmt: skip
    """The gradients of one token's streams."""
    token = tl.program_id(0).to(tl.int64)
    own = 2 * tl.load(by_sums + token * 4)
    step = 2 * tl.load(by_sums + token * 4 + 1)
    cross = tl.load(by_sums + token * 4 + 2)
    past = 2 * tl.load(by_sums + token * 4 + 3)
    for start in range(0, D, CHUNK):
        k = start + tl.arange(0, CHUNK)
        places = token * D + k
        inside = k < D
        now, delta, previous = stream_and_deltas(streams, places, inside, index)
        along = step * delta + cross * previous
        across = tl.where(index > 1, cross * delta + past * previous, 0.0)
        total = tl.load(base + places, mask=inside, other=0.0) + own * now + along
        tl.store(by_streams.hbar + places, total, mask=inside)
        tl.store(by_streams.last + places, across - along, mask=inside & (index > 0))
        tl.store(by_streams.before + places, -across, mask=inside & (index > 1))


def sums_launch(streams: Sequence[Tensor], sums: Tensor) -> Launch:
    """The launch of ``path_sums``, which writes ``sums`` (N, 4)."""
    tokens, width = streams[-1].shape
    arguments = {"streams": by_age(streams), "sums": sums, "index": len(streams) - 1}
    return Launch(sums_kernel, (tokens,), arguments | {"D": width, "CHUNK": CHUNK}, WARPS)


def gradients_launch(
    streams: Sequence[Tensor], base: Tensor, by_sums: Tensor, gradients: Sequence[Tensor]
) -> Launch:
    """The launch of ``path_gradients``, which writes one of ``gradients`` for each stream."""
    tokens, width = streams[-1].shape
    arguments = {"streams": by_age(streams), "base": base, "by_sums": by_sums}
    arguments |= {"by_streams": by_age(gradients), "index": len(streams) - 1}
    return Launch(gradients_kernel, (tokens,), arguments | {"D": width, "CHUNK": CHUNK}, WARPS)
