"""The kernels of :mod:`methods.kernels.attention`, and their launches.

A Triton kernel takes every pointer and size as an argument of its own, hence the long lists.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from methods.kernels.decode_triton import (
    any_of,
    decisions,
    multiprocessors,
    outer_kernel,
    row_products,
    tile_of,
)
from methods.kernels.launch import Launch
from methods.kernels.weights import AttentionStep

# Bytes of keys, and of values, that a program reads at a time; the most columns at a time.
BYTES = 8192
MOST_COLUMNS = 64
# The least depth of a product on tensor cores; the least width of its right side.
LEAST_DEPTH = 16
LEAST_SLOTS = 8


@triton.jit
def project(
    weight: tl.tensor, bias: tl.tensor, inputs: tl.tensor, out: tl.tensor, first: tl.tensor,
    live: tl.tensor, N: tl.constexpr, K: tl.constexpr, ROWS: tl.constexpr, DEPTH: tl.constexpr,
    SPLIT: tl.constexpr, SLOTS: tl.constexpr,
) -> None:  # fmt: skip
    """ROWS rows of ``weight`` (N, K) from ``first`` on, times the live rows of ``inputs``."""
    values = row_products(weight, inputs, first, live, N, K, ROWS, DEPTH, SPLIT, SLOTS)
    rows, slots = first + tl.arange(0, ROWS), tl.arange(0, SLOTS)
    if bias is not None:
        values += tl.load(bias + rows, mask=rows < N, other=0.0).to(tl.float32)[:, None]
    mask = (rows[:, None] < N) & live[None, :]
    tl.store(out + slots[None, :] * N + rows[:, None], values, mask=mask)


@triton.jit
def project_kernel(
    normed: tl.tensor, execute: tl.tensor, query: tl.tensor, key: tl.tensor, value: tl.tensor,
    query_bias: tl.tensor, key_bias: tl.tensor, value_bias: tl.tensor, query_out: tl.tensor,
    key_out: tl.tensor, value_out: tl.tensor, D: tl.constexpr, WIDE: tl.constexpr,
    NARROW: tl.constexpr, BATCH: tl.constexpr, EVICTS: tl.constexpr, ROWS: tl.constexpr,
    DEPTH: tl.constexpr, SPLIT: tl.constexpr, SLOTS: tl.constexpr,
) -> None:  # fmt: skip
    """Keys and values of rows that write them, queries of rows that run."""
    runs, skips = decisions(execute, BATCH, SLOTS)
    writes_row = runs
    if not EVICTS:
        writes_row = runs | skips
    each = tl.where(any_of(writes_row), tl.cdiv(NARROW, ROWS), 0)
    tiles = 2 * each + tl.where(any_of(runs), tl.cdiv(WIDE, ROWS), 0)
    for tile in range(tl.program_id(0), tiles, tl.num_programs(0)):
        if tile < each:
            project(
                key, key_bias, normed, key_out, tile * ROWS, writes_row,
                NARROW, D, ROWS, DEPTH, SPLIT, SLOTS,
            )  # fmt: skip
        elif tile < 2 * each:
            project(
                value, value_bias, normed, value_out, (tile - each) * ROWS, writes_row,
                NARROW, D, ROWS, DEPTH, SPLIT, SLOTS,
            )  # fmt: skip
        else:
            project(
                query, query_bias, normed, query_out, (tile - 2 * each) * ROWS, runs,
                WIDE, D, ROWS, DEPTH, SPLIT, SLOTS,
            )  # fmt: skip


@triton.jit
def rotate(
    heads: tl.tensor, norm: tl.tensor, cosine: tl.tensor, sine: tl.tensor, COUNT: tl.constexpr,
    SLOTS: tl.constexpr, WIDTH: tl.constexpr, PADDED: tl.constexpr, EPS: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """COUNT ``heads`` of WIDTH at their rotary position; normed unless ``norm`` is None.

    Returns [PADDED, SLOTS] in float32, a head per column, zero outside.
    """
    place, slot = tl.arange(0, PADDED), tl.arange(0, SLOTS)
    other = (place + WIDTH // 2) % WIDTH
    inside = place < WIDTH
    mask = inside[:, None] & (slot < COUNT)[None, :]
    begin = slot[None, :] * WIDTH
    straight = tl.load(heads + begin + place[:, None], mask=mask, other=0.0).to(tl.float32)
    crossed = tl.load(heads + begin + other[:, None], mask=mask, other=0.0).to(tl.float32)
    if norm is not None:
        rstd = tl.rsqrt(tl.sum(straight * straight, axis=0) / WIDTH + EPS)[None, :]
        straight *= rstd * tl.load(norm + place, mask=inside, other=0.0).to(tl.float32)[:, None]
        crossed *= rstd * tl.load(norm + other, mask=inside, other=0.0).to(tl.float32)[:, None]
    along = tl.load(cosine + place, mask=inside, other=0.0).to(tl.float32)
    across = tl.load(sine + place, mask=inside, other=0.0).to(tl.float32)
    across = tl.where(place < WIDTH // 2, -across, across)
    return straight * along[:, None] + crossed * across[:, None]


@triton.jit
def read_columns(
    keys: tl.tensor, values: tl.tensor, queries: tl.tensor, begin: tl.tensor, end: tl.tensor,
    peak: tl.tensor, total: tl.tensor, value_sum: tl.tensor, WIDTH: tl.constexpr,
    PADDED: tl.constexpr, COLUMNS: tl.constexpr, SCALING: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:  # fmt: skip
    """Online softmax of ``queries`` [PADDED, SLOTS] over the columns from ``begin`` to ``end``."""
    place = tl.arange(0, PADDED)
    for start in range(begin, end, COLUMNS):
        column = start + tl.arange(0, COLUMNS)
        mask = (column < end)[:, None] & (place < WIDTH)[None, :]
        places = column[:, None] * WIDTH + place[None, :]
        key = tl.load(keys + places, mask=mask, other=0.0)
        value = tl.load(values + places, mask=mask, other=0.0)
        score = tl.dot(key, queries, input_precision="ieee") * SCALING
        score = tl.where((column < end)[:, None], score, float("-inf"))
        highest = tl.maximum(peak, tl.max(score, axis=0))
        weight = tl.exp(score - highest[None, :])
        fade = tl.exp(peak - highest)
        total = total * fade + tl.sum(weight, axis=0)
        more = tl.dot(tl.trans(value), weight.to(value.dtype), input_precision="ieee")
        value_sum = value_sum * fade[None, :] + more
        peak = highest
    return peak, total, value_sum


@triton.jit(do_not_specialize=["capacity", "stored_step", "rotary_step"])
def read_kernel(
    query: tl.tensor, key: tl.tensor, value: tl.tensor, execute: tl.tensor, cosine: tl.tensor,
    sine: tl.tensor, query_norm: tl.tensor, key_norm: tl.tensor, keys: tl.tensor, values: tl.tensor,
    stored: tl.tensor, first: tl.tensor, peaks: tl.tensor, totals: tl.tensor, sums: tl.tensor,
    capacity: tl.tensor, stored_step: tl.tensor, rotary_step: tl.tensor, GROUP: tl.constexpr,
    SLOTS: tl.constexpr, WIDTH: tl.constexpr, PADDED: tl.constexpr, COLUMNS: tl.constexpr,
    SCALING: tl.constexpr, EPS: tl.constexpr, EVICTS: tl.constexpr,
) -> None:  # fmt: skip
    """One share of the columns, for the GROUP query heads of one key head of a row.

    The first share also has the new column: it takes it from the projections and writes it. So no
    program of the launch reads what another one writes.
    """
    token, head, share = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    runs = tl.load(execute + token) != 0
    newest = share == 0
    if runs | newest:
        row = token * tl.num_programs(1) + head
        past = tl.load(stored + token * stored_step).to(tl.int32)
        place, slot = tl.arange(0, PADDED), tl.arange(0, SLOTS)
        inside = place < WIDTH
        cosine += token * rotary_step
        sine += token * rotary_step
        own = rotate(key + row * WIDTH, key_norm, cosine, sine, 1, 1, WIDTH, PADDED, EPS)
        own = own.to(keys.dtype.element_ty)
        value_row = tl.load(value + row * WIDTH + place, mask=inside, other=0.0)
        keys += row.to(tl.int64) * capacity * WIDTH
        values += row.to(tl.int64) * capacity * WIDTH
        writes = newest
        if EVICTS:
            writes = newest & runs
        if writes:
            column = past * WIDTH
            tl.store(keys + column + place[:, None], own, mask=inside[:, None])
            tl.store(values + column + place, value_row, mask=inside)
        if runs:
            low = 0
            if first is not None:
                low = tl.load(first + token).to(tl.int32)
            length = tl.cdiv(tl.cdiv(past - low, COLUMNS), tl.num_programs(2)) * COLUMNS
            begin = low + share * length
            end = tl.minimum(begin + length, past)
            heads = row * GROUP
            mask = slot < GROUP
            at = (heads + slot) * tl.num_programs(2) + share
            if newest | (begin < end):
                queries = rotate(
                    query + heads * WIDTH, query_norm, cosine, sine,
                    GROUP, SLOTS, WIDTH, PADDED, EPS,
                ).to(keys.dtype.element_ty)  # fmt: skip
                peak = tl.sum(queries.to(tl.float32) * own.to(tl.float32), axis=0) * SCALING
                peak = tl.where(newest, peak, float("-inf"))
                total = tl.zeros([SLOTS], tl.float32) + tl.where(newest, 1.0, 0.0)
                value_sum = tl.zeros([PADDED, SLOTS], tl.float32)
                value_sum += tl.where(newest, value_row.to(tl.float32), 0.0)[:, None]
                peak, total, value_sum = read_columns(
                    keys, values, queries, begin, end, peak, total, value_sum,
                    WIDTH, PADDED, COLUMNS, SCALING,
                )  # fmt: skip
                tl.store(peaks + at, peak, mask=mask)
                tl.store(totals + at, total, mask=mask)
                places = at[None, :] * WIDTH + place[:, None]
                tl.store(sums + places, value_sum, mask=mask[None, :] & inside[:, None])
            else:
                tl.store(peaks + at, float("-inf"), mask=mask)


@triton.jit
def merge_kernel(
    execute: tl.tensor, peaks: tl.tensor, totals: tl.tensor, sums: tl.tensor, stored: tl.tensor,
    read: tl.tensor, SHARES: tl.constexpr, WIDTH: tl.constexpr, PADDED: tl.constexpr,
    EVICTS: tl.constexpr,
) -> None:  # fmt: skip
    """What one head of a row reads, from its shares; under eviction the row's new length."""
    token, head = tl.program_id(0), tl.program_id(1)
    if tl.load(execute + token) != 0:
        row = token * tl.num_programs(1) + head
        place = tl.arange(0, PADDED)
        at = row * SHARES + tl.arange(0, SHARES)
        peak = tl.load(peaks + at)
        weight = tl.exp(peak - tl.max(peak, axis=0))
        # A share without columns has written its peak only.
        has_columns = peak > float("-inf")
        total = tl.sum(weight * tl.load(totals + at, mask=has_columns, other=0.0), axis=0)
        places = at[:, None] * WIDTH + place[None, :]
        part = tl.load(
            sums + places, mask=has_columns[:, None] & (place < WIDTH)[None, :], other=0.0
        )
        mean = tl.sum(weight[:, None] * part, axis=0) / total
        tl.store(read + row * WIDTH + place, mean, mask=place < WIDTH)
        if EVICTS:  # noqa: SIM102 (the compiler decides the outer one)
            if head == 0:
                tl.store(stored + token, tl.load(stored + token) + 1)


def launches(step: AttentionStep) -> list[Launch]:
    """The four launches of ``routed_attention_decode``; ``execute`` and ``scale`` are not None."""
    hidden, normed, execute, scale, weights, cosine, sine, cache, out, space, evicts = step
    batch, width = hidden.shape
    _, heads, capacity, head_dim = cache.keys.shape
    wide, narrow, size = len(weights.query), len(weights.key), weights.query.element_size()
    group = wide // narrow
    shares = space.peaks.shape[-1]
    tile = tile_of(batch, size)
    walk = {"ROWS": tile.rows, "DEPTH": tile.depth, "SLOTS": tile.slots, "SPLIT": tile.split}
    parts = ("query", "key", "value", "query_bias", "key_bias", "value_bias")
    project: dict[str, Any] = {name: getattr(weights, name) for name in parts}
    project |= {"query_out": space.query, "key_out": space.key, "value_out": space.value}
    project |= {"normed": normed, "execute": execute, "D": width, "WIDE": wide, "NARROW": narrow}
    project |= walk | {"BATCH": batch, "EVICTS": evicts}
    tiles = triton.cdiv(wide, tile.rows) + 2 * triton.cdiv(narrow, tile.rows)
    programs = min(tiles, tile.resident * multiprocessors(hidden))

    padded = max(triton.next_power_of_2(head_dim), LEAST_DEPTH)
    columns = max(min(BYTES // (padded * size), MOST_COLUMNS), LEAST_DEPTH)
    sizes = {"WIDTH": head_dim, "PADDED": padded, "EVICTS": evicts}
    shared: dict[str, Any] = {"peaks": space.peaks, "totals": space.totals, "sums": space.sums}
    shared |= sizes | {"execute": execute, "stored": cache.stored}
    read = shared | {"query": space.query, "key": space.key, "value": space.value}
    read |= {"keys": cache.keys, "values": cache.values, "first": cache.first}
    read |= {"cosine": cosine, "sine": sine, "rotary_step": head_dim * (len(cosine) > 1)}
    read |= {"query_norm": weights.query_norm, "key_norm": weights.key_norm, "EPS": weights.eps}
    read |= {"capacity": capacity, "stored_step": cache.stored.dim(), "COLUMNS": columns}
    read |= {"GROUP": group, "SLOTS": max(triton.next_power_of_2(group), LEAST_SLOTS)}
    read["SCALING"] = head_dim**-0.5
    merge = shared | {"read": space.read, "SHARES": shares}

    output = walk | {"hidden": hidden, "execute": execute, "scale": scale, "out": out}
    output |= {"down": weights.output, "ffn_in": space.read, "D": width, "F": wide}
    # A row that skips has no adapter: these pointers are never followed.
    output |= {"wide": weights.output, "adapter_in": space.read, "A": 0, "BATCH": batch}
    rows = triton.cdiv(width, tile.rows)
    return [
        Launch(project_kernel, (programs,), project, tile.warps, tile.stages),
        Launch(read_kernel, (batch, heads, shares), read, 4, 3),
        Launch(merge_kernel, (batch, heads * group), merge, 4),
        Launch(outer_kernel, (rows,), output, tile.warps, tile.stages),
    ]
