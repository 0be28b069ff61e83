"""Small routed FFNs for the grouped dispatch, and a count of its matrix products."""

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
    """How many rows, hidden and FFN size of the model, width of the adapter."""

    rows: int
    width: int
    ffn: int
    adapter: int


# The kernels' tiles divide only the last.
SIZES = (Sizes(37, 48, 172, 14), Sizes(21, 64, 172, 14), Sizes(32, 64, 128, 64))


class Case(NamedTuple):
    """The arguments of a dispatch; all except ``execute`` and ``ffn`` need a gradient."""

    rows: Tensor
    execute: Tensor
    ffn: FfnWeights
    adapter: AdapterWeights
    scale: Tensor
    residual: Tensor

    def parameters(self) -> dict[str, Tensor]:
        """Everything that needs a gradient, by name."""
        adapter = {n: part for n, part in self.adapter._asdict().items() if part is not None}
        return {"rows": self.rows, **adapter, "scale": self.scale, "residual": self.residual}


def make_case(
    sizes: Sizes, which: str, dtype: torch.dtype = torch.float32, slim: bool = False
) -> Case:
    """Random inputs.

    Args:
        sizes: Of the tensors.
        which: Rows that execute the FFN: "none", "all", "one" or "some".
        dtype: Of the model; the adapter is float32.
        slim: The adapter is a SwiGLU instead of a bottleneck.
    """
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int, kind: torch.dtype = dtype) -> Tensor:
        return (torch.randn(*shape, generator=generator) * shape[-1] ** -0.5).to(kind)

    count, width, ffn, adapter = sizes
    execute = torch.rand(count, generator=generator) < {"all": 2.0, "some": 0.4}.get(which, 0.0)
    if which == "one":
        execute[count // 2] = True
    frozen = FfnWeights(draw(ffn, width), draw(ffn, width), draw(width, ffn))
    masters = AdapterWeights(
        draw(adapter, width, kind=torch.float32).requires_grad_(),
        draw(width, adapter, kind=torch.float32).requires_grad_(),
    )
    rows = (draw(count, width) * width**0.5).requires_grad_()
    scale = torch.rand(count, generator=generator).add(0.25).requires_grad_()
    residual = draw(count, width).requires_grad_()
    if slim:
        factor = draw(adapter, width, kind=torch.float32).mul(4).requires_grad_()
        masters = masters._replace(factor=factor)
    return Case(rows, execute, frozen, masters, scale, residual)


def run_both(
    rows: Tensor,
    execute: Tensor,
    ffn: FfnWeights,
    adapter: AdapterWeights | None = None,
    scale: Tensor | None = None,
    residual: Tensor | None = None,
) -> Tensor:
    """What the kernels must equal: FFN and adapter on every row, in float32, then a choice."""

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


def gradients(form: Callable[..., Tensor], case: Case) -> dict[str, Tensor]:
    """The output, and the gradient of every parameter under a fixed random upstream gradient."""
    output = form(*case)
    upstream = torch.randn(output.shape, generator=torch.Generator().manual_seed(9))
    output.backward(upstream.to(output.device, case.rows.dtype).to(output.dtype))
    grads = {name: tensor.grad for name, tensor in case.parameters().items()}
    return {"output": output.detach()} | {k: v for k, v in grads.items() if v is not None}


@contextmanager
def products() -> Iterator[list[int]]:
    """Lists the operations, two per term, of every matrix product that the interpreter runs."""
    from triton.runtime.interpreter import InterpreterBuilder

    mend()
    plain, operations = InterpreterBuilder.create_dot, list[int]()

    def create_dot(self: Any, left: Any, right: Any, *rest: Any) -> Any:
        operations.append(2 * left.data.size * right.data.shape[-1])
        return plain(self, left, right, *rest)

    create_dot.mended = True  # type: ignore[attr-defined]
    with patch.object(InterpreterBuilder, "create_dot", create_dot):
        yield operations
