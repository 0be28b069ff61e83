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
        values = row_products(wide, hbar, first, present, N, D, ROWS, DEPTH, SPLIT, SLOTS)
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
def product(
    matrix: tl.tensor, vector: tl.tensor, N: tl.constexpr, K: tl.constexpr, n: tl.tensor,
    k: tl.tensor,
) -> tl.tensor:  # fmt: skip
    """``matrix`` (N, K) times a vector over the columns ``k``, for the rows ``n``."""
    mask = (n[:, None] < N) & (k[None, :] < K)
    part = tl.load(matrix + n[:, None] * K + k[None, :], mask=mask, other=0.0)
    return tl.sum(part * vector[None, :], axis=1)


@triton.jit
def silu(x: tl.tensor) -> tl.tensor:
    """SiLU, x sigmoid(x)."""
    return x * tl.sigmoid(x)


@triton.jit
def phi(x: tl.tensor) -> tl.tensor:
    """ELU + 1."""
    return tl.where(x > 0, x + 1.0, tl.exp(tl.minimum(x, 0.0)))


@triton.jit
def path_vector(
    sums: tl.tensor, p: tl.tensor, m: tl.tensor, index: tl.tensor, EPS: tl.constexpr,
    R: tl.constexpr, POSITION: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """x_j, six features in a vector of eight."""
    place = tl.arange(0, 8)
    x = tl.where(place == 4, p, 0.0) + tl.where(place == 5, m, 0.0)
    if POSITION:
        position = (index + 1).to(tl.float32) / R
        distance = tl.sqrt(tl.load(sums + 1))
        bend = tl.load(sums + 2) / (distance * tl.sqrt(tl.load(sums + 3)) + EPS)
        x += tl.where(place == 0, position, 0.0) + tl.where(place == 1, 1.0 - position, 0.0)
        x += tl.where(place == 2, distance, 0.0) + tl.where(place == 3, bend, 0.0)
    return x


@triton.jit
def read_memory(
    keys: tl.tensor, values: tl.tensor, decays: tl.tensor, query: tl.tensor, index: tl.tensor,
    M: tl.constexpr, R: tl.constexpr, MP: tl.constexpr, RP: tl.constexpr, EPS: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """c_j over the entries before ``index``; zero where there is none."""
    entry, feature = tl.arange(0, RP), tl.arange(0, MP)
    mask = (entry[:, None] < index) & (feature[None, :] < M)
    places = entry[:, None] * M + feature[None, :]
    alike = tl.sum(tl.load(keys + places, mask=mask, other=0.0) * phi(query)[None, :], axis=1)
    weight = tl.load(decays + index * R + entry, mask=entry < index, other=0.0) * alike
    above = tl.sum(weight[:, None] * tl.load(values + places, mask=mask, other=0.0), axis=0)
    return above / (tl.sum(weight, axis=0) + EPS)


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
    row = projected + token * 2 * H
    factor = tl.rsqrt(tl.load(sums + token * 4) + FLOOR)
    z = silu(tl.load(row + head, mask=head < H, other=0.0) * factor)
    s = product(hidden_up, z, Z, H, state, head)
    m_before = tl.load(m + token, mask=index > 0, other=1.0)
    if AUX:
        p_before = tl.load(p + token, mask=index > 0, other=1.0)
        x = path_vector(sums + token * 4, p_before, m_before, index, EPS, R, POSITION)
        wide = tl.arange(0, XH)
        y = silu(product(path_in, x, XH, X, wide, tl.arange(0, 8)) + tl.load(path_in_bias + wide))
        # The rows after the first Z are those of the path.
        mask = state >= Z
        places = (state - Z)[:, None] * XH + wide[None, :]
        s += tl.sum(tl.load(path_out + places, mask=mask[:, None], other=0.0) * y[None, :], axis=1)
        s += tl.load(path_out_bias + state - Z, mask=mask, other=0.0)

    past_keys, past_values = keys + token * R * M, values + token * R * M
    first = product(history_state, s, H, S, head, state)
    first += tl.load(history_bias + head, mask=head < H, other=0.0)
    if MEMREAD:
        query_row = product(query, s, M, S, feature, state)
        context = read_memory(past_keys, past_values, decays, query_row, index, M, R, MP, RP, EPS)
        first += product(history_context, context, H, M, head, feature)
        here = product(novelty_state, s, S, S, state, state)
        there = product(novelty_context, context, S, M, state, feature)
        sizes = tl.sqrt(tl.sum(here * here, axis=0)) * tl.sqrt(tl.sum(there * there, axis=0))
        novelty = tl.where(index > 0, 1.0 - tl.sum(here * there, axis=0) / (sizes + EPS), 0.0)
        first += novelty * tl.load(history_novelty + head, mask=head < H, other=0.0)
    out = tl.load(history_out + head, mask=head < H, other=0.0)
    a = tl.sum(silu(first) * out, axis=0) + tl.load(last_biases)
    local = tl.load(row + H + head, mask=head < H, other=0.0)
    local = silu(local + tl.load(local_bias + head, mask=head < H, other=0.0))
    out = tl.load(local_out + head, mask=head < H, other=0.0)
    b = tl.sum(local * out, axis=0) + tl.load(last_biases + 1)

    score, g = tl.sigmoid(a / TEMPERATURE), tl.sigmoid(a + b)
    runs = g >= threshold
    tl.store(p + token, score)
    tl.store(m + token, m_before * score)
    tl.store(gate + token, g)
    tl.store(execute + token, runs)
    tl.store(scale + token, tl.where(runs, g, 1.0 - g))
    places = index * M + feature
    own_key = phi(product(key, s, M, S, feature, state))
    tl.store(past_keys + places, own_key, mask=feature < M)
    own_value = product(value, s, M, S, feature, state)
    tl.store(past_values + places, own_value, mask=feature < M)


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
