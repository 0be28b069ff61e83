"""The grouped kernels as binaries for GPUs: no spill, tensor cores, wide loads, occupancy."""

from __future__ import annotations

import pytest
import torch

from methods.core.model.shapes import SHAPES

pytest.importorskip("triton", reason="compiling needs Triton, which is not installed")
from methods.kernels.grouped_launch import PLANS
from tests.compiled import SHARED, TARGETS, Binary, compile_cases
from tests.kernel_cases.grouped import TRUE_SHAPES, recorded

EVERY = 11


@pytest.fixture(scope="module")
def binaries() -> list[Binary]:
    """Compiled once for all shapes, which differ in numbers that are no constants."""
    return compile_cases(["grouped"], TARGETS)


def of(binaries: list[Binary], target: int) -> list[Binary]:
    found = [binary for binary in binaries if binary.target == target]
    assert len(found) == EVERY
    return found


@pytest.mark.parametrize("target", TARGETS)
def test_nothing_spills(binaries: list[Binary], target: int) -> None:
    assert {
        b.kernel: (b.local, b.spills) for b in of(binaries, target) if b.local or b.spills
    } == {}


@pytest.mark.parametrize("target", TARGETS)
def test_products_use_tensor_cores_and_loads_of_128_bits(
    binaries: list[Binary], target: int
) -> None:
    for binary in of(binaries, target):
        assert binary.tensor_core >= 4, binary
        assert binary.loads_128 >= 8, binary


@pytest.mark.parametrize("target", TARGETS)
def test_as_many_programs_fit_as_the_grid_has(binaries: list[Binary], target: int) -> None:
    plan = PLANS[target // 10, target % 10]
    for binary in of(binaries, target):
        tiles = plan.pair if binary.kernel == "expand_ffn" else plan.single
        tiles = plan.back if binary.kernel.startswith("expand_backward") else tiles
        tiles = plan.slim if binary.shape.endswith(" slim") else tiles
        assert binary.shared <= SHARED[target] - 1024
        assert binary.resident >= tiles.resident, binary


def test_true_shapes_share_their_binaries() -> None:
    """A width is a number divisible by 16 to the compiler: one shape stands for all."""
    for target in TARGETS:
        launched = [recorded(shape, target, torch.bfloat16) for shape in TRUE_SHAPES]
        for cases in zip(*launched, strict=True):
            assert len({_constants(case.arguments) for case in cases}) == 1
    for shape in TRUE_SHAPES:
        sizes = SHAPES[shape]
        assert not (sizes["hidden_size"] % 16 or sizes["intermediate_size"] % 16)


def _constants(arguments: object) -> str:
    assert isinstance(arguments, dict)
    plain = {k: v for k, v in arguments.items() if k not in ("D", "F")}
    return str({k: v.dtype if isinstance(v, torch.Tensor) else v for k, v in plain.items()})
