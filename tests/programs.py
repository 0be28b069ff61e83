"""Kernels under Triton's interpreter, checked for what a GPU would not forgive.

On a GPU the programs of a launch run in any order and many at once. The interpreter runs them one
by one, from the first to the last, and lets them read any address. :func:`watch` makes each launch
of a test run its programs in an order drawn anew, and fails it where a program touches a byte
outside the launch's tensors, or one that another program writes.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor
from triton.runtime import interpreter

from methods.kernels.launch import Launch
from tests.interpreted import touched

Addresses = NDArray[np.int64]
BUILDER = interpreter.InterpreterBuilder


class Watch:
    """What the programs of one launch read and write.

    Args:
        tensors: Arguments of the launch.
        order: The program (an index into the grid) that runs in each turn.
    """

    def __init__(self, tensors: list[Tensor], order: Addresses) -> None:
        spans = sorted((t.data_ptr(), t.data_ptr() + _span(t)) for t in tensors if t.numel())
        self.starts, ends = np.array(spans).T
        # A tensor may lie within another: of those that begin before, the one that ends last.
        self.ends = np.maximum.accumulate(ends)
        self.order, self.program = order, 0
        self.read: list[tuple[int, Addresses]] = []
        self.written: list[tuple[int, Addresses]] = []

    def place(self, turn: int) -> int:
        """The program that runs in a turn, from now on the current one."""
        self.program = int(self.order[turn])
        return self.program

    def touch(self, addresses: NDArray[Any], size: int, write: bool) -> None:
        """Note what the current program reads or writes, ``size`` bytes at each address.

        Raises:
            IndexError: Some lie outside all tensors.
        """
        places = np.unique(addresses.astype(np.int64))
        before = np.searchsorted(self.starts, places, side="right") - 1
        if (outside := (before < 0) | (places + size > self.ends[before])).any():
            raise IndexError(f"program {self.program}: {outside.sum()} places outside all tensors")
        bytes_of = (places[:, None] + np.arange(size)).ravel()
        (self.written if write else self.read).append((self.program, bytes_of))

    def check(self) -> None:
        """No byte that a program writes is another's.

        Raises:
            AssertionError: One is.
        """
        if not self.written:
            return
        programs, places = _flat(self.written)
        pairs = np.unique(np.stack([places, programs]), axis=1)
        owned, first, writers = np.unique(pairs[0], return_index=True, return_counts=True)
        assert writers.max() == 1, f"{(writers > 1).sum()} bytes are written by several programs"
        owners = pairs[1][first]
        readers, places = _flat(self.read)
        where = np.minimum(np.searchsorted(owned, places), len(owned) - 1)
        foreign = (owned[where] == places) & (owners[where] != readers)
        assert not foreign.any(), f"{foreign.sum()} bytes are read while another writes them"


def watch() -> None:
    """Watch every launch of this process from now on."""
    current: list[Watch] = []
    load, store, place = (
        getattr(BUILDER, name)
        for name in ("create_masked_load", "create_masked_store", "set_grid_idx")
    )
    run, rng = Launch.run, np.random.default_rng(0)

    def watched_load(self: Any, pointers: Any, mask: Any, *rest: Any) -> Any:
        for launch in current:
            launch.touch(*touched(pointers, mask), write=False)
        return load(self, pointers, mask, *rest)

    def watched_store(self: Any, pointers: Any, value: Any, mask: Any, *rest: Any) -> Any:
        for launch in current:
            launch.touch(*touched(pointers, mask), write=True)
        return store(self, pointers, value, mask, *rest)

    def other_place(self: Any, *turn: int) -> None:
        grid = self.grid_dim
        for launch in current:
            number = launch.place(int(np.ravel_multi_index(turn, grid)))
            turn = tuple(map(int, np.unravel_index(number, grid)))
        place(self, *turn)

    def watched_run(self: Launch) -> None:
        current.append(Watch(self.tensors(), rng.permutation(prod(self.grid))))
        try:
            run(self)
            current[0].check()
        finally:
            current.clear()

    BUILDER.create_masked_load = watched_load
    BUILDER.create_masked_store = watched_store
    BUILDER.set_grid_idx = other_place
    Launch.run = watched_run  # type: ignore[method-assign]


def _span(tensor: Tensor) -> int:
    """Bytes from a tensor's first number to behind its last one."""
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    return (sum((size - 1) * stride for size, stride in steps) + 1) * tensor.element_size()


def _flat(touched: list[tuple[int, Addresses]]) -> tuple[Addresses, Addresses]:
    """Programs and addresses, one of each per byte."""
    if not touched:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    programs = [np.full(len(places), program) for program, places in touched]
    return np.concatenate(programs), np.concatenate([places for _, places in touched])
