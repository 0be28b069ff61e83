"""The two kernels of a decode step of :mod:`methods.kernels.hero.router`, and their launches.

A kernel takes what belongs together as one tuple: of pointers, or of constants to compile with.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from methods.kernels.decode_triton import row_products, tile_of
from methods.kernels.hero import formulas
from methods.kernels.hero.operands import KernelWeights, RouterWorkspace
from methods.kernels.launch import Launch

# Columns of hbar that a program of the sums takes at a time.
CHUNK = 1024
# 256 threads hold the widest matrix of the second launch, (256, 64), in 64 registers each.
WARPS = 8
# Widths of s_j, of its part from hbar, of x_j and of the layer above x_j.
S, Z = tl.constexpr(formulas.STATE), tl.constexpr(formulas.HIDDEN_OUT)
X, XH = tl.constexpr(formulas.PATH), tl.constexpr(formulas.PATH_HIDDEN)
EPS, TEMPERATURE = tl.constexpr(formulas.EPS), tl.constexpr(formulas.TEMPERATURE)


class Streams(NamedTuple):
    """Hbar (N, D) of this FFN and of the two before."""

    hbar: Tensor
    last: Tensor
    before: Tensor


class ProjectSizes(NamedTuple):
    """Width of the model, rows of ``wide``, tokens, and columns that the sums take at a time.

    DEPENDENT: the next launch may begin now, and waits for this one by itself.
    """

    D: int
    N: int
    BATCH: int
    CHUNK: int
    DEPENDENT: bool


class Sizes(NamedTuple):
    """Of the router; letters as in ``KernelWeights``, HP, MP, RP are padded to powers of two.

    FLOOR stands inside the root of the RMSNorm, whose sum of squares is not divided by D.
    DEPENDENT: the launch before this one may still run.
    """

    D: int
    H: int
    M: int
    R: int
    HP: int
    MP: int
    RP: int
    FLOOR: float
    DEPENDENT: bool = False


@triton.jit(do_not_specialize=["index"])
def project_kernel(
    streams: Streams, wide: tl.tensor, projected: tl.tensor, sums: tl.tensor, index: tl.tensor,
    sizes: tl.constexpr, tile: tl.constexpr,
) -> None:  # fmt: skip
    """``wide`` (N, D) times hbar by the first programs, one more per token for its sums."""
    D: tl.constexpr = sizes.D
    N: tl.constexpr = sizes.N
    tiles: tl.constexpr = (N + tile.rows - 1) // tile.rows
    number = tl.program_id(0)
    if sizes.DEPENDENT:
        gdc_launch_dependents()
    if number < tiles:
        slots = tl.arange(0, tile.slots)
        present = slots < sizes.BATCH
        first = number * tile.rows
        rows = first + tl.arange(0, tile.rows)
        values = row_products(wide, streams.hbar, first, present, N, D, tile)
        mask = (rows[:, None] < N) & present[None, :]
        tl.store(projected + slots[None, :] * N + rows[:, None], values, mask=mask)
    else:
        path_sums(streams, sums, index, number - tiles, D, sizes.CHUNK)


@triton.jit
def stream_and_deltas(
    streams: Streams, places: tl.tensor, inside: tl.tensor, index: tl.tensor,
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:  # fmt: skip
    """Hbar at ``places``, delta and the delta before, in float32; 0 where there is none."""
    now = tl.load(streams.hbar + places, mask=inside, other=0.0).to(tl.float32)
    old = tl.load(streams.last + places, mask=inside & (index > 0), other=0.0).to(tl.float32)
    older = tl.load(streams.before + places, mask=inside & (index > 1), other=0.0).to(tl.float32)
    return now, tl.where(index > 0, now - old, 0.0), tl.where(index > 1, old - older, 0.0)


@triton.jit
def path_sums(
    streams: Streams, sums: tl.tensor, index: tl.tensor, token: tl.tensor, D: tl.constexpr,
    CHUNK: tl.constexpr,
) -> None:  # fmt: skip
    """Sums over D of one token: of hbar^2, delta^2, delta * previous delta, previous delta^2."""
    size = tl.zeros([CHUNK], tl.float32)
    step = tl.zeros([CHUNK], tl.float32)
    along = tl.zeros([CHUNK], tl.float32)
    past = tl.zeros([CHUNK], tl.float32)
    for start in range(0, D, CHUNK):
        k = start + tl.arange(0, CHUNK)
        places = token * D + k
        now, delta, previous = stream_and_deltas(streams, places, k < D, index)
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
    R: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """x_j, six features in a vector of eight."""
    place = tl.arange(0, 8)
    position = (index + 1).to(tl.float32) / R
    x = tl.where(place == 4, p, 0.0) + tl.where(place == 5, m, 0.0)
    x += tl.where(place == 0, position, 0.0) + tl.where(place == 1, 1.0 - position, 0.0)
    return x + tl.where(place == 2, distance, 0.0) + tl.where(place == 3, bend, 0.0)


@triton.jit
def path_weights(
    router: KernelWeights,
) -> tuple[tl.tensor, tl.tensor, tl.tensor, tl.tensor]:  # fmt: skip
    """Both layers of the path MLP, each with its bias; of s_j the second has the last rows."""
    wide, state = tl.arange(0, XH), tl.arange(0, S)
    to_path = read(router.path_in, XH, X, wide, tl.arange(0, 8))
    path_bias = tl.load(router.path_in_bias + wide)
    of_path = state >= Z
    places = (state - Z)[:, None] * XH + wide[None, :]
    from_path = tl.load(router.path_out + places, mask=of_path[:, None], other=0.0)
    state_bias = tl.load(router.path_out_bias + state - Z, mask=of_path, other=0.0)
    return to_path, path_bias, from_path, state_bias


@triton.jit
def entries_before(
    index: tl.tensor, keys: tl.tensor, values: tl.tensor, decays: tl.tensor, sizes: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:  # fmt: skip
    """The memory of one token at FFN ``index`` and the decay of each entry, 0 where none is."""
    M: tl.constexpr = sizes.M
    entry, feature = tl.arange(0, sizes.RP), tl.arange(0, sizes.MP)
    places = entry[:, None] * M + feature[None, :]
    earlier = (entry[:, None] < index) & (feature[None, :] < M)
    decay = tl.load(decays + index * sizes.R + entry, mask=entry < index, other=0.0)
    entry_keys = tl.load(keys + places, mask=earlier, other=0.0)
    return entry_keys, tl.load(values + places, mask=earlier, other=0.0), decay


@triton.jit
def conclude(
    space: RouterWorkspace, at: tl.tensor, score: tl.tensor, g: tl.tensor, m_before: tl.tensor,
    threshold: tl.tensor, live: tl.tensor | None,
) -> None:  # fmt: skip
    """Decision, p (``score``) and m of the tokens ``at``; of ``live`` ones, None: of all."""
    runs = g >= threshold
    tl.store(space.p + at, score, mask=live)
    tl.store(space.m + at, m_before * score, mask=live)
    tl.store(space.gate + at, g, mask=live)
    tl.store(space.execute + at, runs, mask=live)
    tl.store(space.scale + at, tl.where(runs, g, 1.0 - g), mask=live)


@triton.jit(do_not_specialize=["index", "threshold"])
def decide_kernel(
    router: KernelWeights, space: RouterWorkspace, projected: tl.tensor, sums: tl.tensor,
    index: tl.tensor, threshold: tl.tensor, sizes: tl.constexpr,
) -> None:  # fmt: skip
    """One token: from projections and sums to decision, memory entry, p and m."""
    token = tl.program_id(0)
    H: tl.constexpr = sizes.H
    M: tl.constexpr = sizes.M
    head, state, feature = tl.arange(0, sizes.HP), tl.arange(0, S), tl.arange(0, sizes.MP)
    row, sums = projected + token * 2 * H, sums + token * 4
    past_keys, past_values = space.key + token * sizes.R * M, space.value + token * sizes.R * M

    # Matrices are read long before what they multiply is known, as many as the registers hold:
    # a program that asks for each in its turn waits for memory a dozen times.
    to_state = read(router.hidden_up, Z, H, state, head)
    m_before = tl.load(space.m + token, mask=index > 0, other=1.0)
    if router.path_in is not None:
        p_before = tl.load(space.p + token, mask=index > 0, other=1.0)
        to_path, path_bias, from_path, state_bias = path_weights(router)
    if router.query is not None:
        to_query = read(router.query, M, S, feature, state)
        to_here = read(router.novelty_state, S, S, state, state)
        to_there = read(router.novelty_context, S, M, state, feature)
        entry_keys, entry_values, decay = entries_before(
            index, past_keys, past_values, router.decays, sizes
        )
        of_novelty = read_row(router.history_novelty, head, H)
    first, local = read_row(router.history_bias, head, H), read_row(router.local_bias, head, H)
    history, other = read_row(router.history_out, head, H), read_row(router.local_out, head, H)
    history_last, local_last = tl.load(router.last_biases), tl.load(router.last_biases + 1)
    to_first = read(router.history_state, H, S, head, state)
    if sizes.DEPENDENT:
        gdc_wait()
    size, hidden = tl.load(sums), read_row(row, head, H)
    step, along, past = tl.load(sums + 1), tl.load(sums + 2), tl.load(sums + 3)
    local += read_row(row + H, head, H)

    s = times(to_state, silu(hidden * tl.rsqrt(size + sizes.FLOOR)))
    if router.path_in is not None:
        distance = tl.sqrt(step)
        bend = along / (distance * tl.sqrt(past) + EPS)
        x = path_vector(index, distance, bend, p_before, m_before, sizes.R)
        s += times(from_path, silu(times(to_path, x) + path_bias)) + state_bias
    first += times(to_first, s)
    if router.query is not None:
        of_context = read(router.history_context, H, M, head, feature)
        alike = tl.sum(entry_keys * phi(times(to_query, s))[None, :], axis=1) * decay
        # Zero where there is no entry.
        weight = tl.sum(alike, axis=0) + EPS
        context = tl.sum(alike[:, None] * entry_values, axis=0) / weight
        first += times(of_context, context)
        here, there = times(to_here, s), times(to_there, context)
        norms = tl.sqrt(tl.sum(here * here, axis=0)) * tl.sqrt(tl.sum(there * there, axis=0))
        novelty = tl.where(index > 0, 1.0 - tl.sum(here * there, axis=0) / (norms + EPS), 0.0)
        first += novelty * of_novelty
    to_key = read(router.key, M, S, feature, state)
    to_value = read(router.value, M, S, feature, state)
    a = tl.sum(silu(first) * history, axis=0) + history_last
    b = tl.sum(silu(local) * other, axis=0) + local_last

    score, g = tl.sigmoid(a / TEMPERATURE), tl.sigmoid(a + b)
    conclude(space, token, score, g, m_before, threshold, None)
    places = index * M + feature
    tl.store(past_keys + places, phi(times(to_key, s)), mask=feature < M)
    tl.store(past_values + places, times(to_value, s), mask=feature < M)


def launches(
    index: int,
    streams: Sequence[Tensor],
    router: KernelWeights,
    workspace: RouterWorkspace,
    threshold: float,
    dependent: bool = False,
) -> list[Launch]:
    """The two launches of ``router_step``, with its arguments.

    ``dependent``: the second begins during the first, reads its weights and waits.
    """
    batch, width = streams[-1].shape
    tile = tile_of(batch, router.wide.element_size())._replace(keep="evict_last")
    rows = len(router.wide)
    projected = router.wide.new_empty(batch, rows)
    sums = router.wide.new_empty(batch, 4)
    shared: dict[str, Any] = {"projected": projected, "sums": sums, "index": index}
    project = shared | {"streams": by_age(streams), "wide": router.wide, "tile": tile}
    project["sizes"] = ProjectSizes(width, rows, batch, CHUNK, dependent)
    decide = shared | {"router": router, "space": workspace}
    decide["threshold"] = float(threshold)
    decide["sizes"] = sizes_of(router, width)._replace(DEPENDENT=dependent)
    grid = (triton.cdiv(rows, tile.rows) + batch,)
    return [
        Launch(project_kernel, grid, project, tile.warps, tile.stages),
        Launch(decide_kernel, (batch,), decide, WARPS, dependent=dependent),
    ]


def by_age(streams: Sequence[Tensor]) -> Streams:
    """Hbar of this FFN and of the two before; a pointer without an FFN is never followed."""
    return Streams(*[*reversed(streams), *[streams[-1]] * 2][:3])


def sizes_of(router: KernelWeights, width: int) -> Sizes:
    """The sizes of ``router`` in a model ``width`` wide."""
    heads, memory, routed = len(router.local_out), len(router.key), len(router.decays)
    return Sizes(
        D=width, H=heads, M=memory, R=routed, HP=triton.next_power_of_2(heads),
        MP=triton.next_power_of_2(memory), RP=triton.next_power_of_2(routed),
        FLOOR=width * router.eps,
    )  # fmt: skip
