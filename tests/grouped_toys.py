"""Small routed FFNs for the grouped dispatch, and an interpreter that multiplies bfloat16."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from torch import Tensor
from torch.nn.functional import linear, silu

from methods.core.routing.dispatch import dispatch_masked
from methods.kernels.weights import AdapterWeights, FfnWeights
from tests.interpreted import mend


class Sizes(NamedTuple):
    """Rows N, D, F and the adapter's width."""

    rows: int
    width: int
    ffn: int
    adapter: int


# The first two fit no tile, the last fits all.
SIZES = (Sizes(37, 48, 172, 14), Sizes(21, 64, 172, 14), Sizes(32, 64, 128, 64))


class Toy(NamedTuple):
    """The arguments of a dispatch; everything but ``execute`` and ``ffn`` asks for a gradient."""

    rows: Tensor
    execute: Tensor
    ffn: FfnWeights
    adapter: AdapterWeights
    scale: Tensor
    residual: Tensor

    def trained(self) -> dict[str, Tensor]:
        adapter = {n: part for n, part in self.adapter._asdict().items() if part is not None}
        return {"rows": self.rows, **adapter, "scale": self.scale, "residual": self.residual}


def toy(
    sizes: Sizes, executing: str, dtype: torch.dtype = torch.float32, slim: bool = False
) -> Toy:
    """Random inputs; ``executing``: "none", "all", "one" or "some" rows; ``slim``: a SwiGLU."""
    maker = torch.Generator().manual_seed(0)

    def draw(*shape: int, kind: torch.dtype = dtype) -> Tensor:
        return (torch.randn(*shape, generator=maker) * shape[-1] ** -0.5).to(kind)

    count, width, ffn, adapter = sizes
    execute = torch.rand(count, generator=maker) < {"all": 2.0, "some": 0.4}.get(executing, 0.0)
    if executing == "one":
        execute[count // 2] = True
    frozen = FfnWeights(draw(ffn, width), draw(ffn, width), draw(width, ffn))
    masters = AdapterWeights(
        draw(adapter, width, kind=torch.float32).requires_grad_(),
        draw(width, adapter, kind=torch.float32).requires_grad_(),
    )
    rows = (draw(count, width) * width**0.5).requires_grad_()
    scale = torch.rand(count, generator=maker).add(0.25).requires_grad_()
    residual = draw(count, width).requires_grad_()
    if slim:
        factor = draw(adapter, width, kind=torch.float32).mul(4).requires_grad_()
        masters = masters._replace(factor=factor)
    return Toy(rows, execute, frozen, masters, scale, residual)


def masked(
    rows: Tensor,
    execute: Tensor,
    ffn: FfnWeights,
    adapter: AdapterWeights | None = None,
    scale: Tensor | None = None,
    residual: Tensor | None = None,
) -> Tensor:
    """The truth: both branches on every row, in float32, then a choice."""

    def branch(part: Tensor) -> Tensor:
        gate, up, down = (weight.float() for weight in ffn)
        return linear(silu(linear(part, gate)) * linear(part, up), down)

    def bottleneck(part: Tensor) -> Tensor:
        assert adapter is not None
        down, up, factor = adapter.to(rows.dtype).to(torch.float32)
        inner = silu(linear(part, down))
        return linear(inner if factor is None else inner * linear(part, factor), up)

    other = bottleneck if adapter is not None else None
    update = dispatch_masked(rows.float(), execute, branch, other, scale)
    return update if residual is None else residual.float() + update


def gradients(form: Callable[..., Tensor], given: Toy) -> dict[str, Tensor]:
    """The output, and what every trained input gets from a fixed random upstream."""
    output = form(*given)
    upstream = torch.randn(output.shape, generator=torch.Generator().manual_seed(9))
    output.backward(upstream.to(output.device, given.rows.dtype).to(output.dtype))
    found = {name: tensor.grad for name, tensor in given.trained().items()}
    return {"output": output.detach()} | {k: v for k, v in found.items() if v is not None}


@contextmanager
def products() -> Iterator[list[int]]:
    """The operations (2 per term) of every matrix product that runs under the interpreter."""
    from triton.runtime.interpreter import InterpreterBuilder

    mend()
    plain, counted = InterpreterBuilder.create_dot, list[int]()

    def create_dot(self: Any, left: Any, right: Any, *rest: Any) -> Any:
        counted.append(2 * left.data.size * right.data.shape[-1])
        return plain(self, left, right, *rest)

    create_dot.mended = True  # type: ignore[attr-defined]
    with patch.object(InterpreterBuilder, "create_dot", create_dot):
        yield counted
