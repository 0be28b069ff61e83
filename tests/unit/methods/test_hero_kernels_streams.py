"""What HeRo's router reads of its streams in training, against autograd of the formulas."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from methods.kernels.hero.streams import parts, read_streams
from tests.interpreted import DEVICE, prepare

pytest.importorskip("triton", reason="Triton is not installed")
prepare()

HEADS = 24


def streams_of(count: int, tokens: int, width: int, dtype: torch.dtype) -> list[Tensor]:
    maker = torch.Generator().manual_seed(count)
    made = torch.randn(count, tokens, width, generator=maker).cumsum(0).to(DEVICE, dtype)
    return [stream.requires_grad_() for stream in made.unbind()]


def weights_of(width: int) -> Tensor:
    maker = torch.Generator().manual_seed(9)
    made = torch.randn(HEADS, width, generator=maker) * width**-0.5
    return made.to(DEVICE).requires_grad_()


def written_out(streams: list[Tensor], merged: Tensor) -> tuple[Tensor, Tensor]:
    hbar, *earlier = reversed(streams)
    zero = torch.zeros_like(hbar)
    delta = hbar - earlier[0] if earlier else zero
    before = earlier[0] - earlier[1] if len(earlier) > 1 else zero
    pairs = [(hbar, hbar), (delta, delta), (delta, before), (before, before)]
    return hbar @ merged.T, torch.stack([(a * b).sum(-1) for a, b in pairs], dim=-1)


def near(found: Tensor, exact: Tensor, eps: float) -> None:
    """Within a few times ``eps`` of the largest entry."""
    bound = 8 * eps * float(exact.detach().abs().max())
    torch.testing.assert_close(found.double(), exact, rtol=0, atol=bound)


@pytest.mark.parametrize("kernel", [True, False], ids=["triton", "twin"])
@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_values_and_gradients_are_those_of_the_formulas(
    dtype: torch.dtype, count: int, kernel: bool
) -> None:
    """In float32 whatever the streams are; their gradients are rounded to their dtype."""
    tokens, width = 13, 72
    streams, merged = streams_of(count, tokens, width, dtype), weights_of(width)
    exact = [stream.detach().double().requires_grad_() for stream in streams]
    weights = merged.detach().double().requires_grad_()
    outer = torch.Generator().manual_seed(4)
    by_projected = torch.randn(tokens, HEADS, generator=outer).to(DEVICE)
    by_sums = torch.randn(tokens, 4, generator=outer).to(DEVICE)

    halves = parts(merged) if dtype is torch.bfloat16 else None
    found, expected = read_streams(streams, merged, halves, kernel), written_out(exact, weights)
    torch.autograd.backward(found, (by_projected, by_sums))
    torch.autograd.backward(expected, (by_projected.double(), by_sums.double()))
    single = torch.finfo(torch.float32).eps
    near(found[0], expected[0], 8 * single)
    near(found[1], expected[1], 8 * single)
    assert merged.grad is not None
    assert weights.grad is not None
    near(merged.grad, weights.grad, 8 * single)
    for stream, reference in zip(streams, exact, strict=True):
        assert stream.grad is not None
        assert reference.grad is not None
        near(stream.grad, reference.grad, max(8 * single, torch.finfo(dtype).eps / 8))


@pytest.mark.parametrize("asked", ["weights", "streams"])
def test_what_nobody_asks_for_is_left_out(asked: str) -> None:
    """The lower half of a model has no graph, a frozen router no gradient."""
    streams, merged = streams_of(2, 5, 16, torch.bfloat16), weights_of(16)
    streams = [stream.requires_grad_(asked == "streams") for stream in streams]
    merged.requires_grad_(asked == "weights")
    found = read_streams(streams, merged, parts(merged), True)
    sum(part.sum() for part in found).backward()  # type: ignore[union-attr]
    assert (merged.grad is not None) == (asked == "weights")
    assert [stream.grad is not None for stream in streams] == [asked == "streams"] * 2


def test_nothing_but_streams_and_weights_is_kept() -> None:
    streams, merged = streams_of(3, 5, 16, torch.bfloat16), weights_of(16)
    halves = parts(merged)
    kept: list[int] = []

    def note(tensor: Tensor) -> Tensor:
        kept.append(tensor.data_ptr())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        read_streams(streams, merged, halves, True)
    assert set(kept) == {each.data_ptr() for each in (halves, *streams)}
