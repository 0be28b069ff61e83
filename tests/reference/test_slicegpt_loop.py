"""The method against loops that run the sliced parts themselves."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from methods import load_method
from methods.base import Request
from methods.core.backbone import Backbone, count
from methods.core.data import Batch, Document, batches
from tests import toy
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


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 1e-5)], ids=str
)
@pytest.mark.parametrize("width", [32, 24, 11])
def test_eigenvalues_and_logits_equal_the_loop(
    width: int, dtype: torch.dtype, tolerance: float
) -> None:
    slow = SlicedByHand(dense(torch.float64), TEXTS, width)
    method = load_method("slicegpt", {"slice_fraction": 1 - width / 32, "round_to": 1})
    model = dense(dtype)
    backbone = Backbone(model, None, Path(), None, "", count(model))
    fitted = method.fit(backbone, Documents(), Request(None, 0, Path()))
    found = np.array(fitted.decisions["eigenvalues"])
    np.testing.assert_allclose(found, np.array(slow.eigenvalues), rtol=tolerance)
    assert fitted.decisions["widths"] == [width] * 12 + [32]
    with torch.no_grad():
        logits = fitted.model(IDS).logits.double()
    torch.testing.assert_close(logits, slow.logits(IDS), rtol=0, atol=10 * tolerance)
