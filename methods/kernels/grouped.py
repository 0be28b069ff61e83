"""Dispatch and residual in one: ``residual + scale * (FFN(row) if execute else adapter(row))``.

The fused form of ``methods/core/routing/dispatch.py`` for prefill and training on a GPU. Rows are
partitioned on the device, gathered by the loads of a branch's first product and scattered by the
stores of its second. Without gradients no count reaches the host, so a CUDA graph can hold a call.
With gradients one count does, once per call: buffers for the backward pass then have only the rows
of their branch.

The FFN is frozen and gets no gradient; the adapter does. The forward pass saves the inputs of the
activations, 2 F numbers per row and branch; to compute them again would cost a third of the forward
products. silu is computed again. The gradient of the scale needs the branch's unscaled output y
only in y . dy = (h W^T) . dy = h . (dy W). The backward pass computes dy W anyway, so it adds up
this dot there, per row and tile of columns; the tiles are summed in their order.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import linear, silu

from methods.core.routing.dispatch import dispatch, executing_first
from methods.kernels.choose import available
from methods.kernels.weights import AdapterWeights, FfnWeights

if TYPE_CHECKING:
    from methods.kernels.grouped_launch import Rows, Weights

# Offsets in the kernels are 32 bits wide: 149,796 rows at F = 14336.
MOST_NUMBERS = 2**31 - 1


class Partition(NamedTuple):
    """The rows of both branches.

    ``order`` (N,): rows that run, then the others, each in their order; ``bounds`` (3,): 0, the
    number of rows that run, N. Both int32, on the device. ``executing``: this number on the host;
    None if it was not read.
    """

    order: Tensor
    bounds: Tensor
    executing: int | None = None

    def parts(self) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
        """For each branch an order, and the bounds of the branch's rows in it."""
        order, bounds, executing = self
        if executing is None:
            return (order, bounds[:2]), (order, bounds[1:])
        # A copy: kernels read 16 bytes at once, and this slice may begin between two such places.
        others = order[executing:].clone()
        return (order[:executing], bounds[:2]), (others, bounds[1:] - bounds[1])


def partition(execute: Tensor, counted: bool = False) -> Partition:
    """Partition rows by ``execute`` (N,) bool; only if ``counted`` the host waits for a number."""
    count = execute.sum()
    bounds = torch.stack([torch.zeros_like(count), count, torch.full_like(count, len(execute))])
    order = executing_first(execute, count).int()
    return Partition(order, bounds.int(), int(count) if counted else None)


def dispatch_fused(
    rows: Tensor,
    execute: Tensor,
    ffn: FfnWeights,
    adapter: AdapterWeights | None = None,
    scale: Tensor | None = None,
    residual: Tensor | None = None,
) -> Tensor:
    """``residual + dispatch(rows, execute, FFN, adapter, scale)``, by kernels where they run.

    Args:
        rows: Normed inputs (N, D).
        execute: Decisions (N,), bool.
        ffn: For rows that run; frozen, so its weights get no gradient.
        adapter: For rows that skip; None: their update is zero.
        scale: Factors (N,) of the branch that runs; None: 1.
        residual: Added (N, D), in the dtype of the rows; None: the update alone.

    Returns:
        (N, D), in the dtype of the rows. Differentiable in rows, adapter, scale and residual.
    """
    form = dispatch_kernels if kernels_run(rows, ffn) else dispatch_reference
    return form(rows, execute, ffn, adapter, scale, residual)


def kernels_run(rows: Tensor, ffn: FfnWeights) -> bool:
    """Whether :func:`dispatch_kernels` takes these tensors on this machine.

    It does not if autocast would multiply them in another precision.
    """
    if not available(rows):
        return False
    kind, learns = rows.device.type, torch.is_grad_enabled()
    if torch.is_autocast_enabled(kind) and rows.dtype != torch.get_autocast_dtype(kind):
        return False
    fitting = not any((learns and w.requires_grad) or w.dtype != rows.dtype for w in ffn)
    return fitting and _fits(rows, ffn)


def _fits(rows: Tensor, ffn: FfnWeights) -> bool:
    return len(rows) * max(ffn.gate.shape) <= MOST_NUMBERS


def dispatch_reference(
    rows: Tensor,
    execute: Tensor,
    ffn: FfnWeights,
    adapter: AdapterWeights | None = None,
    scale: Tensor | None = None,
    residual: Tensor | None = None,
) -> Tensor:
    """What :func:`dispatch_fused` computes, in plain PyTorch; one transfer to the host."""

    def execute_branch(part: Tensor) -> Tensor:
        gate, up, down = (weight.detach() for weight in ffn)
        return linear(silu(linear(part, gate)) * linear(part, up), down)

    update = dispatch(rows, execute, execute_branch, adapter.update if adapter else None, scale)
    return update if residual is None else residual + update


def dispatch_kernels(
    rows: Tensor,
    execute: Tensor,
    ffn: FfnWeights,
    adapter: AdapterWeights | None = None,
    scale: Tensor | None = None,
    residual: Tensor | None = None,
) -> Tensor:
    """What :func:`dispatch_fused` computes, by kernels alone (Triton's, or its interpreter)."""
    if any(weight.dtype != rows.dtype for weight in ffn):
        raise ValueError(f"ffn is not in the dtype of the rows, {rows.dtype}")
    if not _fits(rows, ffn):
        raise ValueError(f"rows: {len(rows)} are too many for offsets of 32 bits")
    if residual is not None and (residual.dtype, residual.shape) != (rows.dtype, rows.shape):
        raise ValueError(f"residual is not {rows.dtype} of shape {tuple(rows.shape)} as the rows")
    adapter_weights = adapter or (None, None, None)
    # Decided here: inside an autograd function gradients are always off.
    tensors = (part for part in (rows, *adapter_weights, scale, residual) if part is not None)
    learns = torch.is_grad_enabled() and any(part.requires_grad for part in tensors)
    frozen = FfnWeights(*(weight.detach().contiguous() for weight in ffn))
    scale = None if scale is None else scale.contiguous()
    residual = None if residual is None else residual.contiguous()
    row_split = partition(execute, counted=learns)
    return _Dispatch.apply(rows.contiguous(), row_split, frozen, *adapter_weights, scale, residual)


class _Dispatch(torch.autograd.Function):
    """The kernels of both branches, forward and backward.

    ``forward`` takes each tensor by itself: autograd finds gradients only for tensors that are
    arguments, not for tensors inside a tuple.
    """

    @staticmethod
    def forward(
        ctx: Any, rows: Tensor, row_split: Partition, ffn: FfnWeights,
        down: Tensor | None, up: Tensor | None, factor: Tensor | None,
        scale: Tensor | None, residual: Tensor | None,
    ) -> Tensor:  # fmt: skip
        from methods.kernels import grouped_launch as launch

        if down is None:
            output = torch.zeros_like(rows) if residual is None else residual.clone()
        else:
            output = torch.empty_like(rows)
        saved = list[Tensor | None]()
        adapter = _adapter(down, up, factor, rows.dtype)
        keep = row_split.executing is not None
        for branch, weights in _branches(row_split, ffn, adapter, scale):
            saved += launch.forward(rows, branch, weights, residual, output, keep) or ()
        ctx.executing = row_split.executing
        ctx.save_for_backward(rows, *row_split[:2], *ffn, down, up, factor, scale, *saved)
        return output

    @staticmethod
    def backward(ctx: Any, *upstreams: Tensor) -> tuple[Tensor | None, ...]:
        from methods.kernels import grouped_launch as launch

        rows, order, bounds, gate, expanding, contracting, down, up, factor, scale, *saved = (
            ctx.saved_tensors
        )
        row_split = Partition(order, bounds, ctx.executing)
        ffn = FfnWeights(gate, expanding, contracting)
        needs_rows, _, _, *needs_adapter, needs_scale, needs_residual = ctx.needs_input_grad
        needs_down, needs_up, needs_factor = needs_adapter
        upstream = upstreams[0].contiguous()
        # Without an adapter a row that skips has only its residual: its input has gradient 0.
        rows_gradient = torch.zeros_like(rows) if down is None else torch.empty_like(rows)
        scale_gradient = rows.new_zeros(len(rows), dtype=torch.float32)
        down_gradient = up_gradient = factor_gradient = None
        branches = _branches(row_split, ffn, _adapter(down, up, factor, rows.dtype), scale)
        for number, (branch, weights) in enumerate(branches):
            sums = launch.Sums(*saved[2 * number : 2 * number + 2])
            trained = number == 1
            gradients = launch.backward(
                upstream, branch, weights, sums, needs_scale, trained and needs_up
            )
            if gradients.scale is not None:
                scale_gradient += gradients.scale
            if needs_rows:
                launch.input_gradient(branch, weights, gradients.sums, rows_gradient)
            if trained and needs_down:
                down_gradient = launch.weight_gradient(
                    gradients.sums.gate, rows, branch, down, False
                )
            if trained and needs_factor and gradients.sums.up is not None:
                factor_gradient = launch.weight_gradient(
                    gradients.sums.up, rows, branch, factor, False
                )
            if gradients.scaled_hidden is not None:
                up_gradient = launch.weight_gradient(
                    gradients.scaled_hidden, upstream, branch, up, True
                )
        return (
            rows_gradient if needs_rows else None, None, None,
            down_gradient, up_gradient, factor_gradient,
            scale_gradient.to(scale.dtype) if needs_scale else None,
            upstream if needs_residual else None,
        )  # fmt: skip


def _adapter(
    down: Tensor | None, up: Tensor | None, factor: Tensor | None, dtype: torch.dtype
) -> AdapterWeights | None:
    """The adapter from the arguments of the autograd function, in the dtype of the rows."""
    return None if down is None or up is None else AdapterWeights(down, up, factor).to(dtype)


def _branches(
    row_split: Partition, ffn: FfnWeights, adapter: AdapterWeights | None, scale: Tensor | None
) -> Iterator[tuple[Rows, Weights]]:
    """The FFN with its rows; then the adapter, if there is one, with its rows."""
    from methods.kernels.grouped_launch import Rows, Weights

    executing, others = row_split.parts()
    yield Rows(*executing, scale), Weights(*ffn)
    if adapter is not None:
        factor = None if adapter.factor is None else adapter.factor.contiguous()
        weights = Weights(adapter.down.contiguous(), factor, adapter.up.contiguous())
        yield Rows(*others, scale), weights
