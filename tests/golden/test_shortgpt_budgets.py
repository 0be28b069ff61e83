"""How many layers a budget removes from the paper's backbones, on meta tensors."""

import pytest

from methods.core.backbone import count, empty_backbone, layers, shape_config
from methods.core.budget import layers_to_remove
from methods.shortgpt import ShortGPT

CASES = [
    ("llama31_8b", 0.25, 9, 0.2445),
    ("llama31_8b", 0.40, 15, 0.4074),
    ("llama2_7b", 0.25, 8, 0.2403),
    ("llama2_7b", 0.40, 13, 0.3904),
    ("llama2_13b", 0.25, 10, 0.2437),
    ("llama2_13b", 0.40, 16, 0.3899),
]


@pytest.mark.parametrize(("shape", "budget", "number", "skip"), CASES)
def test_nearest_number_of_layers(shape: str, budget: float, number: int, skip: float) -> None:
    backbone = empty_backbone(shape_config(shape))
    method = ShortGPT({"layers": number})
    pruned = method.build(backbone, {"removed_layers": list(range(number))})
    assert 1 - count(pruned) / backbone.parameters == pytest.approx(skip, abs=5e-5)
    fresh = empty_backbone(shape_config(shape))
    assert layers_to_remove(fresh, budget, None)[0] == number


@pytest.mark.parametrize(
    ("shape", "total", "layer"),
    [
        ("llama31_8b", 8_030_261_248, 218_112_000),
        ("llama2_7b", 6_738_415_616, 202_383_360),
        ("llama2_13b", 13_015_864_320, 317_204_480),
    ],
)
def test_parameter_counts_of_the_published_shapes(shape: str, total: int, layer: int) -> None:
    backbone = empty_backbone(shape_config(shape))
    assert backbone.parameters == total
    assert count(layers(backbone.model)[0]) == layer
