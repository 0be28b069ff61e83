"""The two kernels of :mod:`methods.kernels.decode`, and their launches.

A kernel takes what belongs together as one tuple: of pointers, or of constants to compile with.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from methods.kernels.launch import Launch
from methods.kernels.operands import AdapterWeights, DecodeWorkspace, FfnStep, FfnWeights


class Tile(NamedTuple):
    """How one program goes through a matrix: ``rows`` of it, ``depth`` columns at a time.

    ``split`` warps share these columns. ``slots`` is the batch padded to a width of the tensor
    cores; 1 does not use them. ``resident`` programs of the first launch run on each
    multiprocessor and share the tiles. ``keep`` says whether the cache should hold the weights
    until the next step: an FFN's would push out all others.
    """

    rows: int
    depth: int
    split: int
    slots: int
    warps: int
    stages: int
    resident: int
    keep: str = "evict_first"


def tile_of(batch: int, size: int) -> Tile:
    """The tile for ``batch`` rows and weights of ``size`` bytes each.

    For one row tensor cores gain nothing, so it does not use them.
    """
    if batch == 1:
        return Tile(rows=4, depth=1024 // size, split=1, slots=1, warps=4, stages=1, resident=4)
    depth, slots = 512 // size, 8 if batch <= 8 else 16
    return Tile(rows=16, depth=depth, split=4, slots=slots, warps=4, stages=4, resident=2)


class Sizes(NamedTuple):
    """Widths of the model (D), the FFN (F) and the adapter (A), and the batch."""

    D: int
    F: int
    A: int
    BATCH: int


class Decision(NamedTuple):
    """Which rows run (B,), bool, and the factor of each row's update (B,), float32."""

    execute: Tensor
    scale: Tensor


class Factors(NamedTuple):
    """What the second launch multiplies: ``weight`` (D, K) and ``inputs`` (B, K)."""

    weight: Tensor
    inputs: Tensor


@triton.jit
def row_products(
    weight: tl.tensor, inputs: tl.tensor, first: tl.tensor, live: tl.tensor, N: tl.constexpr,
    K: tl.constexpr, tile: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """Rows of ``weight`` (N, K) from ``first`` on, one tile, times the ``live`` ``inputs``.

    Returns [rows, slots] in float32, zero where a slot is not live. Rows past the end repeat the
    last one. A single slot must be live.
    """
    ROWS: tl.constexpr = tile.rows
    DEPTH: tl.constexpr = tile.depth
    SPLIT: tl.constexpr = tile.split
    SLOTS: tl.constexpr = tile.slots
    rows = tl.minimum(first + tl.arange(0, ROWS), N - 1)
    if SLOTS == 1:
        products = tl.zeros([ROWS, DEPTH], tl.float32)
        # Each row reads the inputs again, in the layout of its weights: to pass them between
        # threads would take two barriers per turn, and no load could run ahead.
        same = tl.zeros([ROWS], tl.int32)
        for start in range(0, K, DEPTH):
            k = start + tl.arange(0, DEPTH)
            mask = (k < K)[None, :]
            places = rows[:, None] * K + k[None, :]
            part = tl.load(weight + places, mask=mask, other=0.0, eviction_policy=tile.keep)
            entry = tl.load(inputs + same[:, None] + k[None, :], mask=mask, other=0.0)
            products += part.to(tl.float32) * entry.to(tl.float32)
        total = tl.sum(products, axis=1)[:, None]
    else:
        slots = tl.arange(0, SLOTS)
        shares = tl.zeros([SPLIT, ROWS, SLOTS], tl.float32)
        # Warps share the columns; else few rows would not keep them busy.
        within = tl.arange(0, SPLIT)[:, None] * (DEPTH // SPLIT)
        within += tl.arange(0, DEPTH // SPLIT)[None, :]
        for start in range(0, K, DEPTH):
            k = start + within
            mask = k < K
            places = rows[None, :, None] * K + k[:, None, :]
            inside = mask[:, None, :]
            part = tl.load(weight + places, mask=inside, other=0.0, eviction_policy=tile.keep)
            entry_mask = mask[:, :, None] & live[None, None, :]
            places = slots[None, None, :] * K + k[:, :, None]
            entries = tl.load(inputs + places, mask=entry_mask, other=0.0)
            shares = tl.dot(part, entries.to(part.dtype), shares, input_precision="ieee")
        total = tl.sum(shares, axis=0)
    return total


@triton.jit
def decisions(
    execute: tl.tensor, BATCH: tl.constexpr, SLOTS: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:  # fmt: skip
    """Which slots run the FFN and which skip it, [SLOTS] each; padding does neither."""
    slots = tl.arange(0, SLOTS)
    present = slots < BATCH
    runs = tl.load(execute + slots, mask=present, other=0) != 0
    return present & runs, present & (runs == 0)


@triton.jit
def any_of(mask: tl.tensor) -> tl.tensor:
    """Whether one entry of ``mask`` is set."""
    return tl.max(mask.to(tl.int32), axis=0) > 0


@triton.jit
def inner_kernel(
    normed: tl.tensor, execute: tl.tensor, ffn: FfnWeights, adapter: AdapterWeights,
    space: DecodeWorkspace, sizes: tl.constexpr, tile: tl.constexpr,
) -> None:  # fmt: skip
    """SiLU(W_gate u) * (W_up u) for rows that run, SiLU(W_1 u) for the others.

    With an adapter's ``factor``, W_3, the latter is multiplied by W_3 u. Without an adapter A is 0
    and ``adapter`` None.
    """
    D: tl.constexpr = sizes.D
    F: tl.constexpr = sizes.F
    A: tl.constexpr = sizes.A
    runs, skips = decisions(execute, sizes.BATCH, tile.slots)
    ffn_tiles = tl.where(any_of(runs), tl.cdiv(F, tile.rows), 0)
    tiles = ffn_tiles + tl.where(any_of(skips), tl.cdiv(A, tile.rows), 0)
    slots = tl.arange(0, tile.slots)
    for turn in range(tl.program_id(0), tiles, tl.num_programs(0)):
        if turn < ffn_tiles:
            first = turn * tile.rows
            rows = first + tl.arange(0, tile.rows)
            gate_sum = row_products(ffn.gate, normed, first, runs, F, D, tile)
            up_sum = row_products(ffn.up, normed, first, runs, F, D, tile)
            inner = gate_sum * tl.sigmoid(gate_sum) * up_sum
            mask = (rows[:, None] < F) & runs[None, :]
            tl.store(space.ffn + slots[None, :] * F + rows[:, None], inner, mask=mask)
        elif A > 0:
            first = (turn - ffn_tiles) * tile.rows
            rows = first + tl.arange(0, tile.rows)
            gate_sum = row_products(adapter.down, normed, first, skips, A, D, tile)
            inner = gate_sum * tl.sigmoid(gate_sum)
            if adapter.factor is not None:
                inner *= row_products(adapter.factor, normed, first, skips, A, D, tile)
            mask = (rows[:, None] < A) & skips[None, :]
            tl.store(space.adapter + slots[None, :] * A + rows[:, None], inner, mask=mask)


@triton.jit
def outer_kernel(
    hidden: tl.tensor, out: tl.tensor, decision: Decision, run: Factors, skip: Factors,
    sizes: tl.constexpr, tile: tl.constexpr,
) -> None:  # fmt: skip
    """Adds scale * (W_down f) to rows that run, scale * (W_2 r) to the others."""
    D: tl.constexpr = sizes.D
    F: tl.constexpr = sizes.F
    A: tl.constexpr = sizes.A
    ROWS: tl.constexpr = tile.rows
    SLOTS: tl.constexpr = tile.slots
    runs, skips = decisions(decision.execute, sizes.BATCH, SLOTS)
    first = tl.program_id(0) * ROWS
    update = tl.zeros([ROWS, SLOTS], tl.float32)
    if any_of(runs):
        update += row_products(run.weight, run.inputs, first, runs, D, F, tile)
    if A > 0:  # noqa: SIM102 (the compiler decides the outer one)
        if any_of(skips):
            update += row_products(skip.weight, skip.inputs, first, skips, D, A, tile)
    rows, slots = first + tl.arange(0, ROWS), tl.arange(0, SLOTS)
    mask = (rows[:, None] < D) & (slots < sizes.BATCH)[None, :]
    places = slots[None, :] * D + rows[:, None]
    stream = tl.load(hidden + places, mask=mask, other=0.0).to(tl.float32)
    factor = tl.load(decision.scale + slots, mask=slots < sizes.BATCH, other=0.0)
    tl.store(out + places, stream + factor[None, :] * update, mask=mask)


def launches(step: FfnStep) -> list[Launch]:
    """The two launches of ``routed_ffn_decode``."""
    hidden, normed, execute, scale, ffn, adapter, out, space = step
    batch, width = hidden.shape
    narrow = 0 if adapter is None else len(adapter.down)
    tile = tile_of(batch, ffn.gate.element_size())
    shared = {"sizes": Sizes(width, len(ffn.gate), narrow, batch), "tile": tile}
    inner: dict[str, Any] = shared | {"normed": normed, "execute": execute}
    inner |= {"ffn": ffn, "adapter": adapter, "space": space}
    outer = shared | {"hidden": hidden, "out": out, "decision": Decision(execute, scale)}
    outer["run"] = Factors(ffn.down, space.ffn)
    outer["skip"] = None
    if adapter is not None and space.adapter is not None:
        outer["skip"] = Factors(adapter.up, space.adapter)
    tiles = triton.cdiv(len(ffn.gate), tile.rows) + triton.cdiv(narrow, tile.rows)
    programs = min(tiles, tile.resident * multiprocessors(hidden))
    return [
        Launch(inner_kernel, (programs,), inner, tile.warps, tile.stages),
        Launch(outer_kernel, (triton.cdiv(width, tile.rows),), outer, tile.warps, tile.stages),
    ]


def multiprocessors(tensor: Tensor) -> int:
    """How many the tensor's device has; a small number for the interpreter."""
    if not tensor.is_cuda:
        return 2
    return int(torch.cuda.get_device_properties(tensor.device).multi_processor_count)
