"""The decode kernels as compiled at published shapes: no spills, wide loads, room for the grid."""

from __future__ import annotations

import pytest

from methods.core.model.shapes import SHAPES
from tests.compiled import Binary, compile_cases
from tests.kernel_cases.decode import NAMES, decode_step

pytest.importorskip("triton", reason="Triton is not installed")


@pytest.fixture(scope="module")
def single() -> list[Binary]:
    return compile_cases(["decode"])


@pytest.fixture(scope="module")
def batched() -> list[Binary]:
    return compile_cases(["decode_batch"], [80, 89, 90])


def test_one_row_spills_nothing_and_loads_128_bits(single: list[Binary]) -> None:
    assert len(single) == 2 * (len(NAMES) + 1) * 4
    for binary in single:
        assert (binary.local, binary.spills, binary.tensor_core) == (0, 0, 0), binary
        # Each thread loads 2 x 16 bytes of a tile of 4 rows x 512 columns, FFN and adapter apart.
        assert binary.loads_128 >= 4, binary
        # No barrier between the loads of one product.
        assert binary.waits <= 4, binary


def test_a_batch_spills_nothing_and_uses_tensor_cores(batched: list[Binary]) -> None:
    for binary in batched:
        assert (binary.local, binary.spills) == (0, 0), binary
        assert binary.tensor_core > 0, binary
        assert binary.loads_128 >= 8, binary


def test_the_programs_of_the_grid_are_resident_together(
    single: list[Binary], batched: list[Binary]
) -> None:
    from methods.kernels.decode_triton import tile_of

    for binary in single + batched:
        wanted = tile_of(1 if binary in single else 8, 2).resident
        assert binary.resident >= (wanted if binary.kernel == "decode_inner" else 2), binary


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("bypass", [0, 1])
def test_the_tiles_read_the_matrices_once(name: str, bypass: int) -> None:
    """Of the branch that runs; the loops' reads are counted elsewhere."""
    from methods.kernels.decode_triton import launches, tile_of

    inner, outer = (launch.arguments for launch in launches(decode_step(name, 1)))
    width, ffn, narrow, _ = inner["sizes"]
    rows = tile_of(1, 2).rows
    first = narrow if bypass else ffn
    matrices = 1 if bypass else 2
    read = (
        matrices * -(-first // rows) * rows * width + -(-width // outer["tile"].rows) * rows * first
    )
    assert width == SHAPES[name]["hidden_size"]
    assert read == pytest.approx(2 * width * narrow if bypass else 3 * width * ffn, rel=0.005)
