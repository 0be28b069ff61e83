"""The second launch of :mod:`methods.kernels.hero.router` for prompts: tokens in tiles of sixteen.

Letters are as in ``KernelWeights``. Tensor cores make a float32 product of tiles as three products
of TF32.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from methods.kernels.hero.operands import KernelWeights, RouterWorkspace
from methods.kernels.hero.router_triton import (
    EPS,
    TEMPERATURE,
    XH,
    S,
    Sizes,
    Streams,
    X,
    Z,
    by_age,
    conclude,
    phi,
    silu,
    sizes_of,
    stream_and_deltas,
)
from methods.kernels.launch import Launch

TOKENS, COLUMNS, WARPS = 16, 64, 4


class PromptSizes(NamedTuple):
    """Those of the router, and of a tile of TM tokens.

    Sums over the heads take TN columns at a time, sums over D CHUNK; ``projected`` is the sum of
    PARTS. Loads run STAGES turns ahead: 48 KB in flight hide the latency of memory.
    """

    router: Sizes
    TN: int
    PARTS: int
    TM: int = TOKENS
    CHUNK: int = 256
    STAGES: int = 3


class Inputs(NamedTuple):
    """The residual streams, and what ``project`` made of the newest."""

    streams: Streams
    projected: Tensor


@triton.jit
def times(
    left: tl.tensor, weight: tl.tensor, n: tl.tensor, k: tl.tensor, N: tl.constexpr,
    K: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """A tile over ``k`` times rows ``n`` of ``weight`` (N, K), transposed; zero beyond both."""
    mask = (n[None, :] < N) & (k[:, None] < K)
    tile = tl.load(weight + n[None, :] * K + k[:, None], mask=mask, other=0.0)
    return tl.dot(left, tile, input_precision="tf32x3")


@triton.jit
def sum_parts(
    row: tl.tensor, columns: tl.tensor, inside: tl.tensor, H: tl.constexpr, PARTS: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """Columns of the projections of tokens at ``row``, whose ``PARTS`` parts are 2H wide."""
    total = tl.load(row[:, None] + columns[None, :], mask=inside[None, :], other=0.0)
    for part in tl.static_range(1, PARTS):
        places = row[:, None] + part * 2 * H + columns[None, :]
        total += tl.load(places, mask=inside[None, :], other=0.0)
    return total


@triton.jit
def entry_of(vector: tl.tensor, n: tl.tensor, N: tl.constexpr) -> tl.tensor:
    """Entries ``n`` of a vector for every token of a tile; zero beyond the last."""
    return tl.load(vector + n, mask=n < N, other=0.0)[None, :]


@triton.jit
def along_path(
    streams: Streams, at: tl.tensor, index: tl.tensor, D: tl.constexpr, tile: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor, tl.tensor]:  # fmt: skip
    """The four sums of ``path_sums`` for tokens ``at``."""
    TM: tl.constexpr = tile.TM
    CHUNK: tl.constexpr = tile.CHUNK
    size = tl.zeros([TM, CHUNK], tl.float32)
    step = tl.zeros([TM, CHUNK], tl.float32)
    along = tl.zeros([TM, CHUNK], tl.float32)
    past = tl.zeros([TM, CHUNK], tl.float32)
    for start in tl.range(0, D, CHUNK, num_stages=tile.STAGES):
        k = (start + tl.arange(0, CHUNK))[None, :]
        places = at[:, None] * D + k
        now, delta, previous = stream_and_deltas(streams, places, k < D, index)
        size += now * now
        step += delta * delta
        along += delta * previous
        past += previous * previous
    return tl.sum(size, 1), tl.sum(step, 1), tl.sum(along, 1), tl.sum(past, 1)


@triton.jit
def path_rows(
    router: KernelWeights, index: tl.tensor, sums: tl.tuple, p: tl.tensor, m: tl.tensor,
    R: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """The first layer of the path MLP, from ``sums`` of delta^2, delta * previous, previous^2."""
    step, along, past = sums
    wide = tl.arange(0, XH)
    position = (index + 1).to(tl.float32) / R
    distance = tl.sqrt(step)
    bend = along / (distance * tl.sqrt(past) + EPS)
    y = entry_of(router.path_in_bias, wide, XH)
    y += p[:, None] * tl.load(router.path_in + wide * X + 4)[None, :]
    y += m[:, None] * tl.load(router.path_in + wide * X + 5)[None, :]
    y += position * tl.load(router.path_in + wide * X)[None, :]
    y += (1.0 - position) * tl.load(router.path_in + wide * X + 1)[None, :]
    y += distance[:, None] * tl.load(router.path_in + wide * X + 2)[None, :]
    return y + bend[:, None] * tl.load(router.path_in + wide * X + 3)[None, :]


@triton.jit
def recall(
    s: tl.tensor, router: KernelWeights, space: RouterWorkspace, entries: tl.tensor,
    index: tl.tensor, TM: tl.constexpr, sizes: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:  # fmt: skip
    """What states ``s`` read of the memory at ``entries``, and their novelty."""
    M: tl.constexpr = sizes.M
    MP: tl.constexpr = sizes.MP
    R: tl.constexpr = sizes.R
    state, feature = tl.arange(0, S), tl.arange(0, MP)
    in_memory = (feature < M)[None, :]
    query_rows = phi(times(s, router.query, feature, state, M, S))
    above = tl.zeros([TM, MP], tl.float32)
    below = tl.zeros([TM], tl.float32)
    for entry in range(0, index):
        entry_row = tl.load(space.key + entries + entry * M, mask=in_memory, other=0.0)
        weight = tl.load(router.decays + index * R + entry) * tl.sum(query_rows * entry_row, axis=1)
        entry_row = tl.load(space.value + entries + entry * M, mask=in_memory, other=0.0)
        above += weight[:, None] * entry_row
        below += weight
    context = above / (below + EPS)[:, None]
    here = times(s, router.novelty_state, state, state, S, S)
    there = times(context, router.novelty_context, state, feature, S, M)
    norms = tl.sqrt(tl.sum(here * here, axis=1)) * tl.sqrt(tl.sum(there * there, axis=1))
    novelty = tl.where(index > 0, 1.0 - tl.sum(here * there, axis=1) / (norms + EPS), 0.0)
    return context, novelty


@triton.jit(do_not_specialize=["index", "threshold", "tokens"])
def prompt_kernel(
    inputs: Inputs, router: KernelWeights, space: RouterWorkspace, index: tl.tensor,
    threshold: tl.tensor, tokens: tl.tensor, tile: tl.constexpr,
) -> None:  # fmt: skip
    """TM tokens: from streams and projections to decision, memory entry, p and m."""
    sizes: tl.constexpr = tile.router
    TM: tl.constexpr = tile.TM
    TN: tl.constexpr = tile.TN
    H: tl.constexpr = sizes.H
    M: tl.constexpr = sizes.M
    R: tl.constexpr = sizes.R
    token = tl.program_id(0) * TM + tl.arange(0, TM)
    live = token < tokens
    # Rows past the end repeat the last token and store nothing.
    at = tl.minimum(token, tokens - 1).to(tl.int64)
    size, step, along, past = along_path(inputs.streams, at, index, sizes.D, tile)
    m_before = tl.load(space.m + at, mask=live & (index > 0), other=1.0)
    row = inputs.projected + at * (tile.PARTS * 2 * H)

    state, feature = tl.arange(0, S), tl.arange(0, sizes.MP)
    factor = tl.rsqrt(size + sizes.FLOOR)[:, None]
    s = tl.zeros([TM, S], tl.float32)
    for start in range(0, H, TN):
        head = start + tl.arange(0, TN)
        z = silu(sum_parts(row, head, head < H, H, tile.PARTS) * factor)
        s += times(z, router.hidden_up, state, head, Z, H)
    if router.path_in is not None:
        wide = tl.arange(0, XH)
        p_before = tl.load(space.p + at, mask=live & (index > 0), other=1.0)
        y = path_rows(router, index, (step, along, past), p_before, m_before, sizes.R)
        # The columns after the first Z are those of the path.
        in_path = state >= Z
        out = (state - Z)[None, :] * XH + wide[:, None]
        out = tl.load(router.path_out + out, mask=in_path[None, :], other=0.0)
        s += tl.dot(silu(y), out, input_precision="tf32x3")
        s += tl.load(router.path_out_bias + state - Z, mask=in_path, other=0.0)[None, :]

    entries = (at * (R * M))[:, None] + feature[None, :]
    in_memory = (feature < M)[None, :]
    mask = live[:, None] & in_memory
    places = entries + index * M
    tl.store(space.key + places, phi(times(s, router.key, feature, state, M, S)), mask=mask)
    tl.store(space.value + places, times(s, router.value, feature, state, M, S), mask=mask)
    if router.query is not None:
        context, novelty = recall(s, router, space, entries, index, TM, sizes)

    a = tl.zeros([TM], tl.float32) + tl.load(router.last_biases)
    b = tl.zeros([TM], tl.float32) + tl.load(router.last_biases + 1)
    for start in range(0, H, TN):
        head = start + tl.arange(0, TN)
        first = times(s, router.history_state, head, state, H, S)
        first += entry_of(router.history_bias, head, H)
        if router.query is not None:
            first += times(context, router.history_context, head, feature, H, M)
            first += novelty[:, None] * entry_of(router.history_novelty, head, H)
        a += tl.sum(silu(first) * entry_of(router.history_out, head, H), axis=1)
        local = sum_parts(row + H, head, head < H, H, tile.PARTS)
        local += entry_of(router.local_bias, head, H)
        b += tl.sum(silu(local) * entry_of(router.local_out, head, H), axis=1)

    score, g = tl.sigmoid(a / TEMPERATURE), tl.sigmoid(a + b)
    conclude(space, at, score, g, m_before, threshold, live)


def prompt_launch(
    index: int,
    streams: Sequence[Tensor],
    projected: Tensor,
    router: KernelWeights,
    workspace: RouterWorkspace,
    threshold: float,
) -> Launch:
    """The launch that takes ``projected`` of ``project``; the rest as in ``router_step``."""
    tokens, width = streams[-1].shape
    sizes = sizes_of(router, width)
    # Tensor cores multiply sixteen columns or more.
    sizes = sizes._replace(MP=max(16, sizes.MP))
    parts = projected.shape[1] // len(router.wide)
    tile = PromptSizes(sizes, TN=min(COLUMNS, max(16, sizes.HP)), PARTS=parts)
    arguments: dict[str, Any] = {"inputs": Inputs(by_age(streams), projected), "router": router}
    arguments |= {"space": workspace, "index": index, "threshold": float(threshold)}
    arguments |= {"tokens": tokens, "tile": tile}
    return Launch(prompt_kernel, (triton.cdiv(tokens, TOKENS),), arguments, WARPS)
