"""Launches the kernels of ``grouped_triton``: tile sizes, grids, buffers between the halves.

Nothing here waits for the device. Buffers have the n rows of a branch's ``order``. If the host does
not know the number of the branch's rows, n is N, and the other rows are never read or written.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from methods.kernels import grouped_triton
from methods.kernels.launch import Launch

# Row tiles that share the weights they read: 16 x 128 rows of D = 4096 are 16 MB in 16 bits.
GROUP = 16
# The interpreter has no multiprocessors; with several programs it still tests how they share tiles.
INTERPRETED_PROGRAMS = 3


class Tiles(NamedTuple):
    """The tile (rows, columns) of a product; its sums take ``inner`` terms at a time.

    ``stages`` tiles are loaded ahead. A program has ``warps`` of 32 threads, and ``resident``
    programs fit onto a multiprocessor at once.
    """

    rows: int
    columns: int
    inner: int
    stages: int
    warps: int
    resident: int


class Plan(NamedTuple):
    """Tiles by kernel.

    ``pair``: two sums (``expand`` of an FFN). ``single``: one sum. ``back``: ``expand_backward``,
    which has the most work after its sum. ``slim``: the same for a trained branch with two sums,
    which needs more registers.
    """

    pair: Tiles
    single: Tiles
    back: Tiles
    slim: Tiles


# By compute capability, for 16-bit numbers: as large as registers and shared memory allow without
# a spill (tests/unit/kernels/test_grouped_compiled.py). Not yet timed.
PLANS = {
    (8, 0): Plan(
        pair=Tiles(128, 64, 32, 4, 8, 2),
        single=Tiles(128, 128, 32, 3, 4, 2),
        back=Tiles(128, 64, 32, 4, 8, 2),
        slim=Tiles(64, 64, 32, 4, 8, 2),
    ),
    (8, 9): Plan(
        pair=Tiles(128, 64, 32, 3, 8, 2),
        single=Tiles(128, 128, 32, 3, 4, 2),
        back=Tiles(128, 64, 32, 4, 8, 2),
        slim=Tiles(64, 64, 32, 4, 8, 2),
    ),
    (9, 0): Plan(
        pair=Tiles(128, 128, 64, 4, 8, 1),
        single=Tiles(128, 128, 64, 3, 4, 2),
        back=Tiles(128, 64, 64, 4, 8, 1),
        slim=Tiles(128, 64, 64, 4, 8, 1),
    ),
    (10, 0): Plan(
        pair=Tiles(128, 64, 64, 3, 4, 2),
        single=Tiles(128, 128, 64, 3, 8, 1),
        back=Tiles(64, 64, 64, 4, 4, 2),
        slim=Tiles(64, 64, 64, 4, 4, 2),
    ),
}
# Without tensor cores: sums in float32 of float32 numbers.
EXACT = Plan(*4 * [Tiles(64, 32, 16, 2, 4, 2)])
INTERPRETED = Plan(*4 * [Tiles(16, 64, 32, 1, 4, 1)])


class Device(NamedTuple):
    """Compute capability and number of multiprocessors; None and 0 for the interpreter."""

    capability: tuple[int, int] | None
    multiprocessors: int


class Rows(NamedTuple):
    """The rows of a branch: ``order`` (n,) int32, ``bounds`` (2,) int32, ``scale`` (N,) or None."""

    order: Tensor
    bounds: Tensor
    scale: Tensor | None


class Weights(NamedTuple):
    """A branch: ``gate`` (F, D), ``up`` (F, D) or None, ``down`` (D, F), in the rows' dtype."""

    gate: Tensor
    up: Tensor | None
    down: Tensor


class Sums(NamedTuple):
    """The inputs of the activation, sorted (n, F): ``gate``, and ``up`` if the branch has it."""

    gate: Tensor
    up: Tensor | None


class Gradients(NamedTuple):
    """Results of :func:`backward`, sorted (n, F): gradients of ``Sums``; scale * hidden.

    ``scale`` (N,), its gradient in float32, is 0 outside the branch; None if nothing needs it.
    """

    sums: Sums
    scaled_hidden: Tensor | None
    scale: Tensor | None


def forward(
    x: Tensor, rows: Rows, weights: Weights, residual: Tensor | None, output: Tensor, keep: bool
) -> Sums | None:
    """Write ``residual + scale * branch(x)`` into the branch's rows of ``output`` (N, D).

    Args:
        x: Inputs (N, D).
        rows: Which of them.
        weights: Of the branch.
        residual: Added (N, D), or None.
        output: Written at the branch's rows only.
        keep: Return what the backward pass needs; else None.
    """
    width, model_width = weights.gate.shape
    plan, hidden = _plan(x), x.new_empty(len(rows.order), width)
    sums = Sums(hidden.new_empty(hidden.shape), None) if keep else None
    if sums is not None and weights.up is not None:
        sums = sums._replace(up=hidden.new_empty(hidden.shape))
    _walk(
        grouped_triton.expand, plan.single if weights.up is None else plan.pair, x, width,
        rows=x, order=rows.order, bounds=rows.bounds, gate=weights.gate, up=weights.up,
        hidden=hidden, gate_sum=sums and sums.gate, up_sum=sums and sums.up,
        D=model_width, F=width,
    )  # fmt: skip
    _walk(
        grouped_triton.contract, plan.single, x, model_width,
        first=hidden, second=None, order=rows.order, bounds=rows.bounds,
        weight=weights.down, second_weight=None, scale=rows.scale, residual=residual,
        output=output, F=width, D=model_width, TRANSPOSED=True,
    )  # fmt: skip
    return sums


def backward(
    upstream: Tensor, rows: Rows, weights: Weights, sums: Sums, scale: bool, scaled_hidden: bool
) -> Gradients:
    """Gradients of the sums; on request that of the scale, and scale * hidden for that of ``down``.

    Args:
        upstream: Gradient of the output (N, D), in the dtype of the weights.
        rows: Of the branch.
        weights: Of the branch.
        sums: Of :func:`forward`.
        scale: Whether to compute the gradient of the scale.
        scaled_hidden: Whether to compute scale * hidden.
    """
    width, model_width = weights.gate.shape
    plan = _plan(upstream)
    tiles = plan.slim if scaled_hidden and sums.up is not None else plan.back
    gradients = Sums(*(None if part is None else torch.empty_like(part) for part in sums))  # type: ignore[arg-type]
    column_tiles = math.ceil(width / tiles.columns)
    dots = upstream.new_zeros(len(upstream), column_tiles, dtype=torch.float32) if scale else None
    product = torch.empty_like(sums.gate) if scaled_hidden else None
    _walk(
        grouped_triton.expand_backward, tiles, upstream, width,
        upstream=upstream, order=rows.order, bounds=rows.bounds, down=weights.down,
        gate_sum=sums.gate, up_sum=sums.up, scale=rows.scale,
        gate_gradient=gradients.gate, up_gradient=gradients.up, scaled_hidden=product, dots=dots,
        D=model_width, F=width,
    )  # fmt: skip
    return Gradients(gradients, product, None if dots is None else dots.sum(1))


def input_gradient(rows: Rows, weights: Weights, sums: Sums, output: Tensor) -> None:
    """Write the gradient of the inputs into the branch's rows of ``output`` (N, D).

    Args:
        rows: Of the branch.
        weights: Of the branch.
        sums: Gradients of the sums.
        output: Written at the branch's rows only.
    """
    width, model_width = weights.gate.shape
    _walk(
        grouped_triton.contract, _plan(output).single, output, model_width,
        first=sums.gate, second=sums.up, order=rows.order, bounds=rows.bounds,
        weight=weights.gate, second_weight=weights.up, scale=None, residual=None,
        output=output, F=width, D=model_width, TRANSPOSED=False,
    )  # fmt: skip


def weight_gradient(
    sorted_rows: Tensor, x: Tensor, rows: Rows, like: Tensor, transposed: bool
) -> Tensor:
    """Sum over the branch of ``sorted_rows^T x``.

    Args:
        sorted_rows: Sorted (n, F).
        x: Scattered (N, D).
        rows: Of the branch.
        like: The weight, whose shape and dtype the result has.
        transposed: The result is (D, F), else (F, D).
    """
    width, model_width = sorted_rows.shape[1], x.shape[1]
    tiles, output = _plan(x).single, torch.empty_like(like, memory_format=torch.contiguous_format)
    programs = math.ceil(width / tiles.rows) * math.ceil(model_width / tiles.columns)
    _run(
        grouped_triton.weight_gradient, programs, tiles,
        sorted_rows=sorted_rows, rows=x, order=rows.order, bounds=rows.bounds, output=output,
        F=width, D=model_width, TRANSPOSED=transposed,
    )  # fmt: skip
    return output


def device_of(x: Tensor) -> Device:
    """The device of ``x``; a CPU stands for the interpreter."""
    if not x.is_cuda:
        return Device(None, 0)
    properties = torch.cuda.get_device_properties(x.device)
    return Device((properties.major, properties.minor), properties.multi_processor_count)


def plan_for(capability: tuple[int, int] | None, dtype: torch.dtype) -> Plan:
    """The tiles for a compute capability: those of its generation, or the smallest."""
    if capability is None:
        return INTERPRETED
    if dtype == torch.float32:
        return EXACT
    # Consumer chips have the small shared memory of 8.9, whatever their number.
    generation = capability if capability[0] == 8 else (capability[0], 0)
    return PLANS.get(generation, PLANS[8, 9])


def _plan(x: Tensor) -> Plan:
    return plan_for(device_of(x).capability, x.dtype)


def _walk(kernel: Any, tiles: Tiles, x: Tensor, width: int, **arguments: Any) -> None:
    """Launch as many programs as are resident at once, at most one per tile of (n, width)."""
    programs = device_of(x).multiprocessors * tiles.resident or INTERPRETED_PROGRAMS
    most = math.ceil(len(arguments["order"]) / tiles.rows) * math.ceil(width / tiles.columns)
    if most:
        _run(kernel, min(programs, most), tiles, GROUP=GROUP, **arguments)


def _run(kernel: Any, programs: int, tiles: Tiles, **arguments: Any) -> None:
    """Launch a kernel; float32 is not rounded to tf32."""
    widths = (arguments["D"], arguments["F"])
    whole = not any(width % size for width in widths for size in (tiles.columns, tiles.inner))
    arguments |= {"TM": tiles.rows, "TN": tiles.columns, "TK": tiles.inner}
    arguments |= {"WHOLE": whole, "PRECISION": "ieee"}
    Launch(kernel, (programs,), arguments, tiles.warps, tiles.stages).run()
