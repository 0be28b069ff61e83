"""The two kernels of a decode step of :mod:`methods.kernels.hero.router`, and their launches.

A Triton kernel takes every pointer and size as an argument of its own, hence the long lists.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from methods.kernels.decode_triton import row_products, tile_of
from methods.kernels.hero.formulas import EPS, HIDDEN_OUT, PATH, PATH_HIDDEN, STATE, TEMPERATURE
from methods.kernels.hero.weights import KernelWeights, RouterWorkspace
from methods.kernels.launch import Launch

# Columns of hbar that a program of the sums takes at a time.
CHUNK = 1024
# 256 threads hold the widest matrix of the second launch, (256, 64), in 64 registers each.
WARPS = 8


@triton.jit(do_not_specialize=["index"])
def project_kernel(
    hbar: tl.tensor, last: tl.tensor, before: tl.tensor, wide: tl.tensor, projected: tl.tensor,
    sums: tl.tensor, index: tl.tensor, D: tl.constexpr, N: tl.constexpr, BATCH: tl.constexpr,
    CHUNK: tl.constexpr, ROWS: tl.constexpr, DEPTH: tl.constexpr, SPLIT: tl.constexpr,
    SLOTS: tl.constexpr,
) -> None:  # fmt: skip
    """``wide`` (N, D) times hbar by the first programs, one more per token for its sums."""
    tiles: tl.constexpr = (N + ROWS - 1) // ROWS
    tile = tl.program_id(0)
    if tile < tiles:
        slots = tl.arange(0, SLOTS)
        present = slots < BATCH
        first = tile * ROWS
        rows = first + tl.arange(0, ROWS)
        values = row_products(
            wide, hbar, first, present, N, D, ROWS, DEPTH, SPLIT, SLOTS, "evict_last"
        )
        mask = (rows[:, None] < N) & present[None, :]
        tl.store(projected + slots[None, :] * N + rows[:, None], values, mask=mask)
    else:
        path_sums(hbar, last, before, sums, index, tile - tiles, D, CHUNK)


@triton.jit
def stream_and_deltas(
    hbar: tl.tensor, last: tl.tensor, before: tl.tensor, places: tl.tensor, inside: tl.tensor,
    index: tl.tensor,
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:  # fmt: skip
    """Hbar at ``places``, delta and the delta before, in float32; 0 where there is none."""
    now = tl.load(hbar + places, mask=inside, other=0.0).to(tl.float32)
    old = tl.load(last + places, mask=inside & (index > 0), other=0.0).to(tl.float32)
    older = tl.load(before + places, mask=inside & (index > 1), other=0.0).to(tl.float32)
    return now, tl.where(index > 0, now - old, 0.0), tl.where(index > 1, old - older, 0.0)


@triton.jit
def path_sums(
    hbar: tl.tensor, last: tl.tensor, before: tl.tensor, sums: tl.tensor, index: tl.tensor,
    token: tl.tensor, D: tl.constexpr, CHUNK: tl.constexpr,
) -> None:  # fmt: skip
    """Sums over D of one token: of hbar^2, delta^2, delta * previous delta, previous delta^2."""
    size = tl.zeros([CHUNK], tl.float32)
    step = tl.zeros([CHUNK], tl.float32)
    along = tl.zeros([CHUNK], tl.float32)
    past = tl.zeros([CHUNK], tl.float32)
    for start in range(0, D, CHUNK):
        k = start + tl.arange(0, CHUNK)
        places = token * D + k
        now, delta, previous = stream_and_deltas(hbar, last, before, places, k < D, index)
        size += now * now
        step += delta * delta
        along += delta * previous
        past += previous * previous
    tl.store(sums + token * 4, tl.sum(size, axis=0))
    tl.store(sums + token * 4 + 1, tl.sum(step, axis=0))
    tl.store(sums + token * 4 + 2, tl.sum(along, axis=0))
    tl.store(sums + token * 4 + 3, tl.sum(past, axis=0))


@triton.jit
def read(
    matrix: tl.tensor, N: tl.constexpr, K: tl.constexpr, n: tl.tensor, k: tl.tensor,
) -> tl.tensor:  # fmt: skip
    """The rows ``n`` and columns ``k`` of ``matrix`` (N, K), which the next FFN needs again."""
    mask = (n[:, None] < N) & (k[None, :] < K)
    places = n[:, None] * K + k[None, :]
    return tl.load(matrix + places, mask=mask, other=0.0, eviction_policy="evict_last")


@triton.jit
def times(matrix: tl.tensor, vector: tl.tensor) -> tl.tensor:
    """``matrix`` times a vector over its columns."""
    return tl.sum(matrix * vector[None, :], axis=1)


@triton.jit
def silu(x: tl.tensor) -> tl.tensor:
    """SiLU, x sigmoid(x)."""
    return x * tl.sigmoid(x)


@triton.jit
def phi(x: tl.tensor) -> tl.tensor:
    """ELU + 1."""
    return tl.where(x > 0, x + 1.0, tl.exp(tl.minimum(x, 0.0)))


@triton.jit
def read_row(vector: tl.tensor, places: tl.tensor, size: tl.constexpr) -> tl.tensor:
    """The first ``size`` numbers of a vector, 0 behind them."""
    return tl.load(vector + places, mask=places < size, other=0.0, eviction_policy="evict_last")


@triton.jit
def path_vector(
    index: tl.tensor, distance: tl.tensor, bend: tl.tensor, p: tl.tensor, m: tl.tensor,
    R: tl.constexpr, POSITION: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """x_j, six features in a vector of eight."""
    place = tl.arange(0, 8)
    x = tl.where(place == 4, p, 0.0) + tl.where(place == 5, m, 0.0)
    if POSITION:
        position = (index + 1).to(tl.float32) / R
        x += tl.where(place == 0, position, 0.0) + tl.where(place == 1, 1.0 - position, 0.0)
        x += tl.where(place == 2, distance, 0.0) + tl.where(place == 3, bend, 0.0)
    return x


@triton.jit(do_not_specialize=["index", "threshold"])
def decide_kernel(
    projected: tl.tensor, sums: tl.tensor, keys: tl.tensor, values: tl.tensor, p: tl.tensor,
    m: tl.tensor, gate: tl.tensor, scale: tl.tensor, execute: tl.tensor, hidden_up: tl.tensor,
    path_in: tl.tensor, path_in_bias: tl.tensor, path_out: tl.tensor, path_out_bias: tl.tensor,
    query: tl.tensor, key: tl.tensor, value: tl.tensor, novelty_state: tl.tensor,
    novelty_context: tl.tensor, history_state: tl.tensor, history_context: tl.tensor,
    history_novelty: tl.tensor, history_bias: tl.tensor, history_out: tl.tensor,
    local_bias: tl.tensor, local_out: tl.tensor, last_biases: tl.tensor, decays: tl.tensor,
    index: tl.tensor, threshold: tl.tensor, D: tl.constexpr, H: tl.constexpr, M: tl.constexpr,
    R: tl.constexpr, S: tl.constexpr, Z: tl.constexpr, X: tl.constexpr, XH: tl.constexpr,
    HP: tl.constexpr, MP: tl.constexpr, RP: tl.constexpr, FLOOR: tl.constexpr, EPS: tl.constexpr,
    TEMPERATURE: tl.constexpr, MEMREAD: tl.constexpr, AUX: tl.constexpr, POSITION: tl.constexpr,
) -> None:  # fmt: skip
    """One token: from projections and sums to decision, memory entry, p and m."""
    token = tl.program_id(0)
    head, state, feature = tl.arange(0, HP), tl.arange(0, S), tl.arange(0, MP)
    row, sums = projected + token * 2 * H, sums + token * 4
    past_keys, past_values = keys + token * R * M, values + token * R * M

    # Matrices are read long before what they multiply is known, as many as the registers hold:
    # a program that asks for each in its turn waits for memory a dozen times.
    to_state = read(hidden_up, Z, H, state, head)
    size, hidden = tl.load(sums), read_row(row, head, H)
    local = read_row(row + H, head, H) + read_row(local_bias, head, H)
    m_before = tl.load(m + token, mask=index > 0, other=1.0)
    if AUX:
        p_before = tl.load(p + token, mask=index > 0, other=1.0)
        step, along, past = tl.load(sums + 1), tl.load(sums + 2), tl.load(sums + 3)
        wide = tl.arange(0, XH)
        to_path = read(path_in, XH, X, wide, tl.arange(0, 8))
        path_bias = tl.load(path_in_bias + wide)
        # The rows after the first Z are those of the path.
        of_path = state >= Z
        places = (state - Z)[:, None] * XH + wide[None, :]
        from_path = tl.load(path_out + places, mask=of_path[:, None], other=0.0)
        state_bias = tl.load(path_out_bias + state - Z, mask=of_path, other=0.0)
    if MEMREAD:
        to_query = read(query, M, S, feature, state)
        to_here = read(novelty_state, S, S, state, state)
        to_there = read(novelty_context, S, M, state, feature)
        entry = tl.arange(0, RP)
        places = entry[:, None] * M + feature[None, :]
        earlier = (entry[:, None] < index) & (feature[None, :] < M)
        entry_keys = tl.load(past_keys + places, mask=earlier, other=0.0)
        entry_values = tl.load(past_values + places, mask=earlier, other=0.0)
        decay = tl.load(decays + index * R + entry, mask=entry < index, other=0.0)
        of_novelty = read_row(history_novelty, head, H)
    first = read_row(history_bias, head, H)
    history, other = read_row(history_out, head, H), read_row(local_out, head, H)
    history_last, local_last = tl.load(last_biases), tl.load(last_biases + 1)
    to_first = read(history_state, H, S, head, state)

    s = times(to_state, silu(hidden * tl.rsqrt(size + FLOOR)))
    if AUX:
        distance = tl.sqrt(step)
        bend = along / (distance * tl.sqrt(past) + EPS)
        x = path_vector(index, distance, bend, p_before, m_before, R, POSITION)
        y = silu(times(to_path, x) + path_bias)
        s += times(from_path, y) + state_bias
    first += times(to_first, s)
    if MEMREAD:
        of_context = read(history_context, H, M, head, feature)
        alike = tl.sum(entry_keys * phi(times(to_query, s))[None, :], axis=1) * decay
        # Zero where there is no entry.
        context = tl.sum(alike[:, None] * entry_values, axis=0) / (tl.sum(alike, axis=0) + EPS)
        first += times(of_context, context)
        here, there = times(to_here, s), times(to_there, context)
        sizes = tl.sqrt(tl.sum(here * here, axis=0)) * tl.sqrt(tl.sum(there * there, axis=0))
        novelty = tl.where(index > 0, 1.0 - tl.sum(here * there, axis=0) / (sizes + EPS), 0.0)
        first += novelty * of_novelty
    to_key, to_value = read(key, M, S, feature, state), read(value, M, S, feature, state)
    a = tl.sum(silu(first) * history, axis=0) + history_last
    b = tl.sum(silu(local) * other, axis=0) + local_last

    score, g = tl.sigmoid(a / TEMPERATURE), tl.sigmoid(a + b)
    runs = g >= threshold
    tl.store(p + token, score)
    tl.store(m + token, m_before * score)
    tl.store(gate + token, g)
    tl.store(execute + token, runs)
    tl.store(scale + token, tl.where(runs, g, 1.0 - g))
    places = index * M + feature
    tl.store(past_keys + places, phi(times(to_key, s)), mask=feature < M)
    tl.store(past_values + places, times(to_value, s), mask=feature < M)


def launches(
    index: int,
    streams: Sequence[Tensor],
    router: KernelWeights,
    workspace: RouterWorkspace,
    threshold: float,
) -> list[Launch]:
    """The two launches of ``router_step``, with its arguments."""
    batch, width = streams[-1].shape
    tile = tile_of(batch, router.wide.element_size())
    projected = router.wide.new_empty(batch, len(router.wide))
    sums = router.wide.new_empty(batch, 4)
    project: dict[str, Any] = {"projected": projected, "sums": sums, "wide": router.wide}
    project |= by_age(streams)
    project |= {"D": width, "N": len(router.wide), "BATCH": batch, "CHUNK": CHUNK, "index": index}
    project |= {"ROWS": tile.rows, "DEPTH": tile.depth, "SPLIT": tile.split, "SLOTS": tile.slots}
    decide = decide_arguments(index, width, router, workspace, threshold)
    decide |= {"projected": projected, "sums": sums}
    for name, size in (("HP", "H"), ("MP", "M"), ("RP", "R")):
        decide[name] = triton.next_power_of_2(decide[size])
    grid = (triton.cdiv(len(router.wide), tile.rows) + batch,)
    return [
        Launch(project_kernel, grid, project, tile.warps, tile.stages),
        Launch(decide_kernel, (batch,), decide, WARPS),
    ]


def by_age(streams: Sequence[Tensor]) -> dict[str, Tensor]:
    """Hbar of this FFN and of the two before; a pointer without an FFN is never followed."""
    hbar, last, before = [*reversed(streams), *[streams[-1]] * 2][:3]
    return {"hbar": hbar, "last": last, "before": before}


def decide_arguments(
    index: int, width: int, router: KernelWeights, workspace: RouterWorkspace, threshold: float
) -> dict[str, Any]:
    """The arguments of both kernels that decide, except the projections."""
    # Without the path MLP its pointers are never followed.
    arguments: dict[str, Any] = {
        name: router.hidden_up if weight is None else weight
        for name, weight in router._asdict().items()
        if name not in ("wide", "parts", "eps", "variant")
    }
    arguments |= workspace._asdict()
    arguments |= {"index": index, "threshold": float(threshold), "EPS": EPS}
    # Inside the root of the RMSNorm, whose sum of squares is not divided by D.
    arguments["FLOOR"] = width * router.eps
    arguments |= {"D": width, "H": len(router.local_out), "M": len(router.key)}
    arguments |= {"R": len(router.decays), "TEMPERATURE": TEMPERATURE}
    arguments |= {"S": STATE, "Z": HIDDEN_OUT, "X": PATH, "XH": PATH_HIDDEN}
    arguments |= {"MEMREAD": router.variant != "no-memread", "AUX": router.variant != "no-aux"}
    arguments["POSITION"] = router.variant != "no-position"
    return arguments
