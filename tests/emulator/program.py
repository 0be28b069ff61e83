"""One program of a launch: registers, shared memory, and what may go wrong there."""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.emulator.code import Code
from tests.emulator.memory import Memory

Array = NDArray[Any]
BITS = {8: np.uint8, 16: np.uint16, 32: np.uint32, 64: np.uint64}
LANES = 32


class Shared:
    """Shared memory, whose bytes must be handed from warp to warp across a barrier.

    Args:
        size: Bytes.
        threads: Of the program.
    """

    def __init__(self, size: int, threads: int) -> None:
        self.data = np.zeros(size, np.uint8)
        self.warps = 1 << (np.arange(threads) // LANES)
        # Since the last barrier, as a bit per warp; bytes that a copy still fills.
        self.written, self.read = np.zeros((2, size), np.int64)
        self.pending = np.zeros(size, np.int64)

    def barrier(self) -> None:
        """All warps meet."""
        self.written[:] = self.read[:] = 0

    def load(self, places: Array, size: int, threads: Array) -> Array:
        """The bytes (N, size) from ``places`` (N,) on, for ``threads`` (N,)."""
        span, warps = self._span(places, size), self.warps[threads][:, None]
        self._refuse((self.pending[span] > 0), "read while a copy fills them")
        self._refuse((self.written[span] & ~warps) != 0, "read without a barrier after the write")
        np.bitwise_or.at(self.read, span, np.broadcast_to(warps, span.shape))
        return self.data[span]

    def store(self, places: Array, values: Array, threads: Array) -> None:
        """Write the bytes ``values`` (N, size)."""
        span, warps = self._span(places, values.shape[1]), self.warps[threads][:, None]
        others = (self.written[span] | self.read[span]) & ~warps
        self._refuse(others != 0, "written without a barrier after another warp's access")
        np.bitwise_or.at(self.written, span, np.broadcast_to(warps, span.shape))
        self.data[span] = values

    def expect(self, places: Array, size: int, number: int) -> None:
        """Count copies on their way to these bytes: one more (1) or less (-1)."""
        np.add.at(self.pending, self._span(places, size), number)

    def _span(self, places: Array, size: int) -> Array:
        span = places.astype(np.int64)[:, None] + np.arange(size)
        self._refuse((places % min(size, 16)) != 0, "not aligned")
        self._refuse((span < 0) | (span >= len(self.data)), "outside shared memory")
        return span

    @staticmethod
    def _refuse(wrong: Array, how: str) -> None:
        assert not wrong.any(), f"{int(wrong.sum())} bytes or places are {how}"


class Program:
    """The state of a program.

    Args:
        code: The kernel.
        arguments: Each as the bits of its parameter.
        place: The program's indices in the grid.
        grid: The grid.
        memory: The tensors of the launch.
    """

    def __init__(
        self,
        code: Code,
        arguments: Sequence[int],
        place: Sequence[int],
        grid: Sequence[int],
        memory: Memory,
    ) -> None:
        self.code, self.arguments, self.memory = code, arguments, memory
        self.shared = Shared(code.shared, code.threads)
        self.registers: dict[str, Array] = {}
        self.fixed: dict[str, Any] = {"%tid.x": np.arange(code.threads), "global_smem": 0}
        for axis, index, size in zip("xyz", place, grid, strict=True):
            self.fixed |= {f"%ctaid.{axis}": index, f"%nctaid.{axis}": size}
        # Groups of asynchronous copies: place in shared memory, bytes, threads.
        self.copies: list[list[tuple[Array, Array, Array]]] = [[]]
        self.next = 0

    def bits(self, operand: str, size: int) -> Array:
        """A register or a constant as ``size`` bits of each thread."""
        if operand in self.registers:
            return self.registers[operand].astype(BITS[size], copy=False)
        if operand in self.fixed:
            value = self.fixed[operand]
        elif operand.startswith(("0f", "0F")):
            value = int(operand[2:], 16)
        else:
            value = int(operand, 0) & (2**size - 1)
        return np.broadcast_to(np.asarray(value, BITS[size]), self.code.threads)

    def flags(self, operand: str) -> Array:
        """A predicate of each thread."""
        if operand.startswith("!"):
            return ~self.flags(operand[1:])
        if operand in self.registers:
            return self.registers[operand]
        return np.full(self.code.threads, int(operand, 0) != 0)

    def put(self, register: str, values: Array, mask: Array | None) -> None:
        """Set a register, in the threads of ``mask``."""
        if mask is not None:
            old = self.registers.get(register, np.zeros_like(values))
            values = np.where(mask, values, old.astype(values.dtype, copy=False))
        self.registers[register] = values

    def addresses(self, operand: str, size: int) -> Array:
        """What ``[register + offset]`` points at, int64."""
        base, offset = re.findall(r"\[\s*([%\w]+)\s*(?:\+\s*(-?\w+))?\s*\]", operand)[0]
        return self.bits(base, size).astype(np.int64) + int(offset or "0", 0)


def bits_of(value: Any) -> int:
    """An argument that is not a tensor, as the bits of its parameter."""
    if isinstance(value, float):
        return int(struct.unpack("<I", struct.pack("<f", value))[0])
    return int(value) & 0xFFFFFFFF


def listed(operand: str) -> list[str]:
    """The registers of an operand in braces, or the only one."""
    return [part.strip() for part in operand.strip("{} ").split(",")]
