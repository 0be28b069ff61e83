"""A kernel launch as a value: what runs on the device and what a compiler is shown are the same."""

from __future__ import annotations

from typing import Any, NamedTuple


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
        """Queue the launch on the current stream."""
        self.kernel[self.grid](**self.arguments, num_warps=self.warps, num_stages=self.stages)
