"""What only a GPU can show; skipped elsewhere."""

import numpy as np
import pytest
import torch

from methods.core.dispatch import dispatch, dispatch_masked
from methods.hero.branch import Adapter
from tests.slicing_toys import IDS, dense, fit, logits

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-4), (torch.bfloat16, 5e-2)])
@pytest.mark.parametrize("bypass", [0.0, 0.25, 0.765, 1.0])
def test_dispatch_agrees_with_the_masked_reference(
    dtype: torch.dtype, tolerance: float, bypass: float
) -> None:
    torch.manual_seed(0)
    branch = torch.nn.Linear(256, 256, bias=False, device="cuda", dtype=dtype)
    adapter = Adapter(256, 56, None).to("cuda", dtype)
    torch.nn.init.normal_(adapter.up.weight, std=0.1)
    execute = torch.rand(512, device="cuda") >= bypass
    scale = torch.rand(512, device="cuda")
    results = []
    for form in (dispatch, dispatch_masked):
        rows = torch.randn(
            512, 256, generator=torch.Generator("cuda").manual_seed(1), device="cuda"
        )
        rows = rows.to(dtype).requires_grad_(True)
        update = form(rows, execute, branch, adapter, scale)
        update.float().square().sum().backward()
        results.append((update, rows.grad))
    (update, gradient), (expected, expected_gradient) = results
    torch.testing.assert_close(update, expected, atol=tolerance, rtol=tolerance)
    torch.testing.assert_close(
        gradient, expected_gradient, atol=10 * tolerance, rtol=10 * tolerance
    )


@pytest.mark.parametrize("orientation", ["pca", "random"])
def test_slicing_agrees_with_the_cpu(orientation: str) -> None:
    fits = [
        fit(dense("qwen2", torch.float64).to(device), orientation=orientation)
        for device in ("cpu", "cuda")
    ]
    first, second = (np.array(fitted.decisions["eigenvalues"]) for fitted in fits)
    np.testing.assert_allclose(second, first, rtol=1e-6)
    ours = logits(fits[1].model, IDS.cuda()).cpu()
    torch.testing.assert_close(ours, logits(fits[0].model), rtol=0, atol=1e-5)
