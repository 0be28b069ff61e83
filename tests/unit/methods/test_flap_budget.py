"""FLAP: how a budget is met, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from methods import load_method
from methods.base import Request
from methods.core.model.backbone import count
from methods.core.model.ledger import Ledger, Tally
from tests.toys.models import make_model, wrap
from tests.toys.texts import calibration_data
from tests.unit.methods.test_flap import TEXTS, fit, make


@pytest.mark.parametrize("kind", ["llama", "qwen2", "tied"])
@pytest.mark.parametrize("budget", [0.25, 0.4])
def test_a_budget_is_met_with_the_biases_charged(kind: str, budget: float) -> None:
    backbone = wrap(make(kind))
    method, total = load_method("flap"), backbone.parameters
    fitted = method.fit(backbone, calibration_data(TEXTS), Request(budget, 0, Path()))
    tally = Tally(Ledger.of(fitted.model, total, 4))
    tally.add(None, 1)
    rates, kept = tally.rates(), fitted.decisions["kept"]
    # q, k, v, o of a head with two query heads; gate, up, down of a channel; 2 x 32 biases a layer.
    head = 8 * 32 * 6 + (32 if kind == "qwen2" else 0)
    fewer = 4 * 2 - sum(map(len, kept["heads"])), 4 * 64 - sum(map(len, kept["channels"]))
    assert rates.skip == pytest.approx((fewer[0] * head + fewer[1] * 96 - 4 * 64) / total)
    # The nearest cut: half a head or half a channel away at most.
    assert abs(rates.skip - budget) <= head / total / 2
    assert rates.skip == pytest.approx(min(
        (row["skip"] for row in fitted.decisions["budget_search"]), key=lambda s: abs(s - budget)
    ))  # fmt: skip
    linear = 4 * (32 * 32 * 3 + 3 * 32 * 64 + (64 if kind == "qwen2" else 0))
    assert method.authors_skip(rates) == pytest.approx(rates.skip * total / linear)
    again = fit(make(kind), ratio=fitted.decisions["ratio"])
    assert again.decisions["kept"] == kept


@pytest.mark.parametrize(
    ("structure", "ratio", "heads", "channels"),
    [
        ("UL-UM", 0.30, [1, 1, 1, 1], [19, 19, 19, 19]),
        ("UL-UM", 0.20, [0, 0, 0, 0], [12, 12, 12, 12]),
        # A head weighs 32/3 channels: a share is of 4 * 32/3 + 64 per layer.
        ("UL-MM", 0.26, [1, 1, 1, 1], [17, 17, 17, 17]),
        ("AL-MM", 0.26, 5, 57),
    ],
)
def test_other_structures_take_so_many_units(
    structure: str, ratio: float, heads: Any, channels: Any
) -> None:
    fewer = 5 if structure == "AL-MM" else 4
    fitted = fit(make("mha"), structure=structure, ratio=ratio, remove_heads=fewer)
    scores = fitted.decisions["scores"]
    for kind, expected in (("heads", heads), ("channels", channels)):
        dropped = fitted.structure[f"dropped_{kind}"]
        if structure == "AL-MM":
            assert sum(map(len, dropped)) == expected
            gone = [scores[kind][n][u] for n, units in enumerate(dropped) for u in units]
            best = [max(values) for values in scores[kind]]
            left = [s for values in scores[kind] for s in values if s not in [*gone, *best]]
            assert max(gone) < min(left)
            continue
        assert list(map(len, dropped)) == expected
        for values, units in zip(scores[kind], dropped, strict=True):
            assert units == sorted(np.argsort(values)[: len(units)].tolist())


def test_attention_may_be_left_alone() -> None:
    for structure in ("AL-MM", "UL-MM"):
        fitted = fit(make(), budget=0.25, structure=structure)
        assert fitted.structure["dropped_heads"] == [[]] * 4
        found = min(abs(row["skip"] - 0.25) for row in fitted.decisions["budget_search"])
        assert found < 4 * 96 / count(make())


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"ratio": 1.0}, "param 'ratio' is 1.0, must be at least 0 and below 1"),
        ({"ratio": -0.1}, "param 'ratio' is -0.1"),
        ({"remove_heads": -1}, "param 'remove_heads' is -1, must be at least 0"),
    ],
)
def test_values_out_of_range_are_refused(params: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load_method("flap", params)


def test_what_does_not_fit_is_said() -> None:
    backbone = wrap(make())

    def reason(budget: float | None, **params: Any) -> str | None:
        return load_method("flap", params).skip_reason(backbone, Request(budget, 0, Path()))

    assert "how much to remove" in str(reason(None))
    assert reason(None, ratio=0.2) is None
    assert reason(0.7) is None
    assert "heads and channels in reach hold" in str(reason(0.9))
    assert "in reach hold" in str(reason(0.7, structure="AL-MM"))
    uneven = {"structure": "UL-MM", "remove_heads": 5}
    assert reason(0.2, **uneven) == (
        "param 'remove_heads' is 5, and 'UL-MM' removes equally many in each of 4 layers"
    )
    assert reason(0.2, structure="UL-MM", remove_heads=4) is None
    normed = wrap(make_model("olmo2"))
    for params in ({"ratio": 0.2}, {}):
        said = load_method("flap", params).skip_reason(normed, Request(0.2, 0, Path()))
        assert "norm" in str(said)
    with pytest.raises(ValueError, match="'released', which needs two calibration documents"):
        fit(make(), TEXTS[:1], fluctuation="released")
