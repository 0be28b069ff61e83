"""The grouped kernels at the shape of Llama-3.1-8B, in 16 bits, against the masked dispatch."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from methods.kernels import grouped
from methods.kernels.weights import AdapterWeights, FfnWeights
from tests.toys.grouped import Case, Sizes, gradients, run_both

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
pytest.importorskip("triton", reason="Triton is not installed")


def drawn(sizes: Sizes, bypass: float, dtype: torch.dtype, slim: bool, device: str) -> Case:
    """Inputs drawn on the device; what is trained is float32, as a trainer holds it."""
    maker = torch.Generator(device).manual_seed(0)

    def draw(*shape: int, kind: torch.dtype = dtype) -> Tensor:
        made = torch.randn(*shape, generator=maker, device=device)
        return made.mul_(shape[-1] ** -0.5).to(kind)

    count, width, ffn, adapter = sizes
    kind = torch.float32
    masters = AdapterWeights(
        draw(adapter, width, kind=kind), draw(width, adapter, kind=kind),
        draw(adapter, width, kind=kind) if slim else None,
    )  # fmt: skip
    given = Case(
        rows=draw(count, width) * width**0.5,
        execute=torch.rand(count, generator=maker, device=device) >= bypass,
        ffn=FfnWeights(draw(ffn, width), draw(ffn, width), draw(width, ffn)),
        adapter=masters,
        scale=torch.rand(count, generator=maker, device=device) + 0.25,
        residual=draw(count, width),
    )
    for tensor in given.parameters().values():
        tensor.requires_grad_()
    return given


def check(sizes: Sizes, bypass: float, dtype: torch.dtype, slim: bool, device: str) -> None:
    """Output and gradients are near the truth in float32, and the same bits twice."""
    given = drawn(sizes, bypass, dtype, slim, device)
    runs = []
    for form in (grouped.dispatch_kernels, grouped.dispatch_kernels, run_both):
        runs.append(gradients(form, given))
        for tensor in given.parameters().values():
            tensor.grad = None
    found, again, expected = runs
    assert found.keys() == again.keys() == expected.keys() == {"output", *given.parameters()}
    eps = torch.finfo(dtype).eps
    for name, value in expected.items():
        assert torch.equal(found[name], again[name]), name
        # A number is rounded when it is stored; so was each of the many it is a sum of.
        bound = 8 * eps * float(value.float().square().mean().sqrt())
        torch.testing.assert_close(
            found[name].float(), value.float(), rtol=2 * eps, atol=bound,
            msg=lambda text, name=name: f"{name}: {text}",
        )  # fmt: skip


@pytest.mark.parametrize("slim", [False, True], ids=["bottleneck", "slim"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("rows", [33, 2048, 16384])
@pytest.mark.parametrize("bypass", [0.0, 0.5, 0.765, 1.0])
def test_true_shapes(bypass: float, rows: int, dtype: torch.dtype, slim: bool) -> None:
    check(Sizes(rows, 4096, 14336, 896), bypass, dtype, slim, "cuda")
