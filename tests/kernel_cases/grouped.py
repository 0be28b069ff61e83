"""The launches of the grouped dispatch at true shapes, as its own launcher makes them."""

from __future__ import annotations

from collections.abc import Iterator
from unittest.mock import patch

import torch

from methods.core.model.shapes import SHAPES
from methods.kernels import grouped, grouped_launch
from methods.kernels.grouped_launch import Device
from methods.kernels.launch import Launch
from tests.compiled import TARGETS, Case

TRUE_SHAPES = ("llama31_8b", "llama2_7b", "llama2_13b")
ADAPTER = 896
ROWS = 2048
plain = grouped.partition


def cases() -> Iterator[Case]:
    """Of one shape: widths are numbers to the kernels, so the others have the same binaries.

    Of a slim SwiGLU one launch is not among those of FFN and bottleneck.
    """
    for target in TARGETS:
        yield from recorded(TRUE_SHAPES[0], target, torch.bfloat16)
        slim = recorded(TRUE_SHAPES[0], target, torch.bfloat16, slim=True)
        yield from (case for case in slim if case.kernel == "expand_backward_adapter")


def recorded(shape: str, target: int, dtype: torch.dtype, slim: bool = False) -> list[Case]:
    """What forward and backward of a training step launch on ``target``, each launch once."""
    label = f"{shape}_{str(dtype).removeprefix('torch.')}" + " slim" * slim
    made: dict[str, Case] = {}

    def record(launch: Launch) -> None:
        name = _name(launch)
        made[name] = Case(
            name, label, launch.kernel, launch.arguments, launch.warps, launch.stages, [target]
        )

    device = Device((target // 10, target % 10), 132)
    with (
        torch.device("meta"),
        patch.object(Launch, "run", record),
        patch.object(grouped_launch, "device_of", lambda _: device),
    ):
        sizes = SHAPES[shape]
        step(sizes["hidden_size"], sizes["intermediate_size"], dtype, slim)
    return list(made.values())


def _name(launch: Launch) -> str:
    part = "adapter" if launch.arguments["F"] == ADAPTER else "ffn"
    name, transposed = launch.kernel.__name__, launch.arguments.get("TRANSPOSED")
    if name == "contract" and not transposed:
        name = "contract_backward"
    if name == "weight_gradient":
        part += "_up" if transposed else "_down"
    return f"{name}_{part}"


def step(width: int, ffn: int, dtype: torch.dtype, slim: bool = False) -> None:
    """Forward and backward of one routed FFN, on the default device; ``slim``: a SwiGLU beside.

    Meta tensors have no numbers: that of the executing rows is given.
    """
    rows, residual = (torch.empty(ROWS, width, dtype=dtype, requires_grad=True) for _ in range(2))
    weights = grouped.FfnWeights(
        torch.empty(ffn, width, dtype=dtype),
        torch.empty(ffn, width, dtype=dtype),
        torch.empty(width, ffn, dtype=dtype),
    )
    adapter = grouped.AdapterWeights(
        torch.empty(ADAPTER, width, requires_grad=True),
        torch.empty(width, ADAPTER, requires_grad=True),
        torch.empty(ADAPTER, width, requires_grad=True) if slim else None,
    )
    scale = torch.empty(ROWS, requires_grad=True)
    execute = torch.empty(ROWS, dtype=torch.bool)
    with patch.object(grouped, "partition", halved):
        updated = grouped.dispatch_kernels(rows, execute, weights, adapter, scale, residual)
    updated.backward(torch.empty_like(updated))


def halved(execute: torch.Tensor, counted: bool) -> grouped.Partition:
    """A partition in which half of the rows execute, as far as the host is told."""
    return plain(execute)._replace(executing=len(execute) // 2 if counted else None)
