"""The second launch of :mod:`methods.kernels.hero.router` for prompts: tokens in tiles of sixteen.

Letters are as in ``KernelWeights``. A tile has TM tokens; sums over D take CHUNK columns at a time,
sums over the heads TN. Tensor cores make a float32 product of tiles as three products of TF32.

A Triton kernel takes every pointer and size as an argument of its own, hence the long lists.
"""

from __future__ import annotations

from collections.abc import Sequence

import triton
import triton.language as tl
from torch import Tensor

from methods.kernels.hero.router_triton import (
    by_age,
    decide_arguments,
    phi,
    silu,
    stream_and_deltas,
)
from methods.kernels.hero.weights import KernelWeights, RouterWorkspace
from methods.kernels.launch import Launch

TOKENS, COLUMNS, WARPS = 16, 64, 4
# Of the sums over D. Loads run STAGES turns ahead: 48 KB in flight hide the latency of memory.
CHUNK, STAGES = 256, 3


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
    hbar: tl.tensor, last: tl.tensor, before: tl.tensor, at: tl.tensor, index: tl.tensor,
    D: tl.constexpr, TM: tl.constexpr, CHUNK: tl.constexpr, STAGES: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor, tl.tensor]:  # fmt: skip
    """The four sums of ``path_sums`` for tokens ``at``."""
    size = tl.zeros([TM, CHUNK], tl.float32)
    step = tl.zeros([TM, CHUNK], tl.float32)
    along = tl.zeros([TM, CHUNK], tl.float32)
    past = tl.zeros([TM, CHUNK], tl.float32)
    for start in tl.range(0, D, CHUNK, num_stages=STAGES):
        k = (start + tl.arange(0, CHUNK))[None, :]
        places = at[:, None] * D + k
        now, delta, previous = stream_and_deltas(hbar, last, before, places, k < D, index)
        size += now * now
        step += delta * delta
        along += delta * previous
        past += previous * previous
    return tl.sum(size, 1), tl.sum(step, 1), tl.sum(along, 1), tl.sum(past, 1)


@triton.jit(do_not_specialize=["index", "threshold", "tokens"])
def prompt_kernel(
    hbar: tl.tensor, last: tl.tensor, before: tl.tensor, projected: tl.tensor, keys: tl.tensor,
    values: tl.tensor, p: tl.tensor, m: tl.tensor, gate: tl.tensor, scale: tl.tensor,
    execute: tl.tensor, hidden_up: tl.tensor, path_in: tl.tensor, path_in_bias: tl.tensor,
    path_out: tl.tensor, path_out_bias: tl.tensor, query: tl.tensor, key: tl.tensor,
    value: tl.tensor, novelty_state: tl.tensor, novelty_context: tl.tensor,
    history_state: tl.tensor, history_context: tl.tensor, history_novelty: tl.tensor,
    history_bias: tl.tensor, history_out: tl.tensor, local_bias: tl.tensor, local_out: tl.tensor,
    last_biases: tl.tensor, decays: tl.tensor, index: tl.tensor, threshold: tl.tensor,
    tokens: tl.tensor, D: tl.constexpr, H: tl.constexpr, M: tl.constexpr, R: tl.constexpr,
    S: tl.constexpr, Z: tl.constexpr, X: tl.constexpr, XH: tl.constexpr, MP: tl.constexpr,
    TM: tl.constexpr, TN: tl.constexpr, CHUNK: tl.constexpr, STAGES: tl.constexpr,
    PARTS: tl.constexpr, FLOOR: tl.constexpr, EPS: tl.constexpr, TEMPERATURE: tl.constexpr,
    MEMREAD: tl.constexpr, AUX: tl.constexpr, POSITION: tl.constexpr,
) -> None:  # fmt: skip
    """TM tokens: from streams and projections to decision, memory entry, p and m."""
    token = tl.program_id(0) * TM + tl.arange(0, TM)
    live = token < tokens
    # Rows past the end repeat the last token and store nothing.
    at = tl.minimum(token, tokens - 1).to(tl.int64)
    size, step, along, past = along_path(hbar, last, before, at, index, D, TM, CHUNK, STAGES)
    m_before = tl.load(m + at, mask=live & (index > 0), other=1.0)
    row = projected + at * (PARTS * 2 * H)

    state, feature = tl.arange(0, S), tl.arange(0, MP)
    factor = tl.rsqrt(size + FLOOR)[:, None]
    s = tl.zeros([TM, S], tl.float32)
    for start in range(0, H, TN):
        head = start + tl.arange(0, TN)
        z = silu(sum_parts(row, head, head < H, H, PARTS) * factor)
        s += times(z, hidden_up, state, head, Z, H)
    if AUX:
        wide = tl.arange(0, XH)
        p_before = tl.load(p + at, mask=live & (index > 0), other=1.0)
        y = entry_of(path_in_bias, wide, XH)
        y += p_before[:, None] * tl.load(path_in + wide * X + 4)[None, :]
        y += m_before[:, None] * tl.load(path_in + wide * X + 5)[None, :]
        if POSITION:
            position = (index + 1).to(tl.float32) / R
            distance = tl.sqrt(step)
            bend = along / (distance * tl.sqrt(past) + EPS)
            y += position * tl.load(path_in + wide * X)[None, :]
            y += (1.0 - position) * tl.load(path_in + wide * X + 1)[None, :]
            y += distance[:, None] * tl.load(path_in + wide * X + 2)[None, :]
            y += bend[:, None] * tl.load(path_in + wide * X + 3)[None, :]
        # The columns after the first Z are those of the path.
        in_path = state >= Z
        out = (state - Z)[None, :] * XH + wide[:, None]
        out = tl.load(path_out + out, mask=in_path[None, :], other=0.0)
        s += tl.dot(silu(y), out, input_precision="tf32x3")
        s += tl.load(path_out_bias + state - Z, mask=in_path, other=0.0)[None, :]

    entries = (at * (R * M))[:, None] + feature[None, :]
    in_memory = (feature < M)[None, :]
    mask = live[:, None] & in_memory
    places = entries + index * M
    tl.store(keys + places, phi(times(s, key, feature, state, M, S)), mask=mask)
    tl.store(values + places, times(s, value, feature, state, M, S), mask=mask)
    if MEMREAD:
        query_rows = phi(times(s, query, feature, state, M, S))
        above = tl.zeros([TM, MP], tl.float32)
        below = tl.zeros([TM], tl.float32)
        for entry in range(0, index):
            entry_row = tl.load(keys + entries + entry * M, mask=in_memory, other=0.0)
            weight = tl.load(decays + index * R + entry) * tl.sum(query_rows * entry_row, axis=1)
            entry_row = tl.load(values + entries + entry * M, mask=in_memory, other=0.0)
            above += weight[:, None] * entry_row
            below += weight
        context = above / (below + EPS)[:, None]
        here = times(s, novelty_state, state, state, S, S)
        there = times(context, novelty_context, state, feature, S, M)
        sizes = tl.sqrt(tl.sum(here * here, axis=1)) * tl.sqrt(tl.sum(there * there, axis=1))
        novelty = tl.where(index > 0, 1.0 - tl.sum(here * there, axis=1) / (sizes + EPS), 0.0)

    a = tl.zeros([TM], tl.float32) + tl.load(last_biases)
    b = tl.zeros([TM], tl.float32) + tl.load(last_biases + 1)
    for start in range(0, H, TN):
        head = start + tl.arange(0, TN)
        first = times(s, history_state, head, state, H, S) + entry_of(history_bias, head, H)
        if MEMREAD:
            first += times(context, history_context, head, feature, H, M)
            first += novelty[:, None] * entry_of(history_novelty, head, H)
        a += tl.sum(silu(first) * entry_of(history_out, head, H), axis=1)
        local = sum_parts(row + H, head, head < H, H, PARTS) + entry_of(local_bias, head, H)
        b += tl.sum(silu(local) * entry_of(local_out, head, H), axis=1)

    score, g = tl.sigmoid(a / TEMPERATURE), tl.sigmoid(a + b)
    runs = g >= threshold
    tl.store(p + at, score, mask=live)
    tl.store(m + at, m_before * score, mask=live)
    tl.store(gate + at, g, mask=live)
    tl.store(execute + at, runs, mask=live)
    tl.store(scale + at, tl.where(runs, g, 1.0 - g), mask=live)


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
    arguments = decide_arguments(index, width, router, workspace, threshold) | by_age(streams)
    arguments |= {"projected": projected, "tokens": tokens}
    # Tensor cores multiply sixteen columns or more.
    arguments["MP"] = max(16, triton.next_power_of_2(arguments["M"]))
    arguments["TN"] = min(COLUMNS, max(16, triton.next_power_of_2(arguments["H"])))
    arguments |= {"TM": TOKENS, "CHUNK": CHUNK, "STAGES": STAGES}
    arguments["PARTS"] = projected.shape[1] // len(router.wide)
    return Launch(prompt_kernel, (triton.cdiv(tokens, TOKENS),), arguments, WARPS)
