"""What is watched in a launch is noticed, each on a kernel that does it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from methods.kernels.launch import Launch
from tests.interpreted import prepare

triton = pytest.importorskip("triton")
if torch.cuda.is_available():
    pytest.skip("kernels run on the GPU, not under the interpreter", allow_module_level=True)
tl = triton.language
prepare()


@triton.jit
def shift(source: tl.tensor, target: tl.tensor, step: tl.constexpr, size: tl.constexpr) -> None:
    """Copy ``size`` numbers per program from ``step`` places behind."""
    places = tl.program_id(0) * size + tl.arange(0, size)
    tl.store(target + places, tl.load(source + places + step))


@triton.jit
def overlap(target: tl.tensor, size: tl.constexpr) -> None:
    """Write one number more than a program's own ``size // 2``."""
    places = tl.program_id(0) * (size // 2) + tl.arange(0, size)
    tl.store(target + places, 1.0, mask=tl.arange(0, size) <= size // 2)


def launch(kernel: Any, **arguments: Any) -> Launch:
    return Launch(kernel, (4,), arguments | {"size": 8}, warps=1)


def test_programs_of_their_own_pass_in_any_order() -> None:
    source, target = torch.arange(32.0), torch.zeros(32)
    launch(shift, source=source, target=target, step=0).run()
    assert torch.equal(source, target)


def test_a_byte_that_two_programs_write_is_noticed() -> None:
    with pytest.raises(AssertionError, match="12 bytes are written by several programs"):
        launch(overlap, target=torch.zeros(17)).run()


def test_a_byte_that_another_program_writes_is_noticed() -> None:
    both = torch.zeros(40)
    with pytest.raises(AssertionError, match="12 bytes are read while another writes them"):
        launch(shift, source=both, target=both, step=1).run()


def test_a_place_outside_all_tensors_is_noticed() -> None:
    with pytest.raises(Exception, match="1 places outside all tensors"):
        launch(shift, source=torch.zeros(32), target=torch.zeros(32), step=1).run()
