"""Widths and parameter counts of the paper's backbones, on meta tensors.

Fractions and removed shares are those of the authors' rule and of HeRo's table 1.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from methods.core.backbone import Backbone, count, empty_backbone, shape_config
from methods.slicegpt import SliceGPT, kept_directions

# Shape, s, D, share of the dense parameters removed, share of the fused model (None: not stated).
FRACTIONS = [
    ("llama31_8b", 0.20, 3272, 0.101, None),
    ("llama31_8b", 0.25, 3072, 0.156, 0.256),
    ("llama31_8b", 0.30, 2864, 0.213, None),
    ("llama2_7b", 0.20, 3272, 0.094, None),
    ("llama2_7b", 0.25, 3072, 0.153, 0.270),
    ("llama2_7b", 0.30, 2864, 0.215, None),
    ("llama2_13b", 0.20, 4096, 0.093, None),
    ("llama2_13b", 0.25, 3840, 0.155, 0.272),
    ("llama2_13b", 0.30, 3584, 0.215, None),
]
BUDGETS = [
    ("llama31_8b", 0.25, 2728, 0.2499),
    ("llama31_8b", 0.40, 2160, 0.4006),
    ("llama2_7b", 0.25, 2744, 0.2494),
    ("llama2_7b", 0.40, 2216, 0.3997),
    ("llama2_13b", 0.25, 3432, 0.2509),
    ("llama2_13b", 0.40, 2784, 0.3999),
]


def by_formula(backbone: Backbone, width: int) -> int:
    """V D + V H + per layer 2 H D + 2 K D + 2 I D + I D' + D^2 + D D', D' = H in the last."""
    config = backbone.config
    full, inner = config.hidden_size, config.intermediate_size
    keys = config.num_key_value_heads * full // config.num_attention_heads
    total = config.vocab_size * (width + full)
    for number in range(config.num_hidden_layers):
        after = full if number == config.num_hidden_layers - 1 else width
        total += (2 * full + 2 * keys + 2 * inner) * width + inner * after
        total += width * width + width * after
    return total


def sliced(shape: str, width: int) -> tuple[int, Any]:
    """Parameters of the sliced shape, and its config."""
    built = SliceGPT().build(
        empty_backbone(shape_config(shape)), {"width": width, "slice_head": False}
    )
    return count(built), built.config


@pytest.mark.parametrize(("shape", "fraction", "width", "removed", "authors"), FRACTIONS)
def test_published_fractions(
    shape: str, fraction: float, width: int, removed: float, authors: float | None
) -> None:
    backbone = empty_backbone(shape_config(shape))
    assert kept_directions(backbone.config.hidden_size, fraction, 8) == width
    parameters, config = sliced(shape, width)
    assert parameters == by_formula(backbone, width)
    assert 1 - parameters / backbone.parameters == pytest.approx(removed, abs=5e-4)
    if authors is not None:
        ledger = SimpleNamespace(resident=parameters, fused=config.fused_parameters)
        rates: Any = SimpleNamespace(ledger=ledger)
        assert SliceGPT().authors_skip(rates) == pytest.approx(authors, abs=5e-4)


@pytest.mark.parametrize(("shape", "budget", "width", "skip"), BUDGETS)
def test_nearest_width(shape: str, budget: float, width: int, skip: float) -> None:
    backbone = empty_backbone(shape_config(shape))
    found, trace = SliceGPT()._width(backbone, budget)
    assert found == width
    skips = {row["setting"]: row["skip"] for row in trace}
    assert skips[width] == pytest.approx(skip, abs=5e-5)
    assert skips[width] == 1 - sliced(shape, width)[0] / backbone.parameters


def test_the_row_of_hero_s_table() -> None:
    backbone = empty_backbone(shape_config("llama31_8b"))
    assert kept_directions(4096, 0.33, 8) == 2744
    parameters, _ = sliced("llama31_8b", 2744)
    assert 1 - parameters / backbone.parameters == pytest.approx(0.2456, abs=5e-5)
