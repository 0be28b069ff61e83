"""A launch on the device of its tensors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

from methods.kernels.launch import Launch


def test_a_kernel_is_launched_on_the_device_of_its_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    current, seen = list[Tensor](), list[Any]()

    @contextmanager
    def device_of(tensor: Tensor) -> Iterator[None]:
        current.append(tensor)
        yield
        current.pop()

    class Kernel:
        def __getitem__(self, grid: tuple[int, ...]) -> Any:
            return lambda **given: seen.append((*current, grid, given))

    monkeypatch.setattr(torch.cuda, "device_of", device_of)
    first, second = torch.zeros(1), torch.zeros(2)
    arguments = {"absent": None, "width": 4, "first": first, "second": second}
    Launch(Kernel(), (3,), arguments, warps=4, stages=2).run()
    ((where, grid, given),) = seen
    assert where is first
    assert (grid, given) == ((3,), arguments | {"num_warps": 4, "num_stages": 2})
