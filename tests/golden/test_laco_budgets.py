"""Layers, windows and parameters of LaCo on the paper's backbones, on meta tensors."""

import pytest

from methods import load_method
from methods.core.backbone import count, empty_backbone, shape_config
from methods.core.budget import layers_to_remove
from methods.laco import merge_width

# shape, budget, layers to remove, layers per merge, share of the parameters
CASES = [
    ("llama31_8b", 0.25, 9, 4, 0.2445),
    ("llama31_8b", 0.40, 15, 4, 0.4074),
    ("llama2_7b", 0.25, 8, 5, 0.2403),
    ("llama2_7b", 0.40, 13, 2, 0.3904),
    ("llama2_13b", 0.25, 10, 6, 0.2437),
    ("llama2_13b", 0.40, 16, 5, 0.3899),
]


@pytest.mark.parametrize(("shape", "budget", "number", "width", "skip"), CASES)
def test_layers_and_window(shape: str, budget: float, number: int, width: int, skip: float) -> None:
    backbone = empty_backbone(shape_config(shape))
    total = backbone.layer_count
    assert layers_to_remove(backbone, budget, None)[0] == number
    assert merge_width(number, total) == width
    merges = number // (width - 1)
    assert merges * (width - 1) == number
    groups = [list(range(n * width, (n + 1) * width)) for n in range(merges)]
    groups += [[n] for n in range(merges * width, total)]
    built = load_method("laco").build(
        backbone, {"removed_layers": [n for g in groups for n in g[1:]]}
    )
    assert built.config.num_hidden_layers == total - number
    assert 1 - count(built) / backbone.parameters == pytest.approx(skip, abs=5e-5)


@pytest.mark.parametrize(
    ("shape", "layers", "left"),
    [("llama2_7b", 6, 5_524_115_456), ("llama31_8b", 1, 7_812_149_248)],
)
def test_published_counts(shape: str, layers: int, left: int) -> None:
    backbone = empty_backbone(shape_config(shape))
    groups = [list(range(layers + 1)), *([n] for n in range(layers + 1, backbone.layer_count))]
    assert (
        count(
            load_method("laco").build(
                backbone, {"removed_layers": [n for g in groups for n in g[1:]]}
            )
        )
        == left
    )


@pytest.mark.parametrize(
    ("target", "total", "width"), [(0, 12, 2), (1, 12, 2), (3, 12, 2), (6, 12, 2), (20, 80, 11)]
)
def test_a_multiple_fits_twice_at_least(target: int, total: int, width: int) -> None:
    assert merge_width(target, total) == width
