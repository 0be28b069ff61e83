"""All that HeRo's router reads of the residual streams, each read once, and its gradient.

    projected  [sqrt(D) W_hd diag(w) ; W_local1] hbar                                  (N, 2H)
    sums       of hbar^2, delta^2, delta * previous delta, previous delta^2 over D     (N, 4)

with delta = hbar_j - hbar_{j-1}. Nothing is kept for the backward pass but the streams, as they are
in the model; written out in PyTorch, the same keeps a dozen matrices of their size in float32.

All is float32. A stream in bfloat16 meets the weights, and its gradient comes, as pairs of bfloat16
matrices, whose products are exact and summed in float32: what both leave of a number is at most
2^-18 of it, less than the sums err.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import linear

from methods.kernels.choose import use_triton


def split(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """A float32 matrix rounded to bfloat16, and what that leaves, rounded too."""
    rounded = matrix.bfloat16()
    return rounded, (matrix - rounded.float()).bfloat16()


def product(left: Tensor, right: Tensor) -> Tensor:
    """``left @ right`` of bfloat16 matrices, in float32."""
    if left.is_cuda:
        return torch.mm(left, right, out_dtype=torch.float32)
    return left.float() @ right.float()


def parts(wide: Tensor) -> Tensor:
    """Weights (2H, D) as bfloat16 streams meet them (4H, D): both of :func:`split`."""
    return torch.cat(split(wide.detach()))


def read_streams(
    streams: Sequence[Tensor],
    wide: Tensor,
    parts: Tensor | None,
    triton: bool | None = None,
) -> tuple[Tensor, Tensor]:
    """What one block's gates are made of, with gradients for streams and weights.

    Args:
        streams: Residual stream behind attention (N, D), contiguous and of one dtype, of this block
            and of up to two before it, the newest last; sums of a delta there is none of are 0.
        wide: Weights (2H, D), float32.
        parts: What :func:`parts` makes of them where streams are bfloat16.
        triton: True forces the kernels, False plain PyTorch; None lets the device decide.

    Returns:
        ``projected`` (N, 2H) and ``sums`` (N, 4), float32.

    Raises:
        RuntimeError: ``triton`` is True where no kernel can run.
    """
    kernel = use_triton(streams[-1], triton)
    with torch.autocast(wide.device.type, enabled=False):
        made: tuple[Tensor, Tensor] = _Read.apply(wide, parts, kernel, *streams)
    return made


class _Read(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, wide: Tensor, parts: Tensor | None, kernel: bool, *streams: Tensor
    ) -> tuple[Tensor, Tensor]:
        weights = wide if parts is None else parts
        ctx.save_for_backward(weights, *streams)
        ctx.kernel = kernel
        return _project(streams[-1], weights), path_sums(streams, kernel)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, by_projected: Tensor, by_sums: Tensor) -> tuple[Tensor | None, ...]:
        weights, *streams = ctx.saved_tensors
        learned, _, _, *through = ctx.needs_input_grad
        with torch.autocast(weights.device.type, enabled=False):
            base, by_wide = _project_backward(
                by_projected, streams[-1], weights, learned, any(through)
            )
            made: Sequence[Tensor | None] = [None] * len(streams)
            if base is not None:
                made = path_gradients(streams, base, by_sums.contiguous(), ctx.kernel)
            return by_wide, None, None, *made


def _project(hbar: Tensor, weights: Tensor) -> Tensor:
    if weights.dtype is not torch.bfloat16:
        return linear(hbar.float(), weights)
    first, second = product(hbar, weights.T).chunk(2, dim=-1)
    return first + second


def _project_backward(
    gradient: Tensor, hbar: Tensor, weights: Tensor, learned: bool, through: bool
) -> tuple[Tensor | None, Tensor | None]:
    """Of hbar (N, D) and of the weights, float32; None where nobody asks."""
    if weights.dtype is not torch.bfloat16:
        by_hbar = gradient @ weights if through else None
        return by_hbar, gradient.T @ hbar.float() if learned else None
    by_hbar = by_wide = None
    first, second = split(gradient)
    if through:
        left, right = weights.chunk(2)
        by_hbar = product(torch.cat([first, second, first], 1), torch.cat([left, left, right]))
    if learned:
        above, below = product(torch.cat([first, second], 1).T, hbar).chunk(2)
        by_wide = above + below
    return by_hbar, by_wide


def path_sums(streams: Sequence[Tensor], kernel: bool) -> Tensor:
    """Sums over D (N, 4) of hbar^2, delta^2, delta * previous delta and previous delta^2."""
    if kernel:
        from methods.kernels.hero.streams_triton import sums_launch

        sums = streams[-1].new_empty(len(streams[-1]), 4, dtype=torch.float32)
        sums_launch(streams, sums).run()
        return sums
    hbar, delta, before = _moves(streams)
    products = (hbar * hbar, delta * delta, delta * before, before * before)
    return torch.stack([each.sum(-1) for each in products], dim=-1)


def path_gradients(
    streams: Sequence[Tensor], base: Tensor, by_sums: Tensor, kernel: bool
) -> list[Tensor]:
    """Of each stream, in its dtype: ``base`` (N, D), hbar's own so far, and through the sums.

    Formula, with g the gradient (N, 4) of the sums:
        along = 2 g_1 delta + g_2 previous
        across = g_2 delta + 2 g_3 previous, 0 where there is no previous delta
        hbar_j: base + 2 g_0 hbar + along,  hbar_{j-1}: across - along,  hbar_{j-2}: -across
    """
    if kernel:
        from methods.kernels.hero.streams_triton import gradients_launch

        made = [torch.empty_like(stream) for stream in streams]
        gradients_launch(streams, base, by_sums, made).run()
        return made
    hbar, delta, before = _moves(streams)
    own, moved, turned, past = by_sums[..., None].unbind(1)
    along, across = 2 * moved * delta + turned * before, turned * delta + 2 * past * before
    if len(streams) < 3:
        across = torch.zeros_like(across)
    newest = base + 2 * own * hbar + along
    made = [-across, across - along, newest][-len(streams) :]
    return [gradient.to(stream.dtype) for gradient, stream in zip(made, streams, strict=True)]


def _moves(streams: Sequence[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """Hbar, delta and the delta before (N, D) in float32, zero where there is none."""
    hbar, *earlier = [stream.float() for stream in reversed(streams)]
    delta = hbar - earlier[0] if earlier else torch.zeros_like(hbar)
    before = earlier[0] - earlier[1] if len(earlier) > 1 else torch.zeros_like(hbar)
    return hbar, delta, before
