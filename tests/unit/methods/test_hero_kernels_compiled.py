"""HeRo's router kernels as compiled at published shapes, and the bytes that they read."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from methods.kernels.hero.router import project, router_step
from tests.compiled import Binary, compile_cases
from tests.interpreted import DEVICE, bytes_read
from tests.unit.methods.test_hero_kernels import make_router, packed_of, poisoned, stream, up_to

pytest.importorskip("triton", reason="Triton is not installed")


@pytest.fixture(scope="module")
def binaries() -> list[Binary]:
    return compile_cases(["hero"], [80, 90])


# Of the second launches: a quarter of the registers' worth of the eight matrices of a decode step.
# Streams of 16 bits come eight at a time to each of 128 threads.
LOADS = {
    "hero_project": 16,
    "hero_decide": 50,
    "hero_prompt": 80,
    "hero_sums": 3,
    "hero_gradients": 5,
}


def test_nothing_spills_and_weights_come_in_128_bits(binaries: list[Binary]) -> None:
    assert {binary.kernel for binary in binaries} == set(LOADS)
    for binary in binaries:
        assert (binary.local, binary.spills) == (0, 0), binary
        assert binary.loads_128 >= LOADS[binary.kernel], binary
        assert bool(binary.tensor_core) == (binary.kernel == "hero_prompt"), binary


def test_a_multiprocessor_holds_two_programs(binaries: list[Binary]) -> None:
    """One wave for one token: 512 rows in tiles of four, and the sums, on 108 of them or more.

    Of a prompt one program waits for its streams while the other multiplies. A step decides each of
    at most 16 tokens on a multiprocessor of its own, with all registers for weights.
    """
    for binary in binaries:
        assert binary.resident >= (1 if binary.kernel == "hero_decide" else 2), binary


def test_one_token_waits_for_memory_a_few_times(binaries: list[Binary]) -> None:
    """All of a tile at once; the matrices of a decision as far as registers hold them."""
    most = {"hero_project": 2, "hero_decide": 5}
    single = [binary for binary in binaries if "batch 1" in binary.shape]
    assert {binary.kernel for binary in single} == set(most)
    for binary in single:
        assert binary.waits <= most[binary.kernel], binary


def test_a_dependent_launch_reads_its_weights_before_it_waits(binaries: list[Binary]) -> None:
    for binary in binaries:
        dependent = binary.kernel == "hero_decide" and binary.target >= 90
        assert binary.early >= 50 if dependent else binary.early == 0, binary


@pytest.mark.skipif(DEVICE == "cuda", reason="reads are counted by the interpreter")
@torch.no_grad()
def test_every_weight_is_read_once() -> None:
    router = make_router(width=64)
    packed = packed_of(router)
    weights = {
        name: weight
        for name, weight in packed._asdict().items()
        if isinstance(weight, Tensor) and name not in ("decays", "parts")
    }
    with bytes_read(weights) as read:
        streams = up_to(1, stream(1, 64, 1))
        router_step(1, streams, packed, poisoned(1, packed), triton=True)
    assert read == {name: weight.nbytes for name, weight in weights.items()}
    added = sum(p.numel() for name, p in router.named_parameters() if "adapters" not in name)
    # The norm's weight is merged into W_hd, rho into the decays.
    assert sum(read.values()) == pytest.approx(4 * added, rel=0.005)


@pytest.mark.skipif(DEVICE == "cuda", reason="reads are counted by the interpreter")
@pytest.mark.parametrize("index", [0, 1, 3])
@torch.no_grad()
def test_a_prompt_reads_each_stream_once(index: int) -> None:
    from methods.kernels.hero.prompt_triton import prompt_launch

    packed = packed_of(make_router(width=320))
    streams = stream(32, 320, 2, torch.bfloat16)
    space = poisoned(32, packed)
    for earlier in range(index):
        router_step(earlier, up_to(earlier, streams), packed, space, triton=True)
    met = up_to(index, streams)
    projected = project(met[-1], packed)
    tensors = {"projected": projected} | {str(n): each for n, each in enumerate(met)}
    with bytes_read(tensors) as read:
        prompt_launch(index, met, projected, packed, space, 0.5).run()
    assert read == {name: each.nbytes for name, each in tensors.items()}
