"""The two kernels of :mod:`methods.kernels.decode`, and their launches.

A Triton kernel takes every pointer and size as an argument of its own, hence the long lists.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from methods.kernels.launch import Launch
from methods.kernels.weights import FfnStep

# For weights that the next step needs again only behind many others.
STREAM = tl.constexpr("evict_first")


class Tile(NamedTuple):
    """How one program goes through a matrix: ``rows`` of it, ``depth`` columns at a time.

    ``split`` warps share these columns. ``slots`` is the batch padded to a width of the tensor
    cores; 1 does not use them. ``resident`` programs of the first launch run on each
    multiprocessor and share the tiles.
    """

    rows: int
    depth: int
    split: int
    slots: int
    warps: int
    stages: int
    resident: int


def tile_of(batch: int, size: int) -> Tile:
    """The tile for ``batch`` rows and weights of ``size`` bytes each.

    For one row tensor cores gain nothing, so it does not use them.
    """
    if batch == 1:
        return Tile(rows=4, depth=1024 // size, split=1, slots=1, warps=4, stages=1, resident=4)
    depth, slots = 512 // size, 8 if batch <= 8 else 16
    return Tile(rows=16, depth=depth, split=4, slots=slots, warps=4, stages=4, resident=2)


@triton.jit
def row_products(
    weight: tl.tensor, inputs: tl.tensor, first: tl.tensor, live: tl.tensor, N: tl.constexpr,
    K: tl.constexpr, ROWS: tl.constexpr, DEPTH: tl.constexpr, SPLIT: tl.constexpr,
    SLOTS: tl.constexpr, KEEP: tl.constexpr = STREAM,
) -> tl.tensor:  # fmt: skip
    """ROWS rows of ``weight`` (N, K) from ``first`` on, times the ``live`` rows of ``inputs``.

    Returns [ROWS, SLOTS] in float32, zero where a slot is not live. Rows past the end repeat the
    last one. A single slot must be live. SPLIT warps share DEPTH columns; else few rows would not
    keep them busy. ``KEEP`` says whether the cache should hold the weights until the next step: an
    FFN's would push out all others.
    """
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
            part = tl.load(weight + places, mask=mask, other=0.0, eviction_policy=KEEP)
            entry = tl.load(inputs + same[:, None] + k[None, :], mask=mask, other=0.0)
            products += part.to(tl.float32) * entry.to(tl.float32)
        total = tl.sum(products, axis=1)[:, None]
    else:
        slots = tl.arange(0, SLOTS)
        shares = tl.zeros([SPLIT, ROWS, SLOTS], tl.float32)
        within = tl.arange(0, SPLIT)[:, None] * (DEPTH // SPLIT)
        within += tl.arange(0, DEPTH // SPLIT)[None, :]
        for start in range(0, K, DEPTH):
            k = start + within
            mask = k < K
            places = rows[None, :, None] * K + k[:, None, :]
            inside = mask[:, None, :]
            part = tl.load(weight + places, mask=inside, other=0.0, eviction_policy=KEEP)
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
    normed: tl.tensor, execute: tl.tensor, gate: tl.tensor, up: tl.tensor, narrow: tl.tensor,
    factor: tl.tensor, ffn_out: tl.tensor, adapter_out: tl.tensor, D: tl.constexpr, F: tl.constexpr,
    A: tl.constexpr, BATCH: tl.constexpr, ROWS: tl.constexpr, DEPTH: tl.constexpr,
    SPLIT: tl.constexpr, SLOTS: tl.constexpr,
) -> None:  # fmt: skip
    """SiLU(W_gate u) * (W_up u) for rows that run, SiLU(W_1 u) for the others.

    ``factor`` is W_3: then the latter is multiplied by W_3 u; None: it is not.
    """
    runs, skips = decisions(execute, BATCH, SLOTS)
    ffn_tiles = tl.where(any_of(runs), tl.cdiv(F, ROWS), 0)
    tiles = ffn_tiles + tl.where(any_of(skips), tl.cdiv(A, ROWS), 0)
    slots = tl.arange(0, SLOTS)
    for tile in range(tl.program_id(0), tiles, tl.num_programs(0)):
        if tile < ffn_tiles:
            first = tile * ROWS
            rows = first + tl.arange(0, ROWS)
            gate_sum = row_products(gate, normed, first, runs, F, D, ROWS, DEPTH, SPLIT, SLOTS)
            up_sum = row_products(up, normed, first, runs, F, D, ROWS, DEPTH, SPLIT, SLOTS)
            inner = gate_sum * tl.sigmoid(gate_sum) * up_sum
            mask = (rows[:, None] < F) & runs[None, :]
            tl.store(ffn_out + slots[None, :] * F + rows[:, None], inner, mask=mask)
        else:
            first = (tile - ffn_tiles) * ROWS
            rows = first + tl.arange(0, ROWS)
            gate_sum = row_products(narrow, normed, first, skips, A, D, ROWS, DEPTH, SPLIT, SLOTS)
            inner = gate_sum * tl.sigmoid(gate_sum)
            if factor is not None:
                inner *= row_products(factor, normed, first, skips, A, D, ROWS, DEPTH, SPLIT, SLOTS)
            mask = (rows[:, None] < A) & skips[None, :]
            tl.store(adapter_out + slots[None, :] * A + rows[:, None], inner, mask=mask)


@triton.jit
def outer_kernel(
    hidden: tl.tensor, execute: tl.tensor, scale: tl.tensor, ffn_in: tl.tensor,
    adapter_in: tl.tensor, down: tl.tensor, wide: tl.tensor, out: tl.tensor, D: tl.constexpr,
    F: tl.constexpr, A: tl.constexpr, BATCH: tl.constexpr, ROWS: tl.constexpr, DEPTH: tl.constexpr,
    SPLIT: tl.constexpr, SLOTS: tl.constexpr,
) -> None:  # fmt: skip
    """Adds scale * (W_down f) to rows that run, scale * (W_2 r) to the others."""
    runs, skips = decisions(execute, BATCH, SLOTS)
    first = tl.program_id(0) * ROWS
    update = tl.zeros([ROWS, SLOTS], tl.float32)
    if any_of(runs):
        update += row_products(down, ffn_in, first, runs, D, F, ROWS, DEPTH, SPLIT, SLOTS)
    if A > 0:  # noqa: SIM102 (the compiler decides the outer one)
        if any_of(skips):
            update += row_products(wide, adapter_in, first, skips, D, A, ROWS, DEPTH, SPLIT, SLOTS)
    rows, slots = first + tl.arange(0, ROWS), tl.arange(0, SLOTS)
    mask = (rows[:, None] < D) & (slots < BATCH)[None, :]
    places = slots[None, :] * D + rows[:, None]
    stream = tl.load(hidden + places, mask=mask, other=0.0).to(tl.float32)
    factor = tl.load(scale + slots, mask=slots < BATCH, other=0.0)
    tl.store(out + places, stream + factor[None, :] * update, mask=mask)


def launches(step: FfnStep) -> list[Launch]:
    """The two launches of ``routed_ffn_decode``."""
    hidden, normed, execute, scale, ffn, adapter, out, workspace = step
    batch, width = hidden.shape
    narrow = 0 if adapter is None else len(adapter.down)
    tile = tile_of(batch, ffn.gate.element_size())
    sizes = {"D": width, "F": len(ffn.gate), "A": narrow, "BATCH": batch}
    sizes |= {"ROWS": tile.rows, "DEPTH": tile.depth, "SLOTS": tile.slots, "SPLIT": tile.split}
    shared = {"execute": execute} | sizes
    inner: dict[str, Any] = shared | {"normed": normed, "gate": ffn.gate, "up": ffn.up}
    # Without an adapter its pointers are never followed.
    rows = workspace.ffn if workspace.adapter is None else workspace.adapter
    inner["narrow"] = ffn.gate if adapter is None else adapter.down
    inner["factor"] = None if adapter is None else adapter.factor
    inner |= {"ffn_out": workspace.ffn, "adapter_out": rows}
    outer = shared | {"hidden": hidden, "scale": scale, "down": ffn.down, "out": out}
    outer["wide"] = ffn.down if adapter is None else adapter.up
    outer |= {"ffn_in": workspace.ffn, "adapter_in": rows}
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
