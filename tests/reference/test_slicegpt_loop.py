"""The method against loops that run the sliced parts themselves."""

from __future__ import annotations

import pytest
import torch

from tests.near import TERMS, assert_near
from tests.reference.slicegpt_loop import SlicedByHand
from tests.toys.models import make_model
from tests.toys.static import IDS, fit_slicegpt
from tests.toys.texts import PaddedTexts, ids_of

TEXTS = [
    ids for seed, length in enumerate([9, 21, 4, 30, 13, 17]) for ids in ids_of([length], seed)
]


def dense(dtype: torch.dtype) -> torch.nn.Module:
    model = make_model(rms_norm_eps=1e-3)
    for name, parameter in model.named_parameters():
        if "norm" in name:
            torch.nn.init.uniform_(parameter, 0.5, 1.5, torch.Generator().manual_seed(0))
    return model.to(dtype)


# Rounding moves all eigenvalues by a share of the largest (Weyl), and turns a subspace by that
# share over the gap of its eigenvalues, down to 1/5000 here. In float64 eigh is rounded as well.
@pytest.mark.parametrize(
    ("dtype", "values", "turns"),
    [(torch.float64, 4 * TERMS, 64 * TERMS), (torch.float32, TERMS, 8 * TERMS)],
    ids=["float64", "float32"],
)
@pytest.mark.parametrize("width", [32, 24, 11])
def test_eigenvalues_and_logits_equal_the_loop(
    width: int, dtype: torch.dtype, values: int, turns: int
) -> None:
    slow = SlicedByHand(dense(torch.float64), TEXTS, width)
    fitted = fit_slicegpt(dense(dtype), 1 - width / 32, data=PaddedTexts(TEXTS))
    for found, expected in zip(fitted.decisions["eigenvalues"], slow.eigenvalues, strict=True):
        assert_near(*(torch.tensor(side, dtype=dtype) for side in (found, expected)), values)
    assert fitted.decisions["widths"] == [width] * 12 + [32]
    with torch.no_grad():
        assert_near(fitted.model(IDS).logits, slow.logits(IDS).to(dtype), turns)
