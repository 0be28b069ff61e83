"""The grouped dispatch where kernels do not run: no Triton, no GPU, no host read."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from methods.core.routing.dispatch import dispatch
from methods.kernels import grouped
from methods.kernels.launch import Launch
from tests.toys.grouped import SIZES, gradients, make_case, run_both

ROOT = Path(__file__).resolve().parents[3]
WITHOUT = """
import sys
sys.modules["triton"] = None
from methods.kernels import grouped
from tests.toys.grouped import SIZES, make_case
given = make_case(SIZES[0], "some")
assert grouped.dispatch_fused(*given).equal(grouped.dispatch_reference(*given))
"""


@pytest.mark.parametrize("executing", ["none", "all", "one", "some"])
@pytest.mark.parametrize("slim", [False, True])
def test_the_twin_equals_the_masked_dispatch(slim: bool, executing: str) -> None:
    given, other = (make_case(SIZES[0], executing, slim=slim) for _ in "ab")
    found = gradients(grouped.dispatch_reference, given)
    for name, value in gradients(run_both, other).items():
        bound = 1e-5 * float(value.abs().max())
        torch.testing.assert_close(found[name], value, rtol=0, atol=bound)


def test_works_without_triton() -> None:
    subprocess.run([sys.executable, "-c", WITHOUT], cwd=ROOT, check=True)


def test_the_twin_gives_frozen_weights_no_gradient() -> None:
    given = make_case(SIZES[0], "some")
    for weight in given.ffn:
        weight.requires_grad_()
    grouped.dispatch_reference(*given).sum().backward()
    assert all(weight.grad is None for weight in given.ffn)


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_partition(share: float) -> None:
    execute = torch.rand(41, generator=torch.Generator().manual_seed(1)) < share
    order, bounds, _ = grouped.partition(execute)
    executing, others = execute.nonzero()[:, 0].tolist(), (~execute).nonzero()[:, 0].tolist()
    assert order.tolist() == executing + others
    assert bounds.tolist() == [0, len(executing), 41]
    assert order.dtype == bounds.dtype == torch.int32
    for counted in (False, True):
        for (part, (begin, end)), rows in zip(
            grouped.partition(execute, counted).parts(), (executing, others), strict=True
        ):
            assert part[begin:end].tolist() == rows
            assert len(part) == (len(rows) if counted else 41)


def launched(monkeypatch: pytest.MonkeyPatch) -> list[Launch]:
    """What would be launched; it is not."""
    launches = list[Launch]()
    monkeypatch.setattr(Launch, "run", lambda launch: launches.append(launch))
    return launches


def test_without_gradients_nothing_is_kept_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Though an adapter asks for one."""
    pytest.importorskip("triton", reason="the kernels need Triton, which is not installed")
    launches = launched(monkeypatch)
    for learns in (True, False):
        launches.clear()
        with torch.set_grad_enabled(learns):
            grouped.dispatch_kernels(*make_case(SIZES[0], "some", slim=True))
        kept = [launch.arguments for launch in launches if "gate_sum" in launch.arguments]
        assert len(kept) == 2
        assert all((part["gate_sum"] is not None) == learns for part in kept)
        assert all((part["up_sum"] is not None) == learns for part in kept)


def test_a_prompt_asks_the_device_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Meta tensors have no numbers: whoever reads one on the host fails."""
    pytest.importorskip("triton", reason="the kernels need Triton, which is not installed")
    launches, given = launched(monkeypatch), make_case(SIZES[0], "some")
    with torch.no_grad():
        parts = [part.to("meta") for part in (*given.ffn, *given.adapter[:2])]
        ffn, adapter = grouped.FfnWeights(*parts[:3]), grouped.AdapterWeights(*parts[3:])
        rows, execute, scale = (part.to("meta") for part in (*given[:2], given.scale))
        grouped.dispatch_kernels(rows, execute, ffn, adapter, scale)
        with pytest.raises(RuntimeError, match="meta"):
            dispatch(rows, execute, lambda part: part)
    assert [launch.kernel.__name__ for launch in launches] == 2 * ["expand", "contract"]


class Asked(TorchDispatchMode):
    """How often a number went to the host."""

    times = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self.times += "_local_scalar_dense" in str(func)
        return func(*args, **(kwargs or {}))


def test_a_training_step_asks_for_one_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """And not again in the backward pass."""
    pytest.importorskip("triton", reason="the kernels need Triton, which is not installed")
    launches = launched(monkeypatch)
    with Asked() as asked:
        grouped.dispatch_kernels(*make_case(SIZES[0], "some")).sum().backward()
    assert asked.times == 1
    assert [launch.kernel.__name__ for launch in launches] == [
        *2 * ["expand", "contract"],
        *2 * ["expand_backward", "contract"],
        *2 * ["weight_gradient"],
    ]
