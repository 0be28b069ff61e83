"""The tensors of a launch as bytes at their addresses."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from tests.programs import Watch

Array = NDArray[Any]


class Memory:
    """Reads and writes tensors, each access noted by a :class:`tests.programs.Watch`."""

    def __init__(self, tensors: Sequence[Tensor], watch: Watch) -> None:
        self.watch = watch
        storages = {t.untyped_storage().data_ptr(): t.untyped_storage() for t in tensors}
        self.starts = np.array(sorted(storages), np.int64)
        self.parts = [
            np.frombuffer((ctypes.c_uint8 * storages[start].nbytes()).from_address(start), np.uint8)
            for start in self.starts.tolist()
        ]

    def load(self, addresses: Array, size: int) -> Array:
        """The bytes (N, size) at ``addresses`` (N,)."""
        values = np.zeros((len(addresses), size), np.uint8)
        for part, rows, span in self._spans(addresses, size, write=False):
            values[rows] = part[span]
        return values

    def store(self, addresses: Array, values: Array) -> None:
        """Write the bytes ``values`` (N, size)."""
        for part, rows, span in self._spans(addresses, values.shape[1], write=True):
            part[span] = values[rows]

    def _spans(self, addresses: Array, size: int, write: bool) -> list[tuple[Array, Array, Array]]:
        assert not (addresses % size).any(), "an address is not aligned"
        self.watch.touch(addresses, size, write)
        owner = np.searchsorted(self.starts, addresses, side="right") - 1
        spans = []
        for number in np.unique(owner).tolist():
            rows = owner == number
            places = (addresses[rows] - self.starts[number])[:, None] + np.arange(size)
            spans.append((self.parts[number], rows, places))
        return spans
