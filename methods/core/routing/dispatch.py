"""Run a unit for the tokens that execute it, and its alternative for the others.

``dispatch`` sorts the tokens, runs each branch on its own contiguous slice, and puts the results
back in one step. The products are those of the library, on a GPU as on a CPU; for that the host
waits for one number. ``dispatch_masked`` runs both branches on all tokens and selects. It is never
faster than the dense model; a GPU step that the host must not look into runs it where no kernel
serves, and tests compare ``dispatch`` with it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

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
    """``scale * branch(row)`` where ``execute``, else ``scale * alternative(row)``, or zero.

    Args:
        rows: Inputs (N, D).
        execute: Decisions (N,), bool.
        branch: The dense unit; maps (n, D) to (n, D), row by row.
        alternative: What runs where the unit is skipped; None: nothing, the update is zero.
        scale: Factors (N,) of the update, whichever branch it is from; None: 1.

    Returns:
        Updates (N, D). The host waits once for the device: it needs the number of executing rows.
    """
    executing = int(execute.sum())
    learns = torch.is_grad_enabled()
    if executing == len(rows) and (alternative is None or not learns):
        return apply_scale(branch(rows), scale)
    if not executing and not learns:
        if alternative is None:
            return torch.zeros_like(rows)
        return apply_scale(alternative(rows), scale)
    order, places = executing_first(execute, executing)
    if alternative is None:
        order = order[:executing]
        update = branch(rows.index_select(0, order))
        update = apply_scale(update, None if scale is None else scale[order])
        # No row occurs twice, so index_copy is deterministic, in the backward pass as well.
        return update.new_zeros(rows.shape).index_copy(0, order, update)
    # With gradients both branches run, even on no rows, so that the graph is the same for all
    # decisions.
    run, skipped = _Reorder.apply(rows, order, places).tensor_split([executing])
    update = branch(run)
    update = torch.cat([update, alternative(skipped).to(update.dtype)])
    return apply_scale(_Reorder.apply(update, places, order), scale)


class _Reorder(torch.autograd.Function):
    """Rows in another order. The gradient goes back in the inverse one: nothing is added up."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, order: Tensor, inverse: Tensor) -> Tensor:
        ctx.save_for_backward(inverse)
        return rows.index_select(0, order)

    @staticmethod
    def backward(ctx: Any, *upstreams: Tensor) -> tuple[Tensor, None, None]:
        (inverse,) = ctx.saved_tensors
        return upstreams[0].index_select(0, inverse), None, None


def executing_first(execute: Tensor, executing: int) -> tuple[Tensor, Tensor]:
    """Places (N,) of the executing rows, then of the others, both in their order; its inverse.

    Args:
        execute: Decisions (N,), bool.
        executing: Number of executing rows.
    """
    index = torch.arange(len(execute), device=execute.device)
    # The new place of each row: a permutation of 0..N-1, without a sort.
    ahead = execute.cumsum(0)
    places = torch.where(execute, ahead - 1, executing + index - ahead)
    return torch.empty_like(index).scatter_(0, places, index), places


def dispatch_masked(
    rows: Tensor,
    execute: Tensor,
    branch: Branch,
    alternative: Branch | None = None,
    scale: Tensor | None = None,
) -> Tensor:
    """The same result as that of :func:`dispatch`, computed without sorting."""
    other = torch.zeros_like(rows) if alternative is None else alternative(rows)
    return apply_scale(torch.where(execute[:, None], branch(rows), other), scale)


def apply_scale(update: Tensor, scale: Tensor | None) -> Tensor:
    """The update (..., D) times its scale (...), in the update's dtype; None: 1."""
    return update if scale is None else update * scale[..., None].to(update.dtype)
