"""The kernels of :mod:`methods.kernels.attention`, and their launches.

A kernel takes what belongs together as one tuple: of pointers, or of constants to compile with.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from methods.kernels.decode_triton import (
    Decision,
    Factors,
    Sizes,
    any_of,
    decisions,
    multiprocessors,
    outer_kernel,
    row_products,
    tile_of,
)
from methods.kernels.launch import Launch
from methods.kernels.operands import AttentionCache, AttentionStep

# Bytes of keys, and of values, that a program reads at a time; the most columns at a time.
BYTES = 8192
MOST_COLUMNS = 64
# The least depth of a product on tensor cores; the least width of its right side.
LEAST_DEPTH = 16
LEAST_SLOTS = 8


class Projection(NamedTuple):
    """One of the three: its ``weight`` (N, D), ``bias`` (N,) or None, and what it writes (B, N)."""

    weight: Tensor
    bias: Tensor | None
    out: Tensor


class ProjectSizes(NamedTuple):
    """Widths of the model (D), all query heads (WIDE), all key heads (NARROW); the batch."""

    D: int
    WIDE: int
    NARROW: int
    BATCH: int
    EVICTS: bool


class NewRows(NamedTuple):
    """Of the new tokens: the three projections, and the norms of a head's query and key or None."""

    query: Tensor
    key: Tensor
    value: Tensor
    query_norm: Tensor | None
    key_norm: Tensor | None


class Rotary(NamedTuple):
    """Cosine and sine of the rotary positions."""

    cosine: Tensor
    sine: Tensor


class Shares(NamedTuple):
    """What the shares of the columns leave, as in ``AttentionWorkspace``."""

    peaks: Tensor
    totals: Tensor
    sums: Tensor


class Strides(NamedTuple):
    """Columns of the cache; from row to row in ``stored`` and in the rotary positions, or 0."""

    capacity: int
    stored: int
    rotary: int


class ReadSizes(NamedTuple):
    """Query heads of a key head (GROUP, padded SLOTS), width of a head (WIDTH, padded PADDED).

    COLUMNS are read at a time. SHARES have all of them.
    """

    GROUP: int
    SLOTS: int
    WIDTH: int
    PADDED: int
    COLUMNS: int
    SHARES: int
    SCALING: float
    EPS: float
    EVICTS: bool


@triton.jit
def project(
    part: Projection, inputs: tl.tensor, first: tl.tensor, live: tl.tensor, N: tl.constexpr,
    K: tl.constexpr, tile: tl.constexpr,
) -> None:  # fmt: skip
    """Rows of a projection (N, K) from ``first`` on, one tile, times the live ``inputs``."""
    values = row_products(part.weight, inputs, first, live, N, K, tile)
    rows, slots = first + tl.arange(0, tile.rows), tl.arange(0, tile.slots)
    if part.bias is not None:
        values += tl.load(part.bias + rows, mask=rows < N, other=0.0).to(tl.float32)[:, None]
    mask = (rows[:, None] < N) & live[None, :]
    tl.store(part.out + slots[None, :] * N + rows[:, None], values, mask=mask)


@triton.jit
def project_kernel(
    normed: tl.tensor, execute: tl.tensor, query: Projection, key: Projection, value: Projection,
    sizes: tl.constexpr, tile: tl.constexpr,
) -> None:  # fmt: skip
    """Keys and values of rows that write them, queries of rows that run."""
    D: tl.constexpr = sizes.D
    WIDE: tl.constexpr = sizes.WIDE
    NARROW: tl.constexpr = sizes.NARROW
    runs, skips = decisions(execute, sizes.BATCH, tile.slots)
    writes_row = runs
    if not sizes.EVICTS:
        writes_row = runs | skips
    each = tl.where(any_of(writes_row), tl.cdiv(NARROW, tile.rows), 0)
    tiles = 2 * each + tl.where(any_of(runs), tl.cdiv(WIDE, tile.rows), 0)
    for turn in range(tl.program_id(0), tiles, tl.num_programs(0)):
        if turn < each:
            project(key, normed, turn * tile.rows, writes_row, NARROW, D, tile)
        elif turn < 2 * each:
            project(value, normed, (turn - each) * tile.rows, writes_row, NARROW, D, tile)
        else:
            project(query, normed, (turn - 2 * each) * tile.rows, runs, WIDE, D, tile)


@triton.jit
def rotate(
    heads: tl.tensor, norm: tl.tensor | None, rotary: Rotary, at: tl.tensor, COUNT: tl.constexpr,
    SLOTS: tl.constexpr, sizes: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """COUNT ``heads`` at the rotary position that begins at ``at``; normed unless ``norm`` is None.

    Returns [PADDED, SLOTS] in float32, a head per column, zero outside.
    """
    WIDTH: tl.constexpr = sizes.WIDTH
    place, slot = tl.arange(0, sizes.PADDED), tl.arange(0, SLOTS)
    other = (place + WIDTH // 2) % WIDTH
    inside = place < WIDTH
    mask = inside[:, None] & (slot < COUNT)[None, :]
    begin = slot[None, :] * WIDTH
    straight = tl.load(heads + begin + place[:, None], mask=mask, other=0.0).to(tl.float32)
    crossed = tl.load(heads + begin + other[:, None], mask=mask, other=0.0).to(tl.float32)
    if norm is not None:
        rstd = tl.rsqrt(tl.sum(straight * straight, axis=0) / WIDTH + sizes.EPS)[None, :]
        straight *= rstd * tl.load(norm + place, mask=inside, other=0.0).to(tl.float32)[:, None]
        crossed *= rstd * tl.load(norm + other, mask=inside, other=0.0).to(tl.float32)[:, None]
    along = tl.load(rotary.cosine + at + place, mask=inside, other=0.0).to(tl.float32)
    across = tl.load(rotary.sine + at + place, mask=inside, other=0.0).to(tl.float32)
    across = tl.where(place < WIDTH // 2, -across, across)
    return straight * along[:, None] + crossed * across[:, None]


@triton.jit
def read_columns(
    keys: tl.tensor, values: tl.tensor, queries: tl.tensor, begin: tl.tensor, end: tl.tensor,
    state: tl.tuple, sizes: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:  # fmt: skip
    """Online softmax of ``queries`` [PADDED, SLOTS] over the columns from ``begin`` to ``end``.

    ``state`` before and after: the largest score, the sum of exponentials, the sum of values.
    """
    peak, total, value_sum = state
    WIDTH: tl.constexpr = sizes.WIDTH
    COLUMNS: tl.constexpr = sizes.COLUMNS
    place = tl.arange(0, sizes.PADDED)
    for start in range(begin, end, COLUMNS):
        column = start + tl.arange(0, COLUMNS)
        mask = (column < end)[:, None] & (place < WIDTH)[None, :]
        places = column[:, None] * WIDTH + place[None, :]
        key = tl.load(keys + places, mask=mask, other=0.0)
        value = tl.load(values + places, mask=mask, other=0.0)
        score = tl.dot(key, queries, input_precision="ieee") * sizes.SCALING
        score = tl.where((column < end)[:, None], score, float("-inf"))
        highest = tl.maximum(peak, tl.max(score, axis=0))
        weight = tl.exp(score - highest[None, :])
        fade = tl.exp(peak - highest)
        total = total * fade + tl.sum(weight, axis=0)
        more = tl.dot(tl.trans(value), weight.to(value.dtype), input_precision="ieee")
        value_sum = value_sum * fade[None, :] + more
        peak = highest
    return peak, total, value_sum


@triton.jit
def read_kernel(
    execute: tl.tensor, new: NewRows, rotary: Rotary, cache: AttentionCache, shares: Shares,
    strides: Strides, sizes: tl.constexpr,
) -> None:  # fmt: skip
    """One share of the columns, for the GROUP query heads of one key head of a row.

    The first share also has the new column: it takes it from the projections and writes it. So no
    program of the launch reads what another one writes.
    """
    WIDTH: tl.constexpr = sizes.WIDTH
    GROUP: tl.constexpr = sizes.GROUP
    PADDED: tl.constexpr = sizes.PADDED
    SLOTS: tl.constexpr = sizes.SLOTS
    token, head, share = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    runs = tl.load(execute + token) != 0
    newest = share == 0
    if runs | newest:
        row = token * tl.num_programs(1) + head
        past = tl.load(cache.stored + token * strides.stored).to(tl.int32)
        place, slot = tl.arange(0, PADDED), tl.arange(0, SLOTS)
        inside = place < WIDTH
        position = token * strides.rotary
        own = rotate(new.key + row * WIDTH, new.key_norm, rotary, position, 1, 1, sizes)
        value_row = tl.load(new.value + row * WIDTH + place, mask=inside, other=0.0)
        own = own.to(value_row.dtype)
        keys = cache.key + row.to(tl.int64) * strides.capacity * WIDTH
        values = cache.value + row.to(tl.int64) * strides.capacity * WIDTH
        writes = newest
        if sizes.EVICTS:
            writes = newest & runs
        if writes:
            column = past * WIDTH
            tl.store(keys + column + place[:, None], own, mask=inside[:, None])
            tl.store(values + column + place, value_row, mask=inside)
        if runs:
            low = 0
            if cache.first is not None:
                low = tl.load(cache.first + token).to(tl.int32)
            length = tl.cdiv(tl.cdiv(past - low, sizes.COLUMNS), sizes.SHARES) * sizes.COLUMNS
            begin = low + share * length
            end = tl.minimum(begin + length, past)
            heads = row * GROUP
            mask = slot < GROUP
            at = (heads + slot) * sizes.SHARES + share
            if newest | (begin < end):
                queries = rotate(
                    new.query + heads * WIDTH, new.query_norm, rotary, position,
                    GROUP, SLOTS, sizes,
                ).to(value_row.dtype)  # fmt: skip
                peak = tl.sum(queries.to(tl.float32) * own.to(tl.float32), axis=0) * sizes.SCALING
                peak = tl.where(newest, peak, float("-inf"))
                total = tl.zeros([SLOTS], tl.float32) + tl.where(newest, 1.0, 0.0)
                value_sum = tl.zeros([PADDED, SLOTS], tl.float32)
                value_sum += tl.where(newest, value_row.to(tl.float32), 0.0)[:, None]
                peak, total, value_sum = read_columns(
                    keys, values, queries, begin, end, (peak, total, value_sum), sizes
                )
                tl.store(shares.peaks + at, peak, mask=mask)
                tl.store(shares.totals + at, total, mask=mask)
                places = at[None, :] * WIDTH + place[:, None]
                tl.store(shares.sums + places, value_sum, mask=mask[None, :] & inside[:, None])
            else:
                tl.store(shares.peaks + at, float("-inf"), mask=mask)


@triton.jit
def merge_kernel(
    execute: tl.tensor, shares: Shares, stored: tl.tensor, read: tl.tensor, sizes: tl.constexpr,
) -> None:  # fmt: skip
    """What one head of a row reads, from its shares; under eviction the row's new length."""
    WIDTH: tl.constexpr = sizes.WIDTH
    token, head = tl.program_id(0), tl.program_id(1)
    if tl.load(execute + token) != 0:
        row = token * tl.num_programs(1) + head
        place = tl.arange(0, sizes.PADDED)
        at = row * sizes.SHARES + tl.arange(0, sizes.SHARES)
        peak = tl.load(shares.peaks + at)
        weight = tl.exp(peak - tl.max(peak, axis=0))
        # A share without columns has written its peak only.
        has_columns = peak > float("-inf")
        total = tl.sum(weight * tl.load(shares.totals + at, mask=has_columns, other=0.0), axis=0)
        places = at[:, None] * WIDTH + place[None, :]
        mask = has_columns[:, None] & (place < WIDTH)[None, :]
        part = tl.load(shares.sums + places, mask=mask, other=0.0)
        mean = tl.sum(weight[:, None] * part, axis=0) / total
        tl.store(read + row * WIDTH + place, mean, mask=place < WIDTH)
        if sizes.EVICTS:  # noqa: SIM102 (the compiler decides the outer one)
            if head == 0:
                tl.store(stored + token, tl.load(stored + token) + 1)


def launches(step: AttentionStep) -> list[Launch]:
    """The four launches of ``routed_attention_decode``; ``execute`` and ``scale`` are not None."""
    hidden, normed, execute, scale, weights, cosine, sine, cache, out, space, evicts = step
    assert execute is not None and scale is not None
    batch, width = hidden.shape
    _, heads, capacity, head_dim = cache.key.shape
    wide, narrow, size = len(weights.query), len(weights.key), weights.query.element_size()
    group, shares = wide // narrow, space.peaks.shape[-1]
    tile = tile_of(batch, size)
    project: dict[str, Any] = {"normed": normed, "execute": execute, "tile": tile}
    project["query"] = Projection(weights.query, weights.query_bias, space.query)
    project["key"] = Projection(weights.key, weights.key_bias, space.key)
    project["value"] = Projection(weights.value, weights.value_bias, space.value)
    project["sizes"] = ProjectSizes(width, wide, narrow, batch, evicts)
    tiles = triton.cdiv(wide, tile.rows) + 2 * triton.cdiv(narrow, tile.rows)
    programs = min(tiles, tile.resident * multiprocessors(hidden))

    padded = max(triton.next_power_of_2(head_dim), LEAST_DEPTH)
    columns = max(min(BYTES // (padded * size), MOST_COLUMNS), LEAST_DEPTH)
    slots = max(triton.next_power_of_2(group), LEAST_SLOTS)
    sizes = ReadSizes(
        GROUP=group, SLOTS=slots, WIDTH=head_dim, PADDED=padded, COLUMNS=columns, SHARES=shares,
        SCALING=head_dim**-0.5, EPS=weights.eps, EVICTS=evicts,
    )  # fmt: skip
    shared = {"execute": execute, "sizes": sizes}
    shared["shares"] = Shares(space.peaks, space.totals, space.sums)
    norms = (weights.query_norm, weights.key_norm)
    read = shared | {"new": NewRows(space.query, space.key, space.value, *norms), "cache": cache}
    read["rotary"] = Rotary(cosine, sine)
    read["strides"] = Strides(capacity, cache.stored.dim(), head_dim * (len(cosine) > 1))
    merge = shared | {"read": space.read, "stored": cache.stored}

    # A row that skips has no adapter.
    output = {"hidden": hidden, "out": out, "decision": Decision(execute, scale), "skip": None}
    output |= {"run": Factors(weights.output, space.read), "tile": tile}
    output["sizes"] = Sizes(width, wide, 0, batch)
    rows = triton.cdiv(width, tile.rows)
    return [
        Launch(project_kernel, (programs,), project, tile.warps, tile.stages),
        Launch(read_kernel, (batch, heads, shares), read, 4, 3),
        Launch(merge_kernel, (batch, heads * group), merge, 4),
        Launch(outer_kernel, (rows,), output, tile.warps, tile.stages),
    ]
