"""Kernel, twin or host: where each can run, by device, dtype and number of tokens.

A kernel's other conditions on weights and rows are in its own file.
"""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec

import torch
from torch import Tensor

# The most tokens of a decode step for kernels.
MOST_ROWS = 16
DTYPES = (torch.bfloat16, torch.float16, torch.float32)


def available(tensor: Tensor) -> bool:
    """Whether the Triton kernels run on the device and dtype of ``tensor``."""
    return missing(tensor) is None


def missing(tensor: Tensor) -> str | None:
    """Why the Triton kernels cannot run on ``tensor``, in one sentence; None if they can."""
    if not _installed():
        return "Triton is not installed"
    if tensor.dtype not in DTYPES:
        return f"kernels take bfloat16, float16 and float32, not {tensor.dtype}"
    if not tensor.is_cuda:
        return f"kernels run on a CUDA device, not on {tensor.device.type}"
    if torch.cuda.get_device_capability(tensor.device) < (8, 0):
        return "kernels need compute capability 8.0"
    return None


def use_triton(tensor: Tensor, forced: bool | None = None) -> bool:
    """Whether a call with ``tensor`` runs the kernel.

    Args:
        tensor: Any tensor of the call with the weights' device and dtype.
        forced: True: the kernel, also under Triton's interpreter; False: the twin; None: the kernel
            if the device allows it.

    Raises:
        RuntimeError: ``forced`` is True where no kernel can run.
    """
    if forced is None:
        return available(tensor)
    if not forced:
        return False
    reason = missing(tensor)
    if reason is None or (_installed() and _interpreted(tensor)):
        return True
    raise RuntimeError(f"the Triton kernels were asked for: {reason}")


def can_depend(tensor: Tensor) -> bool:
    """Whether a launch on the tensor's device may begin before the one before it has ended."""
    return tensor.is_cuda and torch.cuda.get_device_capability(tensor.device) >= (9, 0)


def one_token(hidden: Tensor) -> bool:
    """Whether the host may see each decision: one new token of one sequence, on a CPU.

    Not while something is trained, compiled or traced.

    Args:
        hidden: What enters the pass (B, T, D).
    """
    return (
        hidden.shape[:2] == (1, 1)
        and hidden.device.type == "cpu"
        and type(hidden) is Tensor
        and not torch.is_grad_enabled()
        and not torch.compiler.is_compiling()
    )


def use_host(hidden: Tensor, weight: Tensor) -> bool:
    """Whether a router decides with NumPy: one token, in float32, without autocast.

    Args:
        hidden: What enters the pass (B, T, D).
        weight: Any weight of the router.
    """
    return (
        one_token(hidden)
        and weight.device.type == "cpu"
        and weight.dtype is torch.float32
        and not torch.is_autocast_enabled("cpu")
    )


def use_steps(hidden: Tensor) -> bool:
    """Whether a routed attention runs by kernels: one new token per sequence, and kernels can run.

    Args:
        hidden: What enters the pass (B, T, D).
    """
    return hidden.shape[1] == 1 and len(hidden) <= MOST_ROWS and use_device(hidden)


def use_device(hidden: Tensor) -> bool:
    """Whether a router decides by kernels: they can run, without gradients or autocast.

    Args:
        hidden: What enters the pass (B, T, D).
    """
    return (
        not torch.is_grad_enabled()
        and available(hidden)
        and not torch.is_autocast_enabled(hidden.device.type)
    )


def use_streams(hbar: Tensor) -> bool:
    """Whether a router in training reads its streams by kernels: they can run.

    Args:
        hbar: The residual stream, or what enters the pass (B, T, D).
    """
    return torch.is_grad_enabled() and available(hbar)


@cache
def _installed() -> bool:
    """Cached: every routed layer asks in every step, and a search of all folders takes time."""
    return find_spec("triton") is not None


def _interpreted(tensor: Tensor) -> bool:
    import triton

    return tensor.dtype in DTYPES and bool(triton.knobs.runtime.interpret)
