"""Memory and energy of a call; measured on a GPU only, where each model can be told apart."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

# Seconds; each model has two windows. The energy counter has steps of about 100 ms.
WINDOW = 2.5


def peak_memory(functions: Iterable[Callable[[], Any]]) -> dict[str, Any]:
    """Peak of CUDA memory in a call of the row and of dense, in MB (2^20 bytes).

    Empty if no GPU is used. Both models stay in memory during both calls: the two values differ by
    what a call itself needs.
    """
    if not torch.cuda.is_initialized():
        return {}
    peaks = []
    for function in functions:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        function()
        peaks.append(round(torch.cuda.max_memory_allocated() / 2**20, 1))
    return {"peak_memory_mb": peaks[0], "dense_peak_memory_mb": peaks[1]}


def joules(functions: Sequence[Callable[[], Any]], tokens: int) -> dict[str, Any]:
    """Energy per token of the row and of dense; empty if NVML does not measure it.

    Args:
        functions: A call of the row, a call of the dense model.
        tokens: Number of tokens per call.
    """
    counter = _counter()
    if counter is None:
        return {}
    energies, calls = [0.0, 0.0], [0, 0]
    # In this order a GPU that grows warm costs both alike.
    for number in (0, 1, 1, 0):
        function = functions[number]
        function()
        torch.cuda.synchronize()
        start, end = counter(), time.perf_counter() + WINDOW
        while time.perf_counter() < end:
            for _ in range(10):
                function()
            torch.cuda.synchronize()
            calls[number] += 10
        energies[number] += counter() - start
    row, dense = (energies[number] / (calls[number] * tokens) for number in (0, 1))
    return {"joules_per_token": row, "dense_joules_per_token": dense}


def _counter() -> Callable[[], float] | None:
    """A function that reads the energy used by the current GPU, in joules; None without NVML, or
    if no GPU is used.
    """
    if not torch.cuda.is_initialized():
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
