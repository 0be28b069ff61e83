"""Triton's interpreter: bfloat16 products mended, launches watched, and a count of what is read.

Triton 3.6 holds bfloat16 as bits and multiplies matrices of them as integers. Here they become
float32 first, as on tensor cores, whose products of bfloat16 are exact.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def prepare() -> None:
    """Mend the matrix products of bfloat16 and watch every launch; on a GPU nothing is done.

    ``SKIPBENCH_EMULATE``, 80 or 90: launches run as compiled for that target (``tests/emulator``).
    """
    if DEVICE == "cuda":
        return
    if target := os.environ.get("SKIPBENCH_EMULATE"):
        from tests.emulator.run import emulate

        emulate(int(target))
        return
    import triton.language as tl
    from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

    if getattr(InterpreterBuilder.create_dot, "mended", False):
        return
    plain = InterpreterBuilder.create_dot

    def create_dot(self: Any, a: Any, b: Any, d: Any, *rest: Any) -> Any:
        return plain(self, widen(a), widen(b), d, *rest)

    def widen(handle: Any) -> Any:
        if handle.dtype.scalar is not tl.bfloat16:
            return handle
        return TensorHandle((handle.data.astype(np.uint32) << 16).view(np.float32), tl.float32)

    create_dot.mended = True  # type: ignore[attr-defined]
    InterpreterBuilder.create_dot = create_dot
    from tests.programs import watch

    watch()


def touched(pointers: Any, mask: Any) -> tuple[NDArray[Any], int]:
    """The addresses that an interpreted load or store touches, and the bytes of each number."""
    real = np.broadcast_to(mask.data, pointers.data.shape).astype(bool)
    return pointers.data[real], max(1, pointers.get_element_ty().primitive_bitwidth // 8)


@contextmanager
def bytes_read(tensors: Mapping[str, Tensor]) -> Iterator[dict[str, int]]:
    """Bytes that interpreted kernels load from each tensor, by name; repeated loads count again."""
    from triton.runtime.interpreter import InterpreterBuilder

    counts = dict.fromkeys(tensors, 0)
    ranges = {
        name: (tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes)
        for name, tensor in tensors.items()
    }
    plain = InterpreterBuilder.create_masked_load

    def load(self: Any, ptrs: Any, mask: Any, *rest: Any) -> Any:
        addresses, size = touched(ptrs, mask)
        for name, (low, high) in ranges.items():
            counts[name] += size * int(((addresses >= low) & (addresses < high)).sum())
        return plain(self, ptrs, mask, *rest)

    InterpreterBuilder.create_masked_load = load
    try:
        yield counts
    finally:
        InterpreterBuilder.create_masked_load = plain
