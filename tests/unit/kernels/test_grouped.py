"""The grouped kernels under Triton's interpreter, against their twin and the masked dispatch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from methods.core.routing.dispatch import dispatch
from methods.kernels import grouped
from tests.toys.grouped import SIZES, Case, gradients, make_case, products, run_both

pytest.importorskip("triton", reason="the kernels need Triton, which is not installed")
grouped_launch = pytest.importorskip("methods.kernels.grouped_launch")
if torch.cuda.is_available():
    pytest.skip("the interpreter is off where there is a GPU", allow_module_level=True)

EXECUTING = ("none", "all", "one", "some")
# Of the largest number, for sums of at most 172 terms: rounding of the dtype.
NEAR = {torch.float32: 1e-5, torch.bfloat16: 2e-2}
FORMS = pytest.mark.parametrize("slim", [False, True], ids=["bottleneck", "slim"])


@pytest.fixture(autouse=True)
def counted() -> Iterator[list[int]]:
    with products() as operations:
        yield operations


def assert_close(found: Tensor, expected: Tensor, part: float, what: str = "") -> None:
    bound = part * float(expected.detach().float().abs().max())
    torch.testing.assert_close(
        found.float(), expected.float(), rtol=0, atol=bound, msg=lambda text: f"{what}: {text}"
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("executing", EXECUTING)
@pytest.mark.parametrize("sizes", SIZES)
@FORMS
def test_output_equals_the_twin_and_the_masked_dispatch(
    slim: bool, sizes: Any, executing: str, dtype: torch.dtype
) -> None:
    given = make_case(sizes, executing, dtype, slim)
    with torch.no_grad():
        found = grouped.dispatch_kernels(*given)
        assert found.dtype == dtype
        assert_close(found, grouped.dispatch_reference(*given), NEAR[dtype])
        assert_close(found, run_both(*given), NEAR[dtype])


@pytest.mark.parametrize("executing", EXECUTING)
@pytest.mark.parametrize("sizes", SIZES[::2])
@FORMS
def test_gradients_equal_those_of_the_masked_dispatch(
    slim: bool, sizes: Any, executing: str
) -> None:
    given = make_case(sizes, executing, slim=slim)
    found = gradients(grouped.dispatch_kernels, given)
    expected = gradients(run_both, make_case(sizes, executing, slim=slim))
    assert found.keys() == expected.keys() == {"output", *given.parameters()}
    for name, value in expected.items():
        assert_close(found[name], value, 1e-5, name)


@FORMS
def test_gradients_in_bfloat16_come_in_the_dtype_of_what_is_trained(slim: bool) -> None:
    given = make_case(SIZES[0], "some", torch.bfloat16, slim)
    found = gradients(grouped.dispatch_kernels, given)
    expected = gradients(run_both, make_case(SIZES[0], "some", torch.bfloat16, slim))
    for name, tensor in given.parameters().items():
        assert found[name].dtype == tensor.dtype
        assert_close(found[name], expected[name], 3e-2, name)


@pytest.mark.parametrize("name", ["rows", "down", "up", "factor", "scale", "residual"])
def test_gradients_are_slopes(name: str) -> None:
    slim = name == "factor"
    given = make_case(SIZES[2], "some", slim=slim)
    upstream = torch.randn(given.rows.shape, generator=torch.Generator().manual_seed(9))
    gradient = gradients(grouped.dispatch_kernels, given)[name]
    step = torch.randn(gradient.shape, generator=torch.Generator().manual_seed(7)) * 3e-3
    ends = []
    for sign in (1, -1):
        moved = make_case(SIZES[2], "some", slim=slim)
        with torch.no_grad():
            moved.parameters()[name].add_(sign * step)
            ends.append(float((grouped.dispatch_kernels(*moved) * upstream).double().sum()))
    assert (ends[0] - ends[1]) / 2 == pytest.approx(float((gradient * step).sum()), rel=2e-3)


@pytest.mark.parametrize("left_out", ["adapter", "scale", "residual"])
@pytest.mark.parametrize("executing", ["none", "some"])
def test_parts_may_be_left_out(left_out: str, executing: str) -> None:
    found, expected = (
        gradients(
            lambda *given, form=form: form(**Case(*given)._asdict() | {left_out: None}),
            make_case(SIZES[0], executing),
        )
        for form in (grouped.dispatch_kernels, run_both)
    )
    for name, value in expected.items():
        if name in found:
            assert_close(found[name], value, 1e-5, name)
        else:
            assert not value.any()
    assert {"output", "rows"} <= found.keys()


def test_only_the_asked_gradients_are_made() -> None:
    given = make_case(SIZES[0], "some")
    given.rows.requires_grad_(False)
    given.adapter.up.requires_grad_(False)
    found = gradients(grouped.dispatch_kernels, given)
    expected = gradients(run_both, make_case(SIZES[0], "some"))
    assert found.keys() == {"output", "down", "scale", "residual"}
    for name, value in found.items():
        assert_close(value, expected[name], 1e-5, name)


@pytest.mark.parametrize("executing", EXECUTING)
@FORMS
def test_memory_behind_the_counted_rows_is_left_alone(
    slim: bool, executing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every buffer starts as NaN: what is read too far spreads, what is written too far shows."""
    buffers = list[Tensor]()

    def poisoned(shape: Any, like: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        fill = float("nan") if (dtype or like.dtype).is_floating_point else 2**30
        made = torch.full(shape, fill, dtype=dtype or like.dtype)
        buffers.append(made)
        return made

    def empty_like(like: Tensor, dtype: torch.dtype | None = None, **_: Any) -> Tensor:
        return poisoned(like.shape, like, dtype)

    plain = Tensor.new_empty

    def new_empty(
        like: Tensor, *shape: Any, dtype: torch.dtype | None = None, **other: Any
    ) -> Tensor:
        # With more arguments it is the interpreter that asks.
        if other:
            return plain(like, *shape, dtype=dtype, **other)
        return poisoned(shape[0] if isinstance(shape[0], torch.Size) else shape, like, dtype)

    given, other = (make_case(SIZES[0], executing, slim=slim) for _ in "ab")
    expected = gradients(run_both, other)
    monkeypatch.setattr(torch, "empty_like", empty_like)
    monkeypatch.setattr(Tensor, "new_empty", new_empty)
    for name, value in gradients(grouped.dispatch_kernels, given).items():
        assert_close(value, expected[name], 1e-5, name)
    count, (rows, _, ffn, adapter) = int(given.execute.sum()), SIZES[0]
    # Where gradients flow a buffer has no other rows.
    assert [len(b) for b in buffers if b.shape[1:] == (ffn,)] == [count] * 5
    others = [len(b) for b in buffers if b.shape in ((count, adapter), (rows - count, adapter))]
    assert others == [rows - count] * (6 if slim else 4)
    assert not any(buffer.isnan().any() for buffer in buffers)
    buffers.clear()
    with torch.no_grad():
        assert_close(grouped.dispatch_kernels(*given), expected["output"], 1e-5)
    hidden, instead = (b for b in buffers if b.shape[1:] in ((ffn,), (adapter,)))
    assert hidden[count:].isnan().all() and not hidden[:count].isnan().any()
    assert instead[:count].isnan().all() and not instead[count:].isnan().any()


@pytest.mark.parametrize("branch", [True, False])
def test_a_branch_reads_no_row_of_the_other(branch: bool) -> None:
    given, expected = make_case(SIZES[0], "some"), gradients(run_both, make_case(SIZES[0], "some"))
    theirs = given.execute == branch
    with torch.no_grad():
        given.rows[theirs] = float("nan")
    found = gradients(grouped.dispatch_kernels, given)
    for name in ("output", "rows", "scale"):
        assert found[name][theirs].isnan().any()
        assert_close(found[name][~theirs], expected[name][~theirs], 1e-5, name)


def test_any_number_of_programs_gives_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    results = []
    for programs in (1, 7):
        monkeypatch.setattr(grouped_launch, "INTERPRETED_PROGRAMS", programs)
        results.append(gradients(grouped.dispatch_kernels, make_case(SIZES[0], "some")))
    for other in results[1:]:
        assert all(torch.equal(results[0][name], other[name]) for name in other)


@pytest.mark.parametrize("group", [1, 2])
def test_tiles_in_groups_are_all_walked(group: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grouped_launch, "GROUP", group)
    given = make_case(SIZES[0], "all")
    assert_close(grouped.dispatch_kernels(*given), run_both(*given), 1e-5)


def test_no_rows() -> None:
    found = gradients(grouped.dispatch_kernels, make_case(SIZES[0]._replace(rows=0), "all"))
    assert found["output"].shape == (0, SIZES[0].width)
    assert not found["down"].any() and not found["up"].any()


def test_a_wrong_dtype_or_shape_is_refused() -> None:
    given = make_case(SIZES[0], "all")
    with pytest.raises(ValueError, match="ffn"):
        grouped.dispatch_kernels(given.rows.bfloat16(), *given[1:])
    with pytest.raises(ValueError, match="residual"):
        grouped.dispatch_kernels(*given[:5], residual=given.residual[1:])


def test_strided_inputs() -> None:
    given = make_case(SIZES[0], "some")
    rows, scale = (torch.stack([part, -part], dim=-1)[..., 0] for part in (given.rows, given.scale))
    assert not rows.is_contiguous() and not scale.is_contiguous()
    found = grouped.dispatch_kernels(rows, *given[1:4], scale, given.residual)
    assert_close(found, run_both(*given), 1e-5)


def test_half_precision() -> None:
    given = make_case(SIZES[0], "some", torch.float16)
    assert_close(grouped.dispatch_kernels(*given), run_both(*given), 5e-3)


def test_the_dispatch_that_is_replaced_agrees() -> None:
    given = make_case(SIZES[0], "some")
    gate, up, down = given.ffn
    branch = lambda part: (torch.nn.functional.silu(part @ gate.T) * (part @ up.T)) @ down.T  # noqa: E731
    expected = given.residual + dispatch(given.rows, given.execute, branch, None, given.scale)
    found = grouped.dispatch_kernels(*given._replace(adapter=None))  # type: ignore[arg-type]
    assert_close(found, expected, 1e-5)
