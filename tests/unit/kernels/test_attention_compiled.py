"""The attention kernels compiled at published shapes: no spills, wide loads, room for the grid."""

from __future__ import annotations

import pytest

from tests.compiled import TARGETS, Binary, compile_cases
from tests.kernel_cases.attention import NAMES

pytest.importorskip("triton", reason="Triton is not installed")

# The least of 128-bit loads: of a tile of weights and what it multiplies, of a turn of keys and
# values, of the partial sums of a head where several shares hold them.
LOADS = {"project": 4, "read": 8, "merge": 1, "outer": 3}


@pytest.fixture(scope="module")
def binaries() -> list[Binary]:
    made = compile_cases(["attention"])
    assert len(made) == 4 * (len(NAMES) + 3) * len(TARGETS)
    return made


def part(binary: Binary) -> str:
    return binary.kernel.removeprefix("attention_")


def test_nothing_spills(binaries: list[Binary]) -> None:
    for binary in binaries:
        assert (binary.local, binary.spills) == (0, 0), binary


def test_loads_of_128_bits(binaries: list[Binary]) -> None:
    for binary in binaries:
        # 16 rows of a model without grouped heads are enough programs for one share per head.
        if (part(binary), binary.shape) != ("merge", "llama2_13b batch 16"):
            assert binary.loads_128 >= LOADS[part(binary)], binary


def test_products_of_many_rows_use_tensor_cores(binaries: list[Binary]) -> None:
    for binary in binaries:
        many = part(binary) in ("project", "outer") and "batch 1" not in binary.shape.split(" e")[0]
        if part(binary) == "read" or many:
            assert binary.tensor_core > 0, binary


def test_the_programs_of_the_grid_are_resident_together(binaries: list[Binary]) -> None:
    from methods.kernels.decode_triton import tile_of

    for binary in binaries:
        batch = int(binary.shape.split()[2])
        wanted = tile_of(batch, 2).resident if part(binary) == "project" else 2
        assert binary.resident >= wanted, binary
