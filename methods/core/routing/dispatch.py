"""Running one of two branches per token, for real.

``dispatch`` sorts the tokens of a routed unit into those that execute and those that do not, runs
each branch on its own contiguous slice and scatters the results back once. ``dispatch_masked``
runs both branches on everything and selects: never faster than dense, kept as the truth that the
tests compare with.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

Branch = Callable[[Tensor], Tensor]


def dispatch(
    rows: Tensor,
    execute: Tensor,
    branch: Branch,
    alternative: Branch | None = None,
    scale: Tensor | None = None,
) -> Tensor:
    """``scale * branch(row)`` where ``execute``, else ``scale * alternative(row)`` (or zero).

    Args:
        rows: Inputs (N, D).
        execute: Decisions (N,), bool.
        branch: The dense unit; maps (n, D) to (n, D), row by row.
        alternative: What runs instead; None means nothing, the update is zero.
        scale: Factors (N,) of whichever branch runs; None means 1.

    Returns:
        Updates (N, D). One transfer to the host per call: the number of executing rows.
    """
    executing = int(execute.sum())
    learns = torch.is_grad_enabled()
    if executing == len(rows) and (alternative is None or not learns):
        return scaled(branch(rows), scale)
    if not executing and not learns:
        return torch.zeros_like(rows) if alternative is None else scaled(alternative(rows), scale)
    order = executing_first(execute, executing)
    update = branch(rows[order[:executing]])
    if alternative is None:
        order = order[:executing]
    else:
        # Where gradients flow both branches run even on zero rows: the graph does not depend on the
        # decisions.
        update = torch.cat([update, alternative(rows[order[executing:]]).to(update.dtype)])
    update = scaled(update, None if scale is None else scale[order])
    # Rows are unique, so index_copy needs no atomics and is deterministic in both directions.
    return update.new_zeros(rows.shape).index_copy(0, order, update)


def executing_first(execute: Tensor, executing: Tensor | int) -> Tensor:
    """Places (N,) of the executing rows, then of the others, each in their order.

    Args:
        execute: Decisions (N,), bool.
        executing: Their number, on the host or on the device.
    """
    index = torch.arange(len(execute), device=execute.device)
    # Rank among the executing rows, or behind them among the others: a permutation of 0..N-1.
    ahead = execute.cumsum(0)
    position = torch.where(execute, ahead - 1, executing + index - ahead)
    return torch.empty_like(index).scatter_(0, position, index)


def dispatch_masked(
    rows: Tensor,
    execute: Tensor,
    branch: Branch,
    alternative: Branch | None = None,
    scale: Tensor | None = None,
) -> Tensor:
    """The same function of the same arguments as :func:`dispatch`, computed without sorting."""
    other = torch.zeros_like(rows) if alternative is None else alternative(rows)
    return scaled(torch.where(execute[:, None], branch(rows), other), scale)


def scaled(update: Tensor, scale: Tensor | None) -> Tensor:
    """The update (..., D) by its scale (...), in the update's dtype; None means 1."""
    return update if scale is None else update * scale[..., None].to(update.dtype)
