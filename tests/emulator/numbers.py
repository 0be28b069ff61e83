"""Arithmetic, conversions, and products on tensor cores."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from tests.emulator.program import BITS, LANES, Array, Program, listed

Words = Sequence[str]
FLOATS = {16: np.float16, 32: np.float32}
SIGNED = {8: np.int8, 16: np.int16, 32: np.int32, 64: np.int64}
BINARY = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "min": np.fmin,
    "max": np.fmax, "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor,
}  # fmt: skip
UNARY = {
    "neg": np.negative, "not": np.invert, "sqrt": np.sqrt, "ex2": np.exp2,
    "rsqrt": lambda values: 1 / np.sqrt(values),
}  # fmt: skip
COMPARE = {
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater,
    "ge": np.greater_equal, "num": lambda left, right: ~(np.isnan(left) | np.isnan(right)),
}  # fmt: skip


def numbers(program: Program, operand: str, kind: str) -> Array:
    """An operand as numbers of a type such as ``s32``."""
    if kind == "pred":
        return program.flags(operand)
    bits = int(kind[1:])
    values = program.bits(operand, bits)
    if kind[0] == "f":
        return values.view(FLOATS[bits])
    return values.view(SIGNED[bits]) if kind[0] == "s" else values


def put(program: Program, register: str, values: Array, mask: Array | None) -> None:
    """Set a register to the bits of ``values``."""
    if values.dtype != np.bool_:
        values = np.ascontiguousarray(values).view(BITS[8 * values.dtype.itemsize])
    program.put(register, values, mask)


def compute(program: Program, words: Words, operands: Words, mask: Array | None) -> None:
    """One or two operands of one type, a result of the same."""
    values = [numbers(program, operand, words[-1]) for operand in operands[1:]]
    if "wide" in words:
        wider = (SIGNED if words[-1][0] == "s" else BITS)[16 * values[0].dtype.itemsize]
        values = [value.astype(wider) for value in values]
    function: Any = (UNARY if len(values) == 1 else BINARY)[words[0]]
    put(program, operands[0], function(*values), mask)


def add_product(program: Program, words: Words, operands: Words, mask: Array | None) -> None:
    """``mad`` and ``fma``: a b + c, of floats rounded once."""
    kind, wide = words[-1], words[-1]
    if "wide" in words:
        wide = kind[0] + str(2 * int(kind[1:]))
    left, right = (numbers(program, operand, kind) for operand in operands[1:3])
    other = numbers(program, operands[3], wide)
    exact = np.float64 if kind == "f32" else other.dtype
    result = left.astype(exact) * right.astype(exact) + other.astype(exact)
    put(program, operands[0], result.astype(other.dtype), mask)


def shift(program: Program, words: Words, operands: Words, mask: Array | None) -> None:
    """``shl``, ``shr``."""
    values = numbers(program, operands[1], words[-1])
    count = program.bits(operands[2], 32).astype(values.dtype)
    put(program, operands[0], values << count if words[0] == "shl" else values >> count, mask)


def extract(program: Program, words: Words, operands: Words, mask: Array | None) -> None:
    """``bfe``: some bits of a number, the first of which is its sign if it has one."""
    values = numbers(program, operands[1], words[-1])
    first, count = (int(operand, 0) for operand in operands[2:])
    above = 8 * values.dtype.itemsize - first - count
    put(program, operands[0], (values << above) >> (above + first), mask)


def permute(program: Program, words: Words, operands: Words, mask: Array | None) -> None:
    """``prmt``: four of the eight bytes of two registers, as the digits of the third say."""
    pair = [np.ascontiguousarray(program.bits(each, 32)).view(np.uint8) for each in operands[1:3]]
    data = np.concatenate([part.reshape(-1, 4) for part in pair], axis=1)
    digits = program.bits(operands[3], 32)[:, None] >> np.arange(0, 16, 4, dtype=np.uint32)
    chosen = (digits & 15).astype(np.int64)
    assert chosen.max() < 8, "the sign of a byte is not implemented"
    bytes_of = np.take_along_axis(data, chosen, axis=1)
    put(program, operands[0], np.ascontiguousarray(bytes_of).view(np.uint32)[:, 0], mask)


def compare(program: Program, words: Words, operands: Words, mask: Array | None) -> None:
    """``setp``."""
    values = [numbers(program, operand, words[-1]) for operand in operands[1:]]
    program.put(operands[0], COMPARE[words[1]](*values), mask)


def select(program: Program, words: Words, operands: Words, mask: Array | None) -> None:
    """``selp``: the first or the second, as a predicate says."""
    values = [numbers(program, operand, words[-1]) for operand in operands[1:3]]
    put(program, operands[0], np.where(program.flags(operands[3]), *values), mask)


def convert(program: Program, words: Words, operands: Words, mask: Array | None) -> None:
    """``cvt``; to ``bf16x2`` and ``f16x2`` two numbers, the first in the upper half."""
    to, source = [word for word in words if re.fullmatch(r"[subtf]+\d+(x2)?", word)][-2:]
    if to == "tf32":
        # Ten bits of mantissa, ties away from zero.
        rounded = program.bits(operands[1], 32) + np.uint32(0x1000)
        program.put(operands[0], rounded & np.uint32(0xFFFFE000), mask)
    elif to.endswith("x2"):
        upper, lower = (narrow(numbers(program, each, "f32"), to) for each in operands[1:3])
        program.put(operands[0], (upper.astype(np.uint32) << 16) | lower, mask)
    elif to in ("bf16", "f16"):
        program.put(operands[0], narrow(numbers(program, operands[1], "f32"), to), mask)
    elif source == "bf16":
        program.put(operands[0], program.bits(operands[1], 16).astype(np.uint32) << 16, mask)
    else:
        values, bits = numbers(program, operands[1], source), int(to[1:])
        kinds: Any = {"f": FLOATS, "s": SIGNED}
        put(program, operands[0], values.astype(kinds.get(to[0], BITS)[bits]), mask)


def narrow(values: Array, kind: str) -> Array:
    """Float32 as 16 bits of a float, rounded to the nearest, ties to even."""
    if kind.startswith("f16"):
        return values.astype(np.float16).view(np.uint16)
    bits = np.ascontiguousarray(values).view(np.uint32).astype(np.uint64)
    rounded = (bits + 0x7FFF + ((bits >> np.uint64(16)) & np.uint64(1))) >> np.uint64(16)
    return np.where(np.isnan(values), 0x7FC0, rounded).astype(np.uint16)


def multiply(program: Program, words: Words, operands: Words, mask: Array | None) -> None:
    """``mma``: of each warp a product of two matrices, added to a third (16, 8)."""
    result, left, right, added = map(listed, operands)
    group, pair = np.arange(LANES) >> 2, 2 * (np.arange(LANES) & 3)
    total = np.zeros((program.code.threads // LANES, 16, 8), np.float32)
    for number, register in enumerate(added):
        total[:, group + 8 * (number // 2), pair + number % 2] = _rows(program, register)
    a = np.zeros((len(total), 16, 16), np.float32)
    b = np.zeros((len(total), 16, 8), np.float32)
    if "m16n8k16" in words:
        for number, register in enumerate(left):
            for half, values in enumerate(_halves(program, register, words[-2])):
                a[:, group + 8 * (number % 2), pair + 8 * (number // 2) + half] = values
        for number, register in enumerate(right):
            for half, values in enumerate(_halves(program, register, words[-2])):
                b[:, pair + 8 * number + half, group] = values
    else:
        assert "m16n8k8" in words
        for number, register in enumerate(left):
            a[:, group + 8 * (number % 2), pair // 2 + 4 * (number // 2)] = _tf32(program, register)
        for number, register in enumerate(right):
            b[:, pair // 2 + 4 * number, group] = _tf32(program, register)
    total += a @ b
    for number, register in enumerate(result):
        values = total[:, group + 8 * (number // 2), pair + number % 2]
        put(program, register, values.reshape(-1), mask)


def _rows(program: Program, register: str) -> Array:
    return numbers(program, register, "f32").reshape(-1, LANES)


def _tf32(program: Program, register: str) -> Array:
    """Ten bits of mantissa; what else a register holds is cut off."""
    kept = program.bits(register, 32) & np.uint32(0xFFFFE000)
    return kept.view(np.float32).reshape(-1, LANES)


def _halves(program: Program, register: str, kind: str) -> list[Array]:
    """The two numbers of 16 bits in a register."""
    bits = np.ascontiguousarray(program.bits(register, 32)).view(np.uint16).reshape(-1, LANES, 2)
    if kind == "f16":
        return [
            half.view(np.float16).astype(np.float32)
            for half in np.moveaxis(bits.copy(), 2, 0).copy()
        ]
    return [(half.astype(np.uint32) << 16).view(np.float32) for half in np.moveaxis(bits, 2, 0)]


NUMBERS: dict[str, Any] = {
    **dict.fromkeys([*BINARY, *UNARY], compute),
    "mad": add_product, "fma": add_product, "shl": shift, "shr": shift, "bfe": extract,
    "prmt": permute, "setp": compare, "selp": select, "cvt": convert, "mma": multiply,
}  # fmt: skip
