"""The method against loops that run the sliced parts themselves."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from methods import load_method
from methods.base import Request
from methods.core.data import Batch, Document, batches
from methods.core.model.backbone import Backbone, count
from tests import toy
from tests.near import TERMS, assert_near
from tests.reference.slicegpt_loop import SlicedByHand

TEXTS = [
    np.random.default_rng(n).integers(0, 60, length).tolist()
    for n, length in enumerate([9, 21, 4, 30, 13, 17])
]
IDS = torch.randint(0, 60, (3, 20), generator=torch.Generator().manual_seed(2))


class Documents:
    """The texts in padded batches of four."""

    def calibration(self) -> list[Batch]:
        return list(batches([Document(ids, 0) for ids in TEXTS], 4))


def dense(dtype: torch.dtype) -> torch.nn.Module:
    model = toy.make_model(rms_norm_eps=1e-3)
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
    method = load_method("slicegpt", {"slice_fraction": 1 - width / 32, "round_to": 1})
    model = dense(dtype)
    backbone = Backbone(model, None, Path(), None, "", count(model))
    fitted = method.fit(backbone, Documents(), Request(None, 0, Path()))
    for found, expected in zip(fitted.decisions["eigenvalues"], slow.eigenvalues, strict=True):
        assert_near(*(torch.tensor(side, dtype=dtype) for side in (found, expected)), values)
    assert fitted.decisions["widths"] == [width] * 12 + [32]
    with torch.no_grad():
        assert_near(fitted.model(IDS).logits, slow.logits(IDS).to(dtype), turns)
