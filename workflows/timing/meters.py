"""Memory and energy of what is timed; only a GPU tells either of one model apart from another."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

# The counter moves in steps of some 100 ms.
WINDOW = 2.0


def peak_memory(functions: Iterable[Callable[[], Any]]) -> dict[str, Any]:
    """Peak of CUDA memory in a call of the row and of dense, in MB; nothing without a GPU.

    Both models lie in memory all the while: what differs is what a call needs beside them.
    """
    if not torch.cuda.is_available():
        return {}
    peaks = []
    for function in functions:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        function()
        peaks.append(round(torch.cuda.max_memory_allocated() / 2**20, 1))
    return {"peak_memory_mb": peaks[0], "dense_peak_memory_mb": peaks[1]}


def joules(functions: Sequence[Callable[[], Any]], tokens: int) -> dict[str, Any]:
    """Energy per token of the row and of dense; nothing where NVML does not count it.

    Args:
        functions: Calls of the row and of the dense model.
        tokens: Of one call.
    """
    counter = _counter()
    if counter is None:
        return {}
    found = []
    for function in functions:
        calls, start, end = 0, counter(), time.perf_counter() + WINDOW
        while time.perf_counter() < end:
            for _ in range(10):
                function()
            torch.cuda.synchronize()
            calls += 10
        found.append((counter() - start) / (calls * tokens))
    return {"joules_per_token": found[0], "dense_joules_per_token": found[1]}


def _counter() -> Callable[[], float] | None:
    """What reads the energy that the current GPU has used, in joules; None where nothing does."""
    if not torch.cuda.is_available():
        return None
    try:
        import pynvml

        pynvml.nvmlInit()
        uuid = f"GPU-{torch.cuda.get_device_properties(torch.cuda.current_device()).uuid}"
        handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
        pynvml.nvmlDeviceGetTotalEnergyConsumption(handle)
    except Exception:
        return None
    return lambda: pynvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1000
