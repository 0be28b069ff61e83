"""A routed feed-forward network for one new token of each of up to 16 sequences.

Decoding is bound by the bytes of the weights: a token that bypasses must not cause a read of the
FFN. Two launches per block serve both branches. Each reads the decisions on the device and walks
over the tiles of the branches that some row takes:

    rows    f = SiLU(W_gate u) * (W_up u)        where a row executes,   r = SiLU(W_1 u) elsewhere
    down    out = hidden + scale * (W_down f)                            hidden + scale * (W_2 r)

An adapter that is a slim SwiGLU has r = SiLU(W_1 u) * (W_3 u).

A tile of weights is read once for all rows that need it, and not at all if none does. No number
reaches the host and no shape depends on a decision, so a CUDA graph can hold the calls.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import linear, silu

from methods.kernels.choose import MOST_ROWS, use_triton
from methods.kernels.weights import AdapterWeights, DecodeWorkspace, FfnWeights


def decode_workspace(
    batch: int, ffn: FfnWeights, adapter: AdapterWeights | None = None
) -> DecodeWorkspace:
    """The workspace for ``batch`` rows; blocks of one width share it."""
    return DecodeWorkspace(
        ffn.gate.new_empty(batch, len(ffn.gate)),
        None if adapter is None else adapter.down.new_empty(batch, len(adapter.down)),
    )


def decode_fused(
    rows: Tensor,
    execute: Tensor,
    ffn: FfnWeights,
    adapter: AdapterWeights | None = None,
    scale: Tensor | None = None,
    residual: Tensor | None = None,
) -> Tensor:
    """``dispatch_fused`` for at most 16 rows without gradients, by :func:`routed_ffn_decode`.

    Args:
        rows: Normed inputs (N, D), in the dtype of the FFN.
        execute: Decisions (N,), bool.
        ffn: What an executing row meets.
        adapter: What the others meet; None: their update is zero.
        scale: Factors (N,) of whichever branch runs; None: 1.
        residual: Added (N, D); None: the update alone.
    """
    if adapter is not None:
        adapter = adapter.to(ffn.gate.dtype)
    base = torch.zeros_like(rows) if residual is None else residual.contiguous()
    factors = execute.new_ones(len(rows), dtype=torch.float32) if scale is None else scale.float()
    out, workspace = torch.empty_like(base), decode_workspace(len(rows), ffn, adapter)
    routed_ffn_decode(
        base, rows.contiguous(), execute.contiguous(), factors, ffn, adapter, out, workspace
    )
    return out


def routed_ffn_decode(
    hidden: Tensor,
    normed: Tensor,
    execute: Tensor,
    scale: Tensor,
    ffn: FfnWeights,
    adapter: AdapterWeights | None,
    out: Tensor,
    workspace: DecodeWorkspace,
    triton: bool | None = None,
) -> None:
    """Write ``hidden + scale * branch(normed)`` into ``out``, the branch by row.

    Sums are in float32; activations between the matrices are rounded to the dtype of the weights,
    ``out`` once at the end. Nothing is allocated.

    Args:
        hidden: Residual stream behind attention (B, D), 1 <= B <= 16.
        normed: The branches' input, ``hidden`` normed (B, D), in the dtype of the weights.
        execute: Rows that run the FFN (B,), bool.
        scale: Factor of whichever branch runs (B,), float32.
        ffn: Weights, in bfloat16, float16 or float32.
        adapter: Weights in the same dtype; None: a row that bypasses keeps ``hidden``.
        out: Residual stream behind the block (B, D); may be ``hidden``.
        workspace: Of :func:`decode_workspace`.
        triton: True forces the kernels, False the twin; None lets the device decide.

    Raises:
        ValueError: Shapes or dtypes do not fit, or a tensor is not contiguous.
        RuntimeError: ``triton`` is True where no kernel can run.
    """
    _check(hidden, normed, execute, scale, ffn, adapter, out, workspace)
    if not use_triton(ffn.gate, triton):
        routed_ffn_decode_reference(hidden, normed, execute, scale, ffn, adapter, out, workspace)
        return
    from methods.kernels.decode_triton import launches

    for launch in launches(hidden, normed, execute, scale, ffn, adapter, out, workspace):
        launch.run()


def routed_ffn_decode_reference(
    hidden: Tensor,
    normed: Tensor,
    execute: Tensor,
    scale: Tensor,
    ffn: FfnWeights,
    adapter: AdapterWeights | None,
    out: Tensor,
    workspace: DecodeWorkspace,
) -> None:
    """The twin of :func:`routed_ffn_decode`: both branches on every row, then a choice.

    It rounds where the kernels round.
    """
    rows, dtype = normed.float(), ffn.gate.dtype
    inner = silu(linear(rows, ffn.gate.float())) * linear(rows, ffn.up.float())
    update = linear(inner.to(dtype).float(), ffn.down.float())
    other = torch.zeros_like(update)
    if adapter is not None:
        inner = silu(linear(rows, adapter.down.float()))
        if adapter.factor is not None:
            inner = inner * linear(rows, adapter.factor.float())
        other = linear(inner.to(dtype).float(), adapter.up.float())
    chosen = torch.where(execute[:, None], update, other)
    out.copy_(hidden.float() + scale[:, None] * chosen)


def _check(
    hidden: Tensor,
    normed: Tensor,
    execute: Tensor,
    scale: Tensor,
    ffn: FfnWeights,
    adapter: AdapterWeights | None,
    out: Tensor,
    workspace: DecodeWorkspace,
) -> None:
    batch, width = hidden.shape
    inner, dtype = len(ffn.gate), ffn.gate.dtype
    if not 1 <= batch <= MOST_ROWS:
        raise ValueError(f"decoding takes 1 to {MOST_ROWS} rows, not {batch}")
    expected = {
        "normed": (normed, (batch, width), dtype),
        "execute": (execute, (batch,), torch.bool),
        "scale": (scale, (batch,), torch.float32),
        "ffn.gate": (ffn.gate, (inner, width), dtype),
        "ffn.up": (ffn.up, (inner, width), dtype),
        "ffn.down": (ffn.down, (width, inner), dtype),
        "out": (out, (batch, width), out.dtype),
        "hidden": (hidden, (batch, width), hidden.dtype),
        "workspace.ffn": (workspace.ffn, (batch, inner), dtype),
    }
    if adapter is not None:
        if workspace.adapter is None:
            raise ValueError("the workspace has no rows for the adapter")
        narrow = len(adapter.down)
        expected |= {
            "adapter.down": (adapter.down, (narrow, width), dtype),
            "adapter.up": (adapter.up, (width, narrow), dtype),
            "workspace.adapter": (workspace.adapter, (batch, narrow), dtype),
        }
        if adapter.factor is not None:
            expected["adapter.factor"] = (adapter.factor, (narrow, width), dtype)
    check_tensors(expected)


def check_tensors(expected: dict[str, tuple[Tensor, tuple[int, ...], torch.dtype]]) -> None:
    """Hold tensors against a shape and a dtype; they must be contiguous.

    Raises:
        ValueError: Names the first that does not fit.
    """
    for name, (tensor, shape, dtype) in expected.items():
        if tuple(tensor.shape) != shape or tensor.dtype != dtype or not tensor.is_contiguous():
            raise ValueError(
                f"'{name}' must be contiguous, {shape} and {dtype}, "
                f"not {tuple(tensor.shape)} and {tensor.dtype}"
            )
