"""Matrix products over the rows of one branch, whose number only the device knows.

A branch is the range ``bounds[0] <= position < bounds[1]`` of a permutation ``order`` of the N
rows. *Sorted* matrices (N, F) are indexed by position, *scattered* ones (N, D) by
``order[position]``. Every kernel goes through the tiles of its product with a grid of any size, and
reads and writes no row outside its branch. Sums are in float32. There are no atomics, so equal
inputs give equal bits.

Letters: D is the model width, F the width of the branch (FFN or adapter). A tile has TM rows and TN
columns, and its sums take TK terms at a time. ``WHOLE``: TN and TK divide D and F, so that no
column needs a mask. Every matrix has fewer than 2^31 numbers.

A Triton kernel takes every pointer and size as an argument of its own, hence the long lists.

Source: the shape of vLLM's fused mixture-of-experts kernel, with a count in place of expert ids.
"""

import triton
import triton.language as tl


@triton.jit
def _place(
    tile: tl.tensor, row_tiles: tl.tensor, column_tiles: tl.tensor, GROUP: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:  # fmt: skip
    """Row tile and column tile of number ``tile``.

    ``GROUP`` row tiles take the same columns of a weight before the next columns, so that rows and
    columns stay in the L2 cache.
    """
    first = tile // (GROUP * column_tiles) * GROUP
    height = tl.minimum(row_tiles - first, GROUP)
    within = tile % (GROUP * column_tiles)
    return first + within % height, within // height


@triton.jit
def _load(
    matrix: tl.tensor, rows: tl.tensor, columns: tl.tensor, width: tl.tensor, WHOLE: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """``matrix[rows, columns]`` of a row-major matrix of ``width`` columns; 0 beyond the last one.

    ``rows`` must exist. Offsets are 32 bits wide: half the registers of pointers.
    """
    pointers = matrix + rows[:, None] * width + columns[None, :]
    if WHOLE:
        return tl.load(pointers)
    return tl.load(pointers, mask=columns[None, :] < width, other=0.0)


@triton.jit
def _store(
    matrix: tl.tensor, rows: tl.tensor, inside: tl.tensor, columns: tl.tensor, values: tl.tensor,
    width: tl.tensor,
) -> None:  # fmt: skip
    """``matrix[rows, columns] = values``, for rows ``inside`` and columns that exist."""
    pointers = matrix + rows[:, None] * width + columns[None, :]
    tl.store(pointers, values, mask=inside[:, None] & (columns[None, :] < width))


@triton.jit
def _weight(
    weight: tl.tensor, columns: tl.tensor, inner: tl.tensor, width: tl.tensor, depth: tl.tensor,
    TRANSPOSED: tl.constexpr, WHOLE: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """The tile (inner, columns) of a weight (depth, width); (width, depth) if ``TRANSPOSED``.

    Columns beyond the last hold anything; rows beyond the last meet zeros of the other factor.
    """
    if TRANSPOSED:
        return tl.trans(_load(weight, tl.minimum(columns, width - 1), inner, depth, WHOLE))
    return _load(weight, tl.minimum(inner, depth - 1), columns, width, WHOLE)


@triton.jit
def _product(
    total: tl.tensor, matrix: tl.tensor, rows: tl.tensor, weight: tl.tensor, columns: tl.tensor,
    width: tl.tensor, depth: tl.tensor, TK: tl.constexpr, TRANSPOSED: tl.constexpr,
    WHOLE: tl.constexpr, PRECISION: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """``total`` plus ``matrix[rows] @ weight[:, columns]``, sums of ``depth`` terms."""
    for start in range(0, depth, TK):
        inner = start + tl.arange(0, TK)
        left = _load(matrix, rows, inner, depth, WHOLE)
        right = _weight(weight, columns, inner, width, depth, TRANSPOSED, WHOLE)
        total = tl.dot(left, right, total, input_precision=PRECISION)
    return total


@triton.jit
def _halves(tile: tl.tensor, TM: tl.constexpr, TN: tl.constexpr) -> tuple[tl.tensor, tl.tensor]:
    """Left and right half of the columns: work on a half needs half the registers."""
    return tl.split(tl.permute(tl.reshape(tile, (TM, 2, TN // 2)), (0, 2, 1)))


@triton.jit
def _activate(
    total: tl.tensor, other: tl.tensor, position: tl.tensor, inside: tl.tensor, columns: tl.tensor,
    hidden: tl.tensor, gate_sum: tl.tensor, up_sum: tl.tensor, F: tl.tensor,
) -> None:  # fmt: skip
    """Store ``silu(total) * other``, and both factors unless their outputs are None."""
    value = total * tl.sigmoid(total)
    if other is not None:
        value *= other
    _store(hidden, position, inside, columns, value, F)
    if gate_sum is not None:
        _store(gate_sum, position, inside, columns, total, F)
    if up_sum is not None:
        _store(up_sum, position, inside, columns, other, F)


@triton.jit
def _add(
    total: tl.tensor, target: tl.tensor, inside: tl.tensor, columns: tl.tensor, scale: tl.tensor,
    residual: tl.tensor, output: tl.tensor, D: tl.tensor, WHOLE: tl.constexpr,
) -> None:  # fmt: skip
    """Store ``residual + scale * total``."""
    if scale is not None:
        total *= tl.load(scale + target).to(tl.float32)[:, None]
    if residual is not None:
        total += _load(residual, target, columns, D, WHOLE).to(tl.float32)
    _store(output, target, inside, columns, total, D)


@triton.jit
def _deactivate(
    total: tl.tensor, position: tl.tensor, end: tl.tensor, columns: tl.tensor, factor: tl.tensor,
    gate_sum: tl.tensor, up_sum: tl.tensor, gate_gradient: tl.tensor, up_gradient: tl.tensor,
    scaled_hidden: tl.tensor, F: tl.tensor, WHOLE: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """Store the gradients of the sums of ``expand``; return the dot (TM,) of hidden and ``total``.

    ``factor`` (TM,) is the scale; the rest as in :func:`expand_backward`.
    """
    valid_position, inside = tl.minimum(position, end - 1), position < end
    gate = _load(gate_sum, valid_position, columns, F, WHOLE).to(tl.float32)
    share = tl.sigmoid(gate)
    hidden = gate * share
    slope = share * (1 + gate * (1 - share))
    gradient = total * factor[:, None]
    if up_sum is not None:
        up = _load(up_sum, valid_position, columns, F, WHOLE).to(tl.float32)
        _store(up_gradient, position, inside, columns, gradient * hidden, F)
        slope *= up
        hidden *= up
    _store(gate_gradient, position, inside, columns, gradient * slope, F)
    if scaled_hidden is not None:
        _store(scaled_hidden, position, inside, columns, hidden * factor[:, None], F)
    return tl.sum(total * hidden, axis=1)


@triton.jit
def expand(
    rows: tl.tensor, order: tl.tensor, bounds: tl.tensor, gate: tl.tensor, up: tl.tensor,
    hidden: tl.tensor, gate_sum: tl.tensor, up_sum: tl.tensor, D: tl.tensor, F: tl.tensor,
    WHOLE: tl.constexpr, TM: tl.constexpr, TN: tl.constexpr, TK: tl.constexpr, GROUP: tl.constexpr,
    PRECISION: tl.constexpr,
) -> None:  # fmt: skip
    """``hidden = silu(u gate^T) * (u up^T)``, u the branch's rows: the first half of a branch.

    Args:
        rows: Scattered (N, D).
        order: Row of each position (N,), int32.
        bounds: First position and end of the branch (2,), int32.
        gate: (F, D).
        up: (F, D), or None: no product.
        hidden: Output, sorted (N, F).
        gate_sum: Output, sorted (N, F): the input of silu; None: not stored.
        up_sum: Output, sorted (N, F): the other factor; None: not stored.
    """
    begin, end = tl.load(bounds), tl.load(bounds + 1)
    row_tiles = tl.cdiv(end - begin, TM)
    column_tiles = tl.cdiv(F, TN)
    for tile in range(tl.program_id(0), row_tiles * column_tiles, tl.num_programs(0)):
        row_tile, column_tile = _place(tile, row_tiles, column_tiles, GROUP)
        position = begin + row_tile * TM + tl.arange(0, TM)
        columns = column_tile * TN + tl.arange(0, TN)
        source = tl.load(order + tl.minimum(position, end - 1))
        total = tl.zeros((TM, TN), tl.float32)
        other = tl.zeros((TM, TN), tl.float32)
        for start in range(0, D, TK):
            inner = start + tl.arange(0, TK)
            left = _load(rows, source, inner, D, WHOLE)
            right = _weight(gate, columns, inner, F, D, True, WHOLE)
            total = tl.dot(left, right, total, input_precision=PRECISION)
            if up is not None:
                right = _weight(up, columns, inner, F, D, True, WHOLE)
                other = tl.dot(left, right, other, input_precision=PRECISION)
        inside, half = position < end, tl.arange(0, TN // 2) + column_tile * TN
        left, right = _halves(total, TM, TN)
        if up is None:
            _activate(left, None, position, inside, half, hidden, gate_sum, None, F)
            _activate(right, None, position, inside, half + TN // 2, hidden, gate_sum, None, F)
        else:
            left_up, right_up = _halves(other, TM, TN)
            _activate(left, left_up, position, inside, half, hidden, gate_sum, up_sum, F)
            _activate(
                right, right_up, position, inside, half + TN // 2, hidden, gate_sum, up_sum, F
            )


@triton.jit
def contract(
    first: tl.tensor, second: tl.tensor, order: tl.tensor, bounds: tl.tensor, weight: tl.tensor,
    second_weight: tl.tensor, scale: tl.tensor, residual: tl.tensor, output: tl.tensor,
    F: tl.tensor, D: tl.tensor, TRANSPOSED: tl.constexpr, WHOLE: tl.constexpr, TM: tl.constexpr,
    TN: tl.constexpr, TK: tl.constexpr, GROUP: tl.constexpr, PRECISION: tl.constexpr,
) -> None:  # fmt: skip
    """``output = residual + scale * (first weight + second second_weight)``, scattered.

    Args:
        first: Sorted (N, F).
        second: Sorted (N, F); None: one product.
        order: Row of each position (N,), int32.
        bounds: First position and end of the branch (2,), int32.
        weight: (F, D), or (D, F) if ``TRANSPOSED``.
        second_weight: As ``weight``; None with ``second``.
        scale: By row (N,); None: 1.
        residual: Scattered (N, D); None: 0.
        output: Scattered (N, D).
    """
    begin, end = tl.load(bounds), tl.load(bounds + 1)
    row_tiles = tl.cdiv(end - begin, TM)
    column_tiles = tl.cdiv(D, TN)
    for tile in range(tl.program_id(0), row_tiles * column_tiles, tl.num_programs(0)):
        row_tile, column_tile = _place(tile, row_tiles, column_tiles, GROUP)
        position = begin + row_tile * TM + tl.arange(0, TM)
        columns = column_tile * TN + tl.arange(0, TN)
        valid_position = tl.minimum(position, end - 1)
        target = tl.load(order + valid_position)
        total = tl.zeros((TM, TN), tl.float32)
        total = _product(
            total, first, valid_position, weight, columns, D, F, TK, TRANSPOSED, WHOLE, PRECISION
        )
        if second is not None:
            total = _product(
                total,
                second,
                valid_position,
                second_weight,
                columns,
                D,
                F,
                TK,
                TRANSPOSED,
                WHOLE,
                PRECISION,
            )
        inside, half = position < end, tl.arange(0, TN // 2) + column_tile * TN
        left, right = _halves(total, TM, TN)
        _add(left, target, inside, half, scale, residual, output, D, WHOLE)
        _add(right, target, inside, half + TN // 2, scale, residual, output, D, WHOLE)


@triton.jit
def expand_backward(
    upstream: tl.tensor, order: tl.tensor, bounds: tl.tensor, down: tl.tensor, gate_sum: tl.tensor,
    up_sum: tl.tensor, scale: tl.tensor, gate_gradient: tl.tensor, up_gradient: tl.tensor,
    scaled_hidden: tl.tensor, dots: tl.tensor, D: tl.tensor, F: tl.tensor, WHOLE: tl.constexpr,
    TM: tl.constexpr, TN: tl.constexpr, TK: tl.constexpr, GROUP: tl.constexpr,
    PRECISION: tl.constexpr,
) -> None:  # fmt: skip
    """Back through ``scale * (hidden down^T)`` and through the activation.

    ``dots`` uses (hidden down^T) . upstream = hidden . (upstream down): the gradient of the scale
    comes from a product that is needed anyway, without the branch's output.

    Args:
        upstream: Gradient of the output, scattered (N, D).
        order: Row of each position (N,), int32.
        bounds: First position and end of the branch (2,), int32.
        down: (D, F).
        gate_sum: As ``expand`` stored it, sorted (N, F).
        up_sum: The same; None: the branch has no product.
        scale: By row (N,); None: 1.
        gate_gradient: Output, sorted (N, F), of ``gate_sum``.
        up_gradient: Output, sorted (N, F), of ``up_sum``; None with it.
        scaled_hidden: Output, sorted (N, F): scale * hidden, for the gradient of ``down``; or None.
        dots: Output (N, column tiles) float32, by row: parts of the gradient of the scale; or None.
    """
    begin, end = tl.load(bounds), tl.load(bounds + 1)
    row_tiles = tl.cdiv(end - begin, TM)
    column_tiles = tl.cdiv(F, TN)
    for tile in range(tl.program_id(0), row_tiles * column_tiles, tl.num_programs(0)):
        row_tile, column_tile = _place(tile, row_tiles, column_tiles, GROUP)
        position = begin + row_tile * TM + tl.arange(0, TM)
        columns = column_tile * TN + tl.arange(0, TN)
        source = tl.load(order + tl.minimum(position, end - 1))
        total = tl.zeros((TM, TN), tl.float32)
        total = _product(total, upstream, source, down, columns, F, D, TK, False, WHOLE, PRECISION)
        factor = tl.full((TM,), 1.0, tl.float32)
        if scale is not None:
            factor = tl.load(scale + source).to(tl.float32)
        left, right = _halves(total, TM, TN)
        half = tl.arange(0, TN // 2) + column_tile * TN
        dot = _deactivate(
            left, position, end, half, factor, gate_sum, up_sum,
            gate_gradient, up_gradient, scaled_hidden, F, WHOLE,
        )  # fmt: skip
        dot += _deactivate(
            right, position, end, half + TN // 2, factor, gate_sum, up_sum,
            gate_gradient, up_gradient, scaled_hidden, F, WHOLE,
        )  # fmt: skip
        if dots is not None:
            part = dots + source * column_tiles + column_tile
            tl.store(part, dot, mask=position < end)


@triton.jit
def weight_gradient(
    sorted_rows: tl.tensor, rows: tl.tensor, order: tl.tensor, bounds: tl.tensor, output: tl.tensor,
    F: tl.tensor, D: tl.tensor, TRANSPOSED: tl.constexpr, WHOLE: tl.constexpr, TM: tl.constexpr,
    TN: tl.constexpr, TK: tl.constexpr, PRECISION: tl.constexpr,
) -> None:  # fmt: skip
    """``output = sum over the branch of sorted_rows[position]^T rows[order[position]]``.

    One program sums all rows of a tile in their order, so there are no partial sums to add. A
    branch without rows gives zeros.

    Args:
        sorted_rows: Sorted (N, F).
        rows: Scattered (N, D).
        order: Row of each position (N,), int32.
        bounds: First position and end of the branch (2,), int32.
        output: (F, D), or (D, F) if ``TRANSPOSED``.
    """
    begin, end = tl.load(bounds), tl.load(bounds + 1)
    wide = tl.program_id(0) % tl.cdiv(D, TN) * TN + tl.arange(0, TN)
    narrow = tl.program_id(0) // tl.cdiv(D, TN) * TM + tl.arange(0, TM)
    total = tl.zeros((TM, TN), tl.float32)
    for start in range(begin, end, TK):
        position = start + tl.arange(0, TK)
        valid_position = tl.minimum(position, end - 1)
        left = tl.load(
            sorted_rows + valid_position[:, None] * F + narrow[None, :],
            mask=(position < end)[:, None] & (narrow < F)[None, :],
            other=0.0,
        )
        right = _load(rows, tl.load(order + valid_position), wide, D, WHOLE)
        total = tl.dot(tl.trans(left), right, total, input_precision=PRECISION)
    if TRANSPOSED:
        _store(output, wide, wide < D, narrow, tl.trans(total), F)
    else:
        _store(output, narrow, narrow < F, wide, total, D)
