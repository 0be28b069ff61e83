"""HeRo's router kernels as compiled at published shapes, and the bytes that they read."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from methods.hero.kernels.router import router_step
from tests.compiled import Binary, compiled
from tests.interpreted import DEVICE, bytes_read
from tests.unit.methods.test_hero_kernels import make_router, packed_of, poisoned, stream

pytest.importorskip("triton", reason="Triton is not installed")


@pytest.fixture(scope="module")
def binaries() -> list[Binary]:
    return compiled(["hero"], [80, 90])


def test_nothing_spills_and_weights_come_in_128_bits(binaries: list[Binary]) -> None:
    assert {binary.kernel for binary in binaries} == {"hero_project", "hero_decide"}
    for binary in binaries:
        assert (binary.local, binary.spills) == (0, 0), binary
        # Of the second launch: a quarter of the registers' worth of each of its eight matrices.
        assert binary.loads_128 >= (50 if binary.kernel == "hero_decide" else 16), binary


def test_one_wave_holds_the_grid_of_one_token(binaries: list[Binary]) -> None:
    """512 rows in tiles of four and one program for the sums, on 108 multiprocessors or more."""
    for binary in binaries:
        assert binary.resident >= 2, binary


@pytest.mark.skipif(DEVICE == "cuda", reason="reads are counted by the interpreter")
@torch.no_grad()
def test_every_weight_is_read_once() -> None:
    router = make_router(width=64)
    packed = packed_of(router)
    weights = {
        name: weight
        for name, weight in packed._asdict().items()
        if isinstance(weight, Tensor) and name != "decays"
    }
    with bytes_read(weights) as read:
        router_step(1, stream(1, 64, 1)[1], packed, poisoned(1, packed), triton=True)
    assert read == {name: weight.nbytes for name, weight in weights.items()}
    added = sum(p.numel() for name, p in router.named_parameters() if "adapters" not in name)
    # The norm's weight is folded into W_hd, rho into the decays.
    assert sum(read.values()) == pytest.approx(4 * added, rel=0.005)
