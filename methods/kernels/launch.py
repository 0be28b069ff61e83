"""A kernel launch as a value: the device runs it, and tests compile the same one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor


class Launch(NamedTuple):
    """One launch of a Triton kernel.

    ``arguments`` by the kernel's parameter names; a tuple of tensors, or of constants, is one
    argument. ``warps`` of 32 threads per program, ``stages`` of the loops that Triton pipelines.
    A ``dependent`` launch may begin before the one before it has ended.
    """

    kernel: Any
    grid: tuple[int, ...]
    arguments: dict[str, Any]
    warps: int
    stages: int = 1
    dependent: bool = False

    def run(self) -> None:
        """Queue the launch on the current stream of its tensors' device."""
        # Triton launches on the current device, which may not be that of the tensors.
        options: dict[str, Any] = {"num_warps": self.warps, "num_stages": self.stages}
        if self.dependent:
            options["launch_pdl"] = True
        with torch.cuda.device_of(self.tensors()[0]):
            self.kernel[self.grid](**self.arguments, **options)

    def tensors(self) -> list[Tensor]:
        """The tensors among the arguments, those in tuples too."""
        return list(_tensors_in(tuple(self.arguments.values())))


def _tensors_in(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, tuple):
        for part in value:
            yield from _tensors_in(part)
