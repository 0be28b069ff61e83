"""What HeRo's router reads of the residual streams, each read once, and the gradients of that.

    projected  [sqrt(D) W_hd diag(w) ; W_local1] hbar                                  (N, 2H)
    sums       of hbar^2, delta^2, delta * previous delta, previous delta^2 over D     (N, 4)

with delta = hbar_j - hbar_{j-1}. The backward pass needs only the streams, which the model has
anyway; plain PyTorch would save a dozen float32 matrices of their size.

All is float32. A stream in bfloat16 is multiplied by a pair of bfloat16 matrices, whose sum stands
for the weights; its gradient comes from such a pair too. Their products are exact and summed in
float32. The pair is off by at most 2^-18 of a number, less than the rounding of the sums.
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
    """A float32 matrix rounded to bfloat16, and the rest, rounded too."""
    rounded = matrix.bfloat16()
    return rounded, (matrix - rounded.float()).bfloat16()


def product(left: Tensor, right: Tensor) -> Tensor:
    """``left @ right`` of bfloat16 matrices, in float32."""
    if left.is_cuda:
        return torch.mm(left, right, out_dtype=torch.float32)
    return left.float() @ right.float()


def parts(wide: Tensor) -> Tensor:
    """Weights (2H, D) for bfloat16 streams, (4H, D): both matrices of :func:`split`."""
    return torch.cat(split(wide.detach()))


def read_streams(
    streams: Sequence[Tensor],
    wide: Tensor,
    parts: Tensor | None,
    triton: bool | None = None,
) -> tuple[Tensor, Tensor]:
    """What the gates of one FFN read, with gradients for streams and weights.

    Args:
        streams: Residual stream after attention (N, D), contiguous and of one dtype, of this FFN
            and of up to two before it, the newest last; sums of a missing delta are 0.
        wide: Weights (2H, D), float32.
        parts: Of :func:`parts`, for bfloat16 streams; else None.
        triton: True forces the kernels, False plain PyTorch; None lets the device decide.

    Returns:
        ``projected`` (N, 2H) and ``sums`` (N, 4), float32.

    Raises:
        RuntimeError: ``triton`` is True where no kernel can run.
    """
    kernel = use_triton(streams[-1], triton)
    with torch.autocast(wide.device.type, enabled=False):
        results: tuple[Tensor, Tensor] = _Read.apply(wide, parts, kernel, *streams)
    return results


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
        needs_wide, _, _, *needs_streams = ctx.needs_input_grad
        with torch.autocast(weights.device.type, enabled=False):
            base, by_wide = _project_backward(
                by_projected, streams[-1], weights, needs_wide, any(needs_streams)
            )
            by_streams: Sequence[Tensor | None] = [None] * len(streams)
            if base is not None:
                by_streams = path_gradients(streams, base, by_sums.contiguous(), ctx.kernel)
            return by_wide, None, None, *by_streams


def _project(hbar: Tensor, weights: Tensor) -> Tensor:
    if weights.dtype is not torch.bfloat16:
        return linear(hbar.float(), weights)
    first, second = product(hbar, weights.T).chunk(2, dim=-1)
    return first + second


def _project_backward(
    gradient: Tensor, hbar: Tensor, weights: Tensor, needs_wide: bool, needs_hbar: bool
) -> tuple[Tensor | None, Tensor | None]:
    """Gradients of hbar (N, D) and of the weights, float32; None if not needed."""
    if weights.dtype is not torch.bfloat16:
        by_hbar = gradient @ weights if needs_hbar else None
        return by_hbar, gradient.T @ hbar.float() if needs_wide else None
    by_hbar = by_wide = None
    first, second = split(gradient)
    if needs_hbar:
        left, right = weights.chunk(2)
        by_hbar = product(torch.cat([first, second, first], 1), torch.cat([left, left, right]))
    if needs_wide:
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
    hbar, delta, before = _stream_and_deltas(streams)
    products = (hbar * hbar, delta * delta, delta * before, before * before)
    return torch.stack([each.sum(-1) for each in products], dim=-1)


def path_gradients(
    streams: Sequence[Tensor], base: Tensor, by_sums: Tensor, kernel: bool
) -> list[Tensor]:
    """The gradient of each stream, in its dtype: through the sums, plus ``base`` (N, D) for hbar.

    Formula, with g the gradient (N, 4) of the sums:
        along = 2 g_1 delta + g_2 previous
        across = g_2 delta + 2 g_3 previous, 0 where there is no previous delta
        hbar_j: base + 2 g_0 hbar + along,  hbar_{j-1}: across - along,  hbar_{j-2}: -across
    """
    if kernel:
        from methods.kernels.hero.streams_triton import gradients_launch

        gradients = [torch.empty_like(stream) for stream in streams]
        gradients_launch(streams, base, by_sums, gradients).run()
        return gradients
    hbar, delta, before = _stream_and_deltas(streams)
    own, step, cross, past = by_sums[..., None].unbind(1)
    along, across = 2 * step * delta + cross * before, cross * delta + 2 * past * before
    if len(streams) < 3:
        across = torch.zeros_like(across)
    newest = base + 2 * own * hbar + along
    exact = [-across, across - along, newest][-len(streams) :]
    return [gradient.to(stream.dtype) for gradient, stream in zip(exact, streams, strict=True)]


def _stream_and_deltas(streams: Sequence[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """Hbar, delta and the delta before (N, D) in float32, zero where there is none."""
    hbar, *earlier = [stream.float() for stream in reversed(streams)]
    delta = hbar - earlier[0] if earlier else torch.zeros_like(hbar)
    before = earlier[0] - earlier[1] if len(earlier) > 1 else torch.zeros_like(hbar)
    return hbar, delta, before
