"""The sorted dispatch against the one that runs both branches on everything."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from methods.core.routing.dispatch import dispatch, dispatch_masked

ROWS, WIDTH = 17, 8


def case(share: float, seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    maker = torch.Generator().manual_seed(seed)
    rows = torch.randn(ROWS, WIDTH, dtype=torch.float64, generator=maker)
    execute = torch.rand(ROWS, generator=maker) < share
    return rows, execute, torch.rand(ROWS, dtype=torch.float64, generator=maker)


def branches(seed: int) -> tuple[nn.Module, nn.Module]:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        big = nn.Sequential(nn.Linear(WIDTH, 16), nn.SiLU(), nn.Linear(16, WIDTH)).double()
        return big, nn.Linear(WIDTH, WIDTH).double()


@pytest.mark.parametrize("adapter", [False, True])
@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("share", [0.0, 0.2, 0.5, 0.9, 1.0])
def test_sorted_equals_masked_forward_and_backward(
    share: float, scaled: bool, adapter: bool
) -> None:
    results = []
    for function in (dispatch, dispatch_masked):
        rows, execute, scale = case(share, 3)
        branch, other = branches(4)
        rows.requires_grad_()
        scale.requires_grad_()
        update = function(
            rows, execute, branch, other if adapter else None, scale if scaled else None
        )
        (update * torch.arange(WIDTH)).sum().backward()
        wanted = [rows, *branch.parameters(), *(other.parameters() if adapter else ())]
        wanted += [scale] if scaled else []
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in wanted]
        results.append([update.detach(), *gradients])
    for fast, slow in zip(*results, strict=True):
        torch.testing.assert_close(fast, slow, rtol=1e-12, atol=1e-12)


def test_each_row_goes_through_exactly_one_branch() -> None:
    rows = torch.arange(5.0)[:, None].expand(5, 2)
    execute = torch.tensor([True, False, True, True, False])
    seen: dict[str, list[float]] = {}

    def note(name: str, factor: float) -> object:
        def branch(part: torch.Tensor) -> torch.Tensor:
            seen[name] = sorted(part[:, 0].tolist())
            return factor * part

        return branch

    update = dispatch(rows, execute, note("run", 10), note("skip", 100))
    assert seen == {"run": [0, 2, 3], "skip": [1, 4]}
    assert update[:, 0].tolist() == [0, 100, 20, 30, 400]


def test_a_skipped_row_without_adapter_gets_zero() -> None:
    rows = torch.ones(4, 2)
    update = dispatch(rows, torch.tensor([False, True, False, True]), lambda part: part * 3)
    assert update[:, 1].tolist() == [0, 3, 0, 3]


def test_scale_multiplies_whichever_branch_runs() -> None:
    rows, execute = torch.ones(2, 1), torch.tensor([True, False])
    scale = torch.tensor([0.5, 0.25])
    update = dispatch(rows, execute, lambda part: part * 8, lambda part: part * 16, scale)
    assert update[:, 0].tolist() == [4, 4]


@pytest.mark.parametrize("every", [True, False])
def test_an_adapter_sees_the_graph_also_without_rows(every: bool) -> None:
    rows, branch, other = torch.randn(6, WIDTH).double(), *branches(0)
    dispatch(rows, torch.full((6,), every), branch, other).sum().backward()
    assert all(p.grad is not None for p in (*branch.parameters(), *other.parameters()))


@pytest.mark.parametrize("every", [True, False])
def test_what_no_row_needs_does_not_run_without_gradients(every: bool) -> None:
    def refused(rows: torch.Tensor) -> torch.Tensor:
        raise AssertionError("no row needs this branch")

    def doubled(rows: torch.Tensor) -> torch.Tensor:
        return rows * 2

    pair = (doubled, refused) if every else (refused, doubled)
    with torch.no_grad():
        update = dispatch(torch.ones(3, 2), torch.full((3,), every), *pair, torch.full((3,), 0.5))
    assert update.tolist() == [[1, 1]] * 3
