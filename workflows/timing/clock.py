"""Timing functions against each other: in turn, after a warm-up."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch


def time_in_turn(
    functions: Sequence[Callable[[], Any]], rounds: int, warmup: int, device: str
) -> list[list[float]]:
    """Run A B A B ... and time each call, so that drift of the machine affects all functions alike.

    Args:
        functions: What is timed.
        rounds: Counted calls of each.
        warmup: Calls of each that are not counted.
        device: On a GPU, CUDA events time the calls.

    Returns:
        Of each function, the seconds of each counted call.
    """
    seconds: list[list[float]] = [[] for _ in functions]
    for turn in range(warmup + rounds):
        for own, function in zip(seconds, functions, strict=True):
            taken = _on_gpu(function) if device.startswith("cuda") else _on_cpu(function)
            if turn >= warmup:
                own.append(taken)
    return seconds


def _on_cpu(function: Callable[[], Any]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def _on_gpu(function: Callable[[], Any]) -> float:
    before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    before.record()
    function()
    after.record()
    torch.cuda.synchronize()
    return before.elapsed_time(after) / 1000


def time_ratio(
    seconds: list[float],
    dense: list[float],
    *,
    bound: float | None,
    timed_bound: float | None = None,
) -> dict[str, Any]:
    """Time over dense: the median of paired ratios, its 95 % interval and its bounds.

    Args:
        seconds: Of the row, one value per call.
        dense: Of the dense model, measured in turn with these.
        bound: Smallest ratio that the work allows; None: unknown.
        timed_bound: The ratio if what the row leaves out took no time; None: not known.

    Returns:
        Ratio, interval, bounds, realised share of the possible saving, quantiles of both times in
        seconds, all times of both. The saving is that of the timed bound where it is known; the
        share is None without a bound, or if the bound allows no saving.
    """
    ratios = np.array(seconds) / np.array(dense)
    draws = np.random.default_rng(0).integers(len(ratios), size=(2000, len(ratios)))
    low, high = np.quantile(np.median(ratios[draws], axis=1), [0.025, 0.975])
    ratio = float(np.median(ratios))
    nearest = bound if timed_bound is None else timed_bound
    possible = 0.0 if nearest is None else 1 - nearest
    return {
        "over_dense": ratio,
        "interval": [float(low), float(high)],
        "bound": bound,
        "timed_bound": timed_bound,
        "realised_share": (1 - ratio) / possible if possible > 0.005 else None,
        "seconds": {q: float(np.quantile(seconds, q / 100)) for q in (10, 50, 90)},
        "dense_seconds": {q: float(np.quantile(dense, q / 100)) for q in (10, 50, 90)},
        "raw": [round(value, 7) for value in seconds],
        "dense_raw": [round(value, 7) for value in dense],
    }
