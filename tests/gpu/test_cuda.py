"""What only a GPU can show; skipped elsewhere."""

from pathlib import Path

import numpy as np
import pytest
import torch

from methods.core.model.backbone import decoder
from methods.core.routing.dispatch import dispatch, dispatch_masked
from methods.core.training import documents
from methods.core.training.documents import packed_attention
from methods.hero.adapter import Adapter
from tests.toys.models import make_model, make_scaled
from tests.toys.static import IDS, fit_slicegpt, logits
from workflows.demo.presets import Recipe
from workflows.demo.pretrain import train
from workflows.demo.world import the_world

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
        fit_slicegpt(make_scaled("qwen2", torch.float64).to(device), orientation=orientation)
        for device in ("cpu", "cuda")
    ]
    first, second = (np.array(fitted.decisions["eigenvalues"]) for fitted in fits)
    np.testing.assert_allclose(second, first, rtol=1e-6)
    ours = logits(fits[1].model, IDS.cuda()).cpu()
    torch.testing.assert_close(ours, logits(fits[0].model), rtol=0, atol=1e-5)


def test_a_backbone_learns_as_on_the_cpu(tmp_path: Path) -> None:
    recipe = Recipe(tokens=5 * 256, rows=4, length=64)
    on_cpu, on_gpu = (
        [
            report["loss"]
            for report in train(the_world("small"), recipe, tmp_path / device, device)[1]
        ]
        for device in ("cpu", "cuda")
    )
    assert len(on_cpu) == 5
    assert on_gpu == pytest.approx(on_cpu, rel=1e-3)


def test_flash_attention_keeps_documents_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """States and gradients as under a mask, up to the rounding of bfloat16."""
    model = make_model("llama", hidden_size=64, head_dim=16).cuda()
    ids = torch.randint(60, (2, 96), generator=torch.Generator().manual_seed(0))
    positions = (torch.arange(96) % 40).expand(2, 96)
    found = []
    for flash in (True, False):
        if not flash:
            monkeypatch.setattr(documents, "flash_takes", lambda *_: False)
        model.zero_grad()
        with packed_attention(model, positions, torch.device("cuda")) as apart:
            assert ("documents" in apart) == flash
            with torch.autocast("cuda", torch.bfloat16):
                states = decoder(model)(
                    input_ids=ids.cuda(), position_ids=positions.cuda(), use_cache=False, **apart
                ).last_hidden_state
            states.float().square().mean().backward()
        gradient = model.model.layers[0].self_attn.q_proj.weight.grad
        found.append((states.float(), gradient.float()))
    for ours, expected in zip(*found, strict=True):
        assert (ours - expected).norm() < 0.02 * expected.norm()
