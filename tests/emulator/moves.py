"""Loads, stores, copies, shuffles, jumps."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from tests.emulator.program import BITS, LANES, Array, Program, listed

Words = Sequence[str]


def width_of(words: Words) -> tuple[int, int]:
    """How many numbers an access moves, and the bits of each."""
    vector = re.fullmatch(r"v(\d)", words[-2])
    return int(vector[1]) if vector else 1, int(words[-1][1:])


def load(program: Program, words: Words, operands: Words, mask: Array | None) -> None:
    """``ld``, of an argument, a tensor or shared memory."""
    if words[1] == "param":
        number = int(re.findall(r"_param_(\d+)", operands[1])[0])
        value = program.arguments[number] if number < len(program.arguments) else 0
        program.put(operands[0], np.full(program.code.threads, value, np.uint64), mask)
        return
    count, bits = width_of(words)
    size = count * bits // 8
    threads = _threads(program, mask)
    data = np.zeros((program.code.threads, size), np.uint8)
    if "global" in words:
        places = program.addresses(operands[1], 64)[threads]
        data[threads] = program.memory.load(places, size)
    else:
        places = program.addresses(operands[1], 32)[threads]
        data[threads] = program.shared.load(places, size, threads)
    for register, values in zip(listed(operands[0]), data.view(BITS[bits]).T, strict=True):
        program.put(register, values.copy(), mask)


def store(program: Program, words: Words, operands: Words, mask: Array | None) -> None:
    """``st``, to a tensor or shared memory."""
    _, bits = width_of(words)
    values = [program.bits(register, bits) for register in listed(operands[1])]
    threads = _threads(program, mask)
    data = np.stack(values, axis=1).view(np.uint8)[threads]
    if "global" in words:
        program.memory.store(program.addresses(operands[0], 64)[threads], data)
    else:
        program.shared.store(program.addresses(operands[0], 32)[threads], data, threads)


def copy(program: Program, words: Words, operands: Words, mask: Array | None) -> None:
    """``cp.async``: to shared memory, there once its group has been waited for."""
    if "commit_group" in words:
        program.copies.append([])
        return
    if "wait_group" in words:
        ready = len(program.copies) - 1 - int(operands[0], 0)
        for group in program.copies[: max(ready, 0)]:
            for places, data, threads in group:
                program.shared.expect(places, data.shape[1], -1)
                program.shared.store(places, data, threads)
        program.copies = program.copies[max(ready, 0) :]
        return
    threads, size = _threads(program, mask), int(operands[2], 0)
    places = program.addresses(operands[0], 32)[threads]
    data = np.zeros((len(threads), size), np.uint8)
    # Of the bytes so many are read; the others are zero.
    real = np.full(len(threads), size)
    if len(operands) > 3:
        real = program.bits(operands[3], 32)[threads].astype(np.int64)
    assert set(real.tolist()) <= {0, size}
    sources = program.addresses(operands[1], 64)[threads]
    data[real > 0] = program.memory.load(sources[real > 0], size)
    program.shared.expect(places, size, 1)
    program.copies[-1].append((places, data, threads))


def load_matrices(program: Program, words: Words, operands: Words, mask: Array | None) -> None:
    """``ldmatrix``: 8x8 matrices of 16 bits, a row at the address of each of eight lanes."""
    addresses = program.addresses(operands[1], 32).reshape(-1, LANES)
    lanes = np.arange(program.code.threads).reshape(-1, LANES)
    for number, register in enumerate(listed(operands[0])):
        rows = slice(8 * number, 8 * number + 8)
        # All lanes of a warp read each row.
        data = program.shared.load(addresses[:, rows].ravel(), 16, lanes[:, rows].ravel())
        matrices = data.view(np.uint16).reshape(-1, 8, 8)
        if "trans" in words:
            matrices = np.ascontiguousarray(matrices.swapaxes(1, 2))
        program.put(register, matrices.view(np.uint32).reshape(-1), mask)


def store_matrices(program: Program, words: Words, operands: Words, mask: Array | None) -> None:
    """``stmatrix``, the reverse of ``ldmatrix``."""
    assert mask is None
    addresses = program.addresses(operands[0], 32).reshape(-1, LANES)
    lanes = np.arange(program.code.threads).reshape(-1, LANES)
    for number, register in enumerate(listed(operands[1])):
        rows = slice(8 * number, 8 * number + 8)
        values = np.ascontiguousarray(program.bits(register, 32))
        matrices = values.view(np.uint16).reshape(-1, 8, 8)
        if "trans" in words:
            matrices = matrices.swapaxes(1, 2)
        data = np.ascontiguousarray(matrices).reshape(-1, 8).view(np.uint8)
        program.shared.store(addresses[:, rows].ravel(), data, lanes[:, rows].ravel())


def shuffle(program: Program, words: Words, operands: Words, mask: Array | None) -> None:
    """``shfl``: a register of another lane of the warp."""
    values, others = (program.bits(each, 32).reshape(-1, LANES) for each in operands[1:3])
    lanes = np.arange(LANES)
    source = lanes ^ others.astype(np.int64) if words[2] == "bfly" else others.astype(np.int64)
    assert words[2] in ("bfly", "idx")
    program.put(operands[0], np.take_along_axis(values, source, axis=1).reshape(-1), mask)


def move(program: Program, words: Words, operands: Words, mask: Array | None) -> None:
    """``mov``: a register, or several that are parts of one."""
    target, source = operands
    if words[-1] == "pred":
        program.put(target, program.flags(source), mask)
        return
    bits = int(words[-1][1:])
    values: Any
    if source.startswith("{"):
        parts = listed(source)
        values = np.stack([program.bits(part, bits // len(parts)) for part in parts], axis=1)
        program.put(target, values.view(BITS[bits])[:, 0].copy(), mask)
    elif target.startswith("{"):
        names = listed(target)
        values = np.ascontiguousarray(program.bits(source, bits))
        halves = values.view(BITS[bits // len(names)]).reshape(-1, len(names))
        for name, part in zip(names, halves.T, strict=True):
            program.put(name, part.copy(), mask)
    else:
        program.put(target, program.bits(source, bits), mask)


def meet(program: Program, words: Words, operands: Words, mask: Array | None) -> None:
    """``bar.sync``."""
    assert mask is None or mask.all()
    program.shared.barrier()


def jump(program: Program, words: Words, operands: Words, mask: Array | None) -> None:
    """``bra``; all threads of a program go the same way."""
    if mask is None or mask.all():
        program.next = program.code.labels[operands[0]]
    else:
        assert not mask.any(), "threads of a program go different ways"


def end(program: Program, words: Words, operands: Words, mask: Array | None) -> None:
    """``ret``."""
    assert mask is None or mask.all()
    program.next = len(program.code.instructions)


def nothing(program: Program, words: Words, operands: Words, mask: Array | None) -> None:
    """What says only how the cache or the next launch should behave."""


def _threads(program: Program, mask: Array | None) -> Array:
    return np.arange(program.code.threads) if mask is None else np.flatnonzero(mask)


MOVES: dict[str, Any] = {
    "ld": load, "st": store, "cp": copy, "ldmatrix": load_matrices, "stmatrix": store_matrices,
    "shfl": shuffle, "mov": move, "bar": meet, "bra": jump, "ret": end,
    "createpolicy": nothing, "griddepcontrol": nothing,
}  # fmt: skip
