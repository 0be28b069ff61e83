"""A kernel launch as a value: the device runs it, and tests compile the same one."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor


class Launch(NamedTuple):
    """One launch of a Triton kernel.

    ``arguments`` by the kernel's parameter names; ``warps`` of 32 threads per program, ``stages``
    of the loops that Triton pipelines.
    """

    kernel: Any
    grid: tuple[int, ...]
    arguments: dict[str, Any]
    warps: int
    stages: int = 1

    def run(self) -> None:
        """Queue the launch on the current stream of its tensors' device."""
        # Triton launches on the current device, which may not be that of the tensors.
        tensor = next(part for part in self.arguments.values() if isinstance(part, Tensor))
        with torch.cuda.device_of(tensor):
            self.kernel[self.grid](**self.arguments, num_warps=self.warps, num_stages=self.stages)
