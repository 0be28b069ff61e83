"""The multiplications that the grouped kernels do, counted, against the bounds of the suite."""

from __future__ import annotations

import math

import pytest
import torch

from methods.core.model.shapes import SHAPES
from methods.kernels import grouped
from tests.toys.grouped import Case, Sizes, make_case, products
from workflows.stats.bounds import Shape, prefill_flops, training_flops

pytest.importorskip("triton", reason="the kernels need Triton, which is not installed")
from methods.kernels import grouped_launch
from methods.kernels.grouped_launch import INTERPRETED, PLANS
from tests.kernel_cases.grouped import ADAPTER, TRUE_SHAPES

# A multiple of every tile of the interpreter, where nothing is padded but rows.
FITTING = Sizes(64, 64, 128, 64)
pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="counts in the interpreter")


def ffn_shape(sizes: Sizes) -> Shape:
    """A model of one routed FFN and nothing else."""
    ffn, adapter = 3 * sizes.width * sizes.ffn, 2 * sizes.width * sizes.adapter
    return Shape(sizes.width, 1, 0, ffn, 0, routed=1, adapter=adapter)


def with_executing(count: int) -> Case:
    return make_case(FITTING, "all")._replace(execute=torch.arange(FITTING.rows) < count)


@pytest.mark.parametrize("count", [0, 16, 32, 64])
def test_prefill_does_what_the_bound_says(count: int) -> None:
    with products() as operations, torch.no_grad():
        grouped.dispatch_kernels(*with_executing(count))
    bypass, scores = 1 - count / FITTING.rows, 2 * FITTING.width * FITTING.rows
    bound = prefill_flops(ffn_shape(FITTING), FITTING.rows, 1, bypass) - scores
    assert sum(operations) == pytest.approx(bound, rel=0.005)


@pytest.mark.parametrize("count", [0, 32, 64])
def test_a_training_step_does_what_the_bound_says(count: int) -> None:
    with products() as operations:
        grouped.dispatch_kernels(*with_executing(count)).sum().backward()
    bypass = 1 - count / FITTING.rows
    bound = FITTING.rows * training_flops(ffn_shape(FITTING), 0, bypass)
    assert sum(operations) == pytest.approx(bound, rel=0.005)


@pytest.mark.parametrize("count", [1, 17, 40])
def test_an_odd_count_costs_the_padding_of_the_last_tile(count: int) -> None:
    with products() as operations, torch.no_grad():
        grouped.dispatch_kernels(*with_executing(count))
    shape, height = ffn_shape(FITTING), INTERPRETED.single.rows
    padding = (-count % height) * shape.ffn + (-(FITTING.rows - count) % height) * shape.adapter
    bypass = 1 - count / FITTING.rows
    bound = 2 * FITTING.rows * shape.matrices(bypass)
    assert sum(operations) == pytest.approx(bound + 2 * padding, rel=0.005)


@pytest.mark.parametrize("name", TRUE_SHAPES)
def test_true_shapes_fill_their_tiles(name: str) -> None:
    """Nothing but rows is padded, on any device."""
    sizes = SHAPES[name]
    for plan in PLANS.values():
        for tiles in plan:
            for width in (sizes["hidden_size"], sizes["intermediate_size"], ADAPTER):
                assert width % math.lcm(tiles.columns, tiles.inner) == 0


def test_a_device_takes_the_plan_of_the_newest_older_one() -> None:
    found = {
        capability: grouped_launch.plan_for(capability, torch.bfloat16)
        for capability in [(8, 0), (8, 6), (8, 9), (9, 0), (10, 3), (12, 0)]
    }
    assert found[8, 0] is PLANS[8, 0] and found[9, 0] is PLANS[9, 0]
    # Consumer chips have the small shared memory of 8.9, whatever their number.
    assert found[8, 6] is found[8, 9] is found[12, 0] is PLANS[8, 9]
    assert found[10, 3] is PLANS[10, 0]
    assert grouped_launch.plan_for((9, 0), torch.float32) is grouped_launch.EXACT
