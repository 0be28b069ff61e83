"""A routed feed-forward network for one new token of each of up to 16 sequences.

The time of decoding goes to reading weights, so a token that skips must not cause a read of the
FFN. Two launches per FFN serve both branches. Each reads the decisions on the device and goes
through the tiles of the branches that some row takes:

              a row that runs                              a row that skips
    inner     f = SiLU(W_gate u) * (W_up u)                r = SiLU(W_1 u)
    outer     out = hidden + scale * (W_down f)            out = hidden + scale * (W_2 r)

An adapter that is a slim SwiGLU has r = SiLU(W_1 u) * (W_3 u).

A tile of weights is read once for all rows that need it, and not at all if no row does. No number
reaches the host and no shape depends on a decision, so a CUDA graph can hold the calls.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import linear, silu

from methods.kernels.choose import MOST_ROWS, available, use_triton
from methods.kernels.operands import AdapterWeights, DecodeWorkspace, FfnStep, FfnWeights


def decode_workspace(
    batch: int, ffn: FfnWeights, adapter: AdapterWeights | None = None
) -> DecodeWorkspace:
    """The workspace for ``batch`` rows; FFNs of one width share it."""
    return DecodeWorkspace(
        ffn.gate.new_empty(batch, len(ffn.gate)),
        None if adapter is None else adapter.down.new_empty(batch, len(adapter.down)),
    )


def decode_fused(
    rows: Tensor,
    execute: Tensor,
    ffn: FfnWeights,
    adapter: AdapterWeights | None,
    scale: Tensor | None,
    residual: Tensor,
) -> Tensor:
    """``residual + scale * (FFN(row) if execute else adapter(row))``, by :func:`routed_ffn_decode`.

    For at most 16 rows, without gradients.

    Args:
        rows: Normed inputs (N, D), in the dtype of the FFN.
        execute: Decisions (N,), bool.
        ffn: For rows that run.
        adapter: For rows that skip; None: their update is zero.
        scale: Factors (N,) of the branch that runs; None: 1.
        residual: Added (N, D).
    """
    if adapter is not None:
        adapter = adapter.to(ffn.gate.dtype)
    base = residual.contiguous()
    factors = execute.new_ones(len(rows), dtype=torch.float32) if scale is None else scale.float()
    out, workspace = torch.empty_like(base), decode_workspace(len(rows), ffn, adapter)
    step = FfnStep(
        base, rows.contiguous(), execute.contiguous(), factors, ffn, adapter, out, workspace
    )
    routed_ffn_decode(step)
    return out


def kernels_run(rows: Tensor, ffn: FfnWeights) -> bool:
    """Whether the kernels take these tensors on this machine.

    They do not if autocast would multiply them in another precision.
    """
    kind = rows.device.type
    casts = torch.is_autocast_enabled(kind) and rows.dtype != torch.get_autocast_dtype(kind)
    return available(rows) and not casts and all(each.dtype == rows.dtype for each in ffn)


def routed_ffn_decode(step: FfnStep, triton: bool | None = None) -> None:
    """Write ``hidden + scale * branch(normed)`` into ``out``; each row takes its branch.

    Sums are in float32; activations between the matrices are rounded to the dtype of the weights,
    ``out`` once at the end. Nothing is allocated.

    Args:
        step: Tensors, contiguous.
        triton: True forces the kernels, False the twin; None lets the device decide.

    Raises:
        ValueError: Shapes or dtypes do not fit, or a tensor is not contiguous.
        RuntimeError: ``triton`` is True where no kernel can run.
    """
    _check(step)
    if not use_triton(step.ffn.gate, triton):
        routed_ffn_decode_reference(step)
        return
    from methods.kernels.decode_triton import launches

    for launch in launches(step):
        launch.run()


def routed_ffn_decode_reference(step: FfnStep) -> None:
    """The twin of :func:`routed_ffn_decode`: both branches on every row, then a choice.

    It rounds where the kernels round.
    """
    ffn, adapter = step.ffn, step.adapter
    rows, dtype = step.normed.float(), ffn.gate.dtype
    inner = silu(linear(rows, ffn.gate.float())) * linear(rows, ffn.up.float())
    update = linear(inner.to(dtype).float(), ffn.down.float())
    other = torch.zeros_like(update)
    if adapter is not None:
        inner = silu(linear(rows, adapter.down.float()))
        if adapter.factor is not None:
            inner = inner * linear(rows, adapter.factor.float())
        other = linear(inner.to(dtype).float(), adapter.up.float())
    updates = torch.where(step.execute[:, None], update, other)
    step.out.copy_(step.hidden.float() + step.scale[:, None] * updates)


def _check(step: FfnStep) -> None:
    hidden, normed, execute, scale, ffn, adapter, out, workspace = step
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
    """Check the shapes and dtypes of tensors, and that they are contiguous.

    Raises:
        ValueError: A tensor does not fit; the message names the first.
    """
    for name, (tensor, shape, dtype) in expected.items():
        if tuple(tensor.shape) != shape or tensor.dtype != dtype or not tensor.is_contiguous():
            raise ValueError(
                f"'{name}' must be contiguous, {shape} and {dtype}, "
                f"not {tuple(tensor.shape)} and {tensor.dtype}"
            )
