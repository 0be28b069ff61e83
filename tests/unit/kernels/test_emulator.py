"""The emulator of compiled kernels: two kernels by hand, and what it refuses."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")
from tests.emulator.code import parse
from tests.emulator.memory import Memory
from tests.emulator.program import Program
from tests.emulator.run import run_program
from tests.programs import Watch

# Each of 64 threads writes its number, and hands on that of the same lane of the other warp.
EXCHANGE = """
.visible .entry exchange(.param .u64 exchange_param_0)
.reqntid 64
{
    .reg .b32 %r<9>;
    mov.u32 %r1, %tid.x;
    shl.b32 %r2, %r1, 2;
    ld.param.b64 %rd1, [exchange_param_0];
    mad.wide.u32 %rd2, %r1, 4, %rd1;
    st.shared.b32 [%r2], %r1;
    bar.sync 0;
    xor.b32 %r3, %r2, 128;
    ld.shared.b32 %r4, [%r3 + 0];
    setp.lt.u32 %p1, %r1, 60;
    @%p1 st.global.b32 [ %rd2 + 0 ], { %r4 };
    ret;
}
"""
# The first 16 bytes of a tensor by way of shared memory.
COPY = """
.visible .entry copy(.param .u64 copy_param_0)
.reqntid 32
{
    mov.u32 %r1, %tid.x;
    shl.b32 %r2, %r1, 4;
    ld.param.b64 %rd1, [copy_param_0];
    mad.wide.u32 %rd2, %r1, 16, %rd1;
    setp.eq.b32 %p1, %r1, 0;
    @%p1 cp.async.cg.shared.global [ %r2 + 0 ], [ %rd2 + 0 ], 0x10;
    cp.async.commit_group;
    cp.async.wait_group 0;
    @%p1 ld.shared.v4.b32 {%r3, %r4, %r5, %r6}, [%r2];
    @%p1 st.global.v4.b32 [ %rd2 + 16 ], {%r6, %r5, %r4, %r3};
}
"""


def run(ptx: str, tensor: torch.Tensor, shared: int = 256) -> None:
    memory = Memory([tensor], Watch([tensor], np.zeros(1, np.int64)))
    code = parse(ptx, shared)
    run_program(Program(code, [tensor.data_ptr()], (0, 0, 0), (1, 1, 1), memory))


def test_threads_exchange_their_numbers() -> None:
    out = torch.full((64,), -1, dtype=torch.int32)
    run(EXCHANGE, out)
    assert out.tolist() == [*range(32, 64), *range(28), -1, -1, -1, -1]


def test_a_copy_is_there_once_it_was_waited_for() -> None:
    both = torch.tensor([1, 2, 3, 4, 0, 0, 0, 0], dtype=torch.int32)
    run(COPY, both)
    assert both.tolist() == [1, 2, 3, 4, 4, 3, 2, 1]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda ptx: ptx.replace("bar.sync 0;", ""), "read without a barrier after the write"),
        (lambda ptx: ptx.replace("[%r3 + 0]", "[%r3 + 2]"), "are not aligned"),
        (lambda ptx: ptx.replace("[%r3 + 0]", "[%r3 + 256]"), "are outside shared memory"),
        (lambda ptx: ptx.replace("%r1, 60", "%r1, 99"), "2 places outside all tensors"),
        (lambda ptx: ptx.replace("ret;", "$L1:\n @%p1 bra $L1;"), "go different ways"),
    ],
)
def test_what_a_gpu_would_not_forgive_is_noticed(change: Callable[[str], str], told: str) -> None:
    changed = change(EXCHANGE)
    assert changed != EXCHANGE
    with pytest.raises((AssertionError, IndexError), match=told):
        run(changed, torch.zeros(62 if "99" in changed else 64, dtype=torch.int32))


def test_a_read_before_the_copy_ends_is_noticed() -> None:
    with pytest.raises(AssertionError, match="16 bytes or places are read while a copy fills"):
        run(COPY.replace("wait_group 0", "wait_group 1"), torch.zeros(8, dtype=torch.int32))
