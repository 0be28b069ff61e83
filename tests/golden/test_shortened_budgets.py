"""How many blocks a budget removes from the paper's backbones, on meta tensors."""

from pathlib import Path

import pytest

from methods import load_method
from methods.base import Request
from methods.core.backbone import count, empty_backbone, shape_config
from methods.core.budget import layers_to_remove

CASES = [
    ("llama31_8b", 0.25, 9, 0.2445),
    ("llama31_8b", 0.40, 15, 0.4074),
    ("llama2_7b", 0.25, 8, 0.2403),
    ("llama2_7b", 0.40, 13, 0.3904),
    ("llama2_13b", 0.25, 10, 0.2437),
    ("llama2_13b", 0.40, 16, 0.3899),
]


@pytest.mark.parametrize(("shape", "budget", "number", "skip"), CASES)
def test_nearest_number_of_blocks(shape: str, budget: float, number: int, skip: float) -> None:
    backbone = empty_backbone(shape_config(shape))
    method = load_method("shortened-ppl")
    assert method.skip_reason(backbone, Request(budget, 0, Path())) is None
    assert layers_to_remove(backbone, budget, None)[0] == number
    pruned = method.build(backbone, {"removed_layers": list(range(4, 4 + number))})
    assert 1 - count(pruned) / backbone.parameters == pytest.approx(skip, abs=5e-5)


@pytest.mark.parametrize(
    ("shape", "removed", "left"),
    [("llama2_7b", 6, 5_524_115_456), ("llama31_8b", 1, 7_812_149_248)],
)
def test_published_counts(shape: str, removed: int, left: int) -> None:
    backbone = empty_backbone(shape_config(shape))
    structure = {"removed_layers": list(range(10, 10 + removed))}
    assert count(load_method("shortened-taylor").build(backbone, structure)) == left


@pytest.mark.parametrize(("total", "most"), [(32, 26), (40, 34)])
def test_most_blocks_that_protection_leaves(total: int, most: int) -> None:
    assert len(load_method("shortened-ppl")._unprotected(total)) == most


@pytest.mark.parametrize(
    ("shape", "blocks", "printed", "skip"),
    [
        ("llama31_8b", 8, 0.25, 0.2173),
        ("llama31_8b", 13, 0.40625, 0.3531),
        ("llama2_7b", 8, 0.25, 0.2403),
        ("llama2_13b", 10, 0.25, 0.2437),
    ],
)
def test_printed_rates_are_shares_of_blocks(
    shape: str, blocks: int, printed: float, skip: float
) -> None:
    backbone = empty_backbone(shape_config(shape))
    assert blocks / backbone.layer_count == printed
    pruned = load_method("shortened-ppl").build(backbone, {"removed_layers": list(range(blocks))})
    assert 1 - count(pruned) / backbone.parameters == pytest.approx(skip, abs=5e-5)
