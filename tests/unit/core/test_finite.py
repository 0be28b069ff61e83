"""Finite or refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from methods.core.model.finite import check_finite, check_parameters
from tests.toys.models import make_model


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (float("nan"), "scores is nan"),
        ({"a": [0.5, [1, float("inf")]]}, "scores, a, 1, 1 is inf"),
        ({"a": torch.tensor([1.0, torch.nan])}, "scores, a holds NaN or infinity"),
    ],
)
def test_the_place_is_named(value: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        check_finite(value, "scores")


def test_what_is_no_number_passes() -> None:
    check_finite({"a": None, "b": ["nan", 3, True, torch.tensor([1])], "c": 0.5}, "scores")


def test_a_parameter_is_named() -> None:
    model = make_model()
    check_parameters(model, "here")
    with torch.no_grad():
        model.model.norm.weight[2] = torch.inf
    with pytest.raises(ValueError, match=r"here: tensor 'model\.norm\.weight' holds NaN"):
        check_parameters(model, "here")
