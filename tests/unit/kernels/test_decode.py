"""The decode kernels, under Triton's interpreter or on a GPU, against twin, dispatch and counts."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn.functional import linear, silu

from methods.core.routing.dispatch import dispatch_masked
from methods.core.routing.slim import SlimFFN
from methods.hero.adapter import Adapter
from methods.kernels.decode import decode_workspace, routed_ffn_decode
from methods.kernels.operands import AdapterWeights, FfnStep, FfnWeights
from tests.interpreted import DEVICE, bytes_read, prepare

pytest.importorskip("triton", reason="Triton is not installed")
prepare()

ALL, NONE = (True,) * 5, (False,) * 5
# One row, all rows, none, one of many, an odd count; 9 rows need the wider tile.
PATTERNS = (
    (True,),
    (False,),
    ALL,
    NONE,
    (False, False, True, False, False),
    (True, False, True, True, False),
    (True, False, False, True, False, True, False, True, False),
)
FORMS = pytest.mark.parametrize("slim", [False, True], ids=["bottleneck", "slim"])


def world(
    pattern: tuple[bool, ...],
    dtype: torch.dtype = torch.float32,
    width: int = 48,
    inner: int = 172,
    narrow: int = 14,
    slim: bool = False,
) -> FfnStep:
    """Random tensors; whatever a kernel should write or leave alone is NaN."""
    maker = torch.Generator().manual_seed(len(pattern) + width)

    def normal(*shape: int) -> Tensor:
        values = torch.randn(*shape, generator=maker) * shape[-1] ** -0.5
        return values.to(DEVICE, dtype)

    batch = len(pattern)
    hidden, normed = normal(batch, width), normal(batch, width) * width**0.5
    ffn = FfnWeights(normal(inner, width), normal(inner, width), normal(width, inner))
    adapter = AdapterWeights(normal(narrow, width), normal(width, narrow)) if narrow else None
    if adapter is not None and slim:
        adapter = adapter._replace(factor=4 * normal(narrow, width))
    space = decode_workspace(batch, ffn, adapter)
    for rows in space:
        if rows is not None:
            rows.fill_(float("nan"))
    scale = torch.rand(batch, generator=maker).to(DEVICE) + 0.5
    execute = torch.tensor(pattern, device=DEVICE)
    out = torch.full_like(hidden, float("nan"))
    return FfnStep(hidden, normed, execute, scale, ffn, adapter, out, space)


def near(found: Tensor, expected: Tensor) -> None:
    """Float32 sums in another order; in 16 bits one rounding of an activation and of the result."""
    eps = torch.finfo(found.dtype).eps
    scale = 200 if found.dtype is torch.float32 else 2
    bound = scale * eps * float(expected.abs().max())
    torch.testing.assert_close(found.float(), expected.float(), rtol=0, atol=bound)


@pytest.mark.parametrize("pattern", PATTERNS, ids=lambda p: "".join("ab"[not x] for x in p))
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@FORMS
def test_kernels_equal_their_twin(
    slim: bool, pattern: tuple[bool, ...], dtype: torch.dtype
) -> None:
    made = world(pattern, dtype, slim=slim)
    routed_ffn_decode(made, triton=True)
    twin = made._replace(out=torch.empty_like(made.out))
    routed_ffn_decode(twin, triton=False)
    near(made.out, twin.out)


@pytest.mark.parametrize("pattern", PATTERNS, ids=lambda p: "".join("ab"[not x] for x in p))
@pytest.mark.parametrize("width", [48, 64])
@FORMS
def test_kernels_equal_the_eager_dispatch(
    slim: bool, pattern: tuple[bool, ...], width: int
) -> None:
    made = world(pattern, width=width, slim=slim)
    assert made.adapter is not None
    adapter = (SlimFFN(width, 14) if slim else Adapter(width, 14, None)).to(DEVICE)
    with torch.no_grad():
        for weight, value in zip(adapter.matrices(), made.adapter, strict=True):
            if weight is not None:
                weight.copy_(value)

    def network(rows: Tensor) -> Tensor:
        return linear(silu(linear(rows, made.ffn.gate)) * linear(rows, made.ffn.up), made.ffn.down)

    with torch.no_grad():
        update = dispatch_masked(made.normed, made.execute, network, adapter, made.scale)
    routed_ffn_decode(made, triton=True)
    near(made.out, made.hidden + update)


@pytest.mark.parametrize("pattern", PATTERNS, ids=lambda p: "".join("ab"[not x] for x in p))
def test_rows_of_the_other_branch_stay_untouched(pattern: tuple[bool, ...]) -> None:
    made = world(pattern)
    routed_ffn_decode(made, triton=True)
    assert made.workspace.adapter is not None
    assert made.workspace.ffn.isnan().all(1).tolist() == [not runs for runs in pattern]
    assert made.workspace.ffn.isnan().any(1).tolist() == [not runs for runs in pattern]
    assert made.workspace.adapter.isnan().any(1).tolist() == list(pattern)


@pytest.mark.parametrize("pattern", PATTERNS, ids=lambda p: "".join("ab"[not x] for x in p))
def test_a_branch_that_no_row_takes_is_not_read(pattern: tuple[bool, ...]) -> None:
    made = world(pattern, slim=True)
    assert made.adapter is not None
    idle: tuple[Tensor, ...] = () if any(pattern) else made.ffn
    idle += made.adapter if all(pattern) else ()
    for weight in idle:
        weight.fill_(float("nan"))
    routed_ffn_decode(made, triton=True)
    assert made.out.isfinite().all()


@pytest.mark.parametrize("pattern", PATTERNS, ids=lambda p: "".join("ab"[not x] for x in p))
def test_without_an_adapter_a_bypassing_row_keeps_its_state(pattern: tuple[bool, ...]) -> None:
    made = world(pattern, narrow=0)
    routed_ffn_decode(made, triton=True)
    kept = torch.tensor([not runs for runs in pattern])
    assert torch.equal(made.out[kept], made.hidden[kept])
    twin = made._replace(out=torch.empty_like(made.out))
    routed_ffn_decode(twin, triton=False)
    near(made.out, twin.out)


@pytest.mark.parametrize("pattern", [(True,), (False,), PATTERNS[5]], ids=str)
def test_the_residual_stream_can_be_updated_in_place(pattern: tuple[bool, ...]) -> None:
    made = world(pattern)
    routed_ffn_decode(made, triton=True)
    again = made._replace(out=made.hidden)
    routed_ffn_decode(again, triton=True)
    assert torch.equal(made.out, again.out)


def test_what_does_not_fit_is_named() -> None:
    made = world(PATTERNS[5])
    assert made.adapter is not None
    with pytest.raises(ValueError, match="1 to 16 rows, not 17"):
        routed_ffn_decode(world((True,) * 17))
    with pytest.raises(ValueError, match="'normed' must be contiguous"):
        routed_ffn_decode(made._replace(normed=made.normed.bfloat16()))
    with pytest.raises(ValueError, match=r"'ffn.down' must be contiguous"):
        routed_ffn_decode(made._replace(ffn=made.ffn._replace(down=made.ffn.down.t())))
    with pytest.raises(ValueError, match=r"'adapter.factor' must be contiguous"):
        routed_ffn_decode(made._replace(adapter=made.adapter._replace(factor=made.adapter.up)))
    with pytest.raises(ValueError, match="no rows for the adapter"):
        routed_ffn_decode(made._replace(workspace=made.workspace._replace(adapter=None)))


@pytest.mark.skipif(DEVICE == "cuda", reason="reads are counted by the interpreter")
@pytest.mark.parametrize("pattern", PATTERNS, ids=lambda p: "".join("ab"[not x] for x in p))
def test_weights_are_read_once_for_all_rows(pattern: tuple[bool, ...]) -> None:
    """Widths are multiples of the tiles' rows, as published ones are: then no byte comes twice."""
    made = world(pattern, width=64, inner=176, narrow=16, slim=True)
    assert made.adapter is not None
    ffn, adapter = made.ffn._asdict(), made.adapter._asdict()
    with bytes_read({**ffn, **{f"adapter_{name}": part for name, part in adapter.items()}}) as read:
        routed_ffn_decode(made, triton=True)
    expected = {name: part.nbytes * any(pattern) for name, part in ffn.items()}
    bypass = not all(pattern)
    expected |= {f"adapter_{name}": part.nbytes * bypass for name, part in adapter.items()}
    assert read == expected
