"""The decode kernels of attention, under Triton's interpreter or on a GPU, against their twin."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from methods.kernels import attention as module
from methods.kernels.attention import attention_workspace, routed_attention_decode
from methods.kernels.operands import (
    AttentionCache,
    AttentionStep,
    AttentionWeights,
)
from tests.interpreted import DEVICE, bytes_read, prepare

pytest.importorskip("triton", reason="Triton is not installed")
from methods.kernels import attention_triton

prepare()

# One row, all rows, none, one of many, an odd count; 9 rows need the wider tile.
PATTERNS = (
    (True,),
    (False,),
    (True,) * 5,
    (False,) * 5,
    (False, False, True, False, False),
    (True, False, False, True, False, True, False, True, True),
)
# Empty, shorter than a turn, around one and two turns, many.
LENGTHS = (70, 0, 16, 15, 33, 1, 17, 32, 49)
CAPACITY = 75


class Shape(NamedTuple):
    """Widths, and which parts of a family the attention has."""

    width: int
    heads: int
    shared: int
    head_dim: int
    biases: bool = False
    norms: bool = False


GROUPED, PLAIN = Shape(48, 6, 2, 8), Shape(64, 3, 3, 16)
# Heads of Qwen2 and Qwen3, seven and two to a key; a width that is no power of two.
QWEN2, QWEN3 = Shape(40, 7, 1, 16, biases=True), Shape(48, 4, 2, 24, norms=True)


def copy(step: AttentionStep) -> AttentionStep:
    """The same numbers in buffers of its own."""
    parts = (None if part is None else part.clone() for part in step.cache)
    return step._replace(cache=AttentionCache(*parts), out=step.out.clone())


def normal(maker: torch.Generator, dtype: torch.dtype, *shape: int) -> Tensor:
    values = torch.randn(*shape, generator=maker) * shape[-1] ** -0.5
    return values.to(DEVICE, dtype)


def world(
    pattern: tuple[bool, ...],
    shape: Shape = GROUPED,
    dtype: torch.dtype = torch.float32,
    evicts: bool = False,
    padded: bool = False,
) -> AttentionStep:
    """Random tensors; whatever a kernel should write, leave alone or never read is NaN."""
    maker = torch.Generator().manual_seed(len(pattern) + shape.width)
    width, heads, shared, d = shape[:4]
    batch, wide, narrow = len(pattern), heads * d, shared * d

    def made(*sizes: int) -> Tensor:
        return normal(maker, dtype, *sizes)

    biases = [made(size) * size**0.5 if shape.biases else None for size in (wide, narrow, narrow)]
    norms = [made(d) * d**0.5 + 1 if shape.norms else None for _ in range(2)]
    weights = AttentionWeights(
        *(made(size, width) for size in (wide, narrow, narrow)), made(width, wide),
        *biases, *norms, 1e-6, d,
    )  # fmt: skip
    stored = torch.tensor(LENGTHS[:batch], dtype=torch.int32, device=DEVICE)
    first = (stored - 20).clamp(min=0) // 2 + stored.clamp(max=1) if padded else None
    keys, values = (made(batch, shared, CAPACITY, d) * d**0.5 for _ in range(2))
    columns = torch.arange(CAPACITY, device=DEVICE)
    idle = columns >= stored[:, None]
    if first is not None:
        idle |= columns < first[:, None]
    for kept in (keys, values):
        kept.masked_fill_(idle[:, None, :, None], float("nan"))
    space = attention_workspace(batch, weights)
    for rows in space[:-2]:
        rows.fill_(float("nan"))
    angles = torch.rand(batch, d // 2, generator=maker).repeat(1, 2).to(DEVICE) * 6
    hidden, normed = made(batch, width), made(batch, width) * width**0.5
    scale = torch.rand(batch, generator=maker).to(DEVICE) + 0.5
    execute, out = torch.tensor(pattern, device=DEVICE), torch.full_like(hidden, float("nan"))
    cache = AttentionCache(keys, values, stored, first)
    rotary = (angles.cos().to(dtype), angles.sin().to(dtype))
    return AttentionStep(
        hidden, normed, execute, scale, weights, *rotary, cache, out, space, evicts
    )


@pytest.fixture(autouse=True)
def turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short turns and few shares, so that a share takes several turns and some take none."""
    monkeypatch.setattr(attention_triton, "MOST_COLUMNS", 16)
    monkeypatch.setattr(module, "PROGRAMS", 8)


def near(found: Tensor, expected: Tensor) -> None:
    """Float32 sums in another order; in 16 bits a few roundings of what is between matrices."""
    assert torch.equal(found.isnan(), expected.isnan())
    found, expected = found.nan_to_num(), expected.nan_to_num()
    eps = torch.finfo(found.dtype).eps
    scale = 200 if found.dtype is torch.float32 else 3
    bound = scale * eps * float(expected.float().abs().max())
    torch.testing.assert_close(found.float(), expected.float(), rtol=0, atol=bound)


def compared(made: AttentionStep) -> None:
    """Kernels and twin leave the same output, cache and lengths."""
    twin = copy(made)
    routed_attention_decode(made, triton=True)
    routed_attention_decode(twin, triton=False)
    assert not made.out.isnan().any()
    near(made.out, twin.out)
    near(made.cache.key, twin.cache.key)
    near(made.cache.value, twin.cache.value)
    assert torch.equal(made.cache.stored, twin.cache.stored)


def name(pattern: Any) -> str:
    return "".join("ab"[not runs] for runs in pattern)


@pytest.mark.parametrize("pattern", PATTERNS, ids=name)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("evicts", [False, True], ids=["leaves", "evicts"])
def test_kernels_equal_their_twin(
    pattern: tuple[bool, ...], dtype: torch.dtype, evicts: bool
) -> None:
    compared(world(pattern, GROUPED, dtype, evicts))


@pytest.mark.parametrize("shape", [PLAIN, QWEN2, QWEN3], ids=["heads", "biases", "norms"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_every_family_and_width(shape: Shape, dtype: torch.dtype) -> None:
    compared(world(PATTERNS[5], shape, dtype))
    compared(world((True,), shape, dtype))


@pytest.mark.parametrize("pattern", [PATTERNS[0], PATTERNS[5]], ids=name)
@pytest.mark.parametrize("programs", [1, 16, 1000])
def test_any_number_of_shares_gives_the_same(
    pattern: tuple[bool, ...], programs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PROGRAMS", programs)
    compared(world(pattern, padded=True))


def test_padding_on_the_left_changes_nothing() -> None:
    """Each row alone, its columns moved to the front, reads the same."""
    made = world((True,) * 9, padded=True)
    routed_attention_decode(made, triton=True)
    first = made.cache.first
    assert first is not None and (first > 0).sum() > 5
    for row, begin in enumerate(first.tolist()):
        at = slice(row, row + 1)
        stored, space = made.cache.stored[at] - begin, attention_workspace(1, made.weights)
        cache = AttentionCache(
            *(kept[at].roll(-begin, 2).contiguous() for kept in made.cache[:2]), stored
        )
        out = torch.empty_like(made.hidden[at])
        assert made.scale is not None
        step = AttentionStep(
            made.hidden[at], made.normed[at], None, made.scale[at], made.weights,
            made.cosine[at], made.sine[at], cache, out, space,
        )  # fmt: skip
        routed_attention_decode(step, triton=True)
        near(out, made.out[at])


def test_rows_at_one_place_share_position_and_rotation() -> None:
    made = world((True, False, True))
    stored = torch.full((3,), 30, dtype=torch.int32, device=DEVICE)
    made = made._replace(
        cache=made.cache._replace(stored=stored),
        cosine=made.cosine[:1].expand(3, -1).contiguous(),
        sine=made.sine[:1].expand(3, -1).contiguous(),
    )
    for kept in made.cache[:2]:
        kept.nan_to_num_(0.5)
    one = copy(made)
    one = one._replace(
        cache=one.cache._replace(stored=torch.tensor(30, device=DEVICE)),
        cosine=one.cosine[:1],
        sine=one.sine[:1],
    )
    routed_attention_decode(made, triton=True)
    compared(one)
    assert torch.equal(made.out, one.out)


@pytest.mark.parametrize("evicts", [False, True])
def test_all_execute_where_nobody_decides(evicts: bool) -> None:
    made = world((True,) * 3, evicts=evicts)
    free = copy(made)._replace(execute=None, scale=None)
    routed_attention_decode(made._replace(scale=torch.ones(3, device=DEVICE)), triton=True)
    compared(free)
    assert torch.equal(free.out, made.out)


@pytest.mark.parametrize("pattern", PATTERNS, ids=name)
@pytest.mark.parametrize("evicts", [False, True], ids=["leaves", "evicts"])
def test_rows_that_skip_touch_nothing(pattern: tuple[bool, ...], evicts: bool) -> None:
    made = world(pattern, evicts=evicts)
    before = copy(made)
    routed_attention_decode(made, triton=True)
    skips = [not runs for runs in pattern]
    assert torch.equal(made.out[skips], made.hidden[skips])
    space = made.workspace
    for rows in (space.query, space.read, space.peaks.flatten(1)):
        assert rows.isnan().all(1).tolist() == rows.isnan().any(1).tolist() == skips
    newest = torch.arange(CAPACITY, device=DEVICE) == before.cache.stored[:, None]
    for kept, old in zip(made.cache[:2], before.cache[:2], strict=True):
        kept, old = (part.transpose(1, 2).nan_to_num(7e7) for part in (kept, old))
        written = (kept[newest] < 7e7).flatten(1).all(1).tolist()
        assert written == [runs or not evicts for runs in pattern]
        assert torch.equal(kept[~newest], old[~newest])
    grown = (made.cache.stored - before.cache.stored).tolist()
    assert grown == [int(evicts and runs) for runs in pattern]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_cache_that_evicts_grows_with_the_rows_that_execute(dtype: torch.dtype) -> None:
    """Seven steps; the kernels' own columns are what their next step reads."""
    made = world((True, True, True), PLAIN, dtype, evicts=True)
    twin = copy(made)
    maker = torch.Generator().manual_seed(5)
    for step in range(7):
        execute = torch.rand(3, generator=maker).to(DEVICE) < 0.6
        normed = normal(maker, dtype, *made.normed.shape) * 8
        sides = [side._replace(execute=execute, normed=normed) for side in (made, twin)]
        for side, triton in zip(sides, (True, False), strict=True):
            routed_attention_decode(side, triton=triton)
        near(made.out, twin.out)
        assert torch.equal(made.cache.stored, twin.cache.stored), step
    near(made.cache.key, twin.cache.key)
    assert made.cache.stored.sum() > sum(LENGTHS[:3]) + 7


def test_the_residual_stream_can_be_updated_in_place() -> None:
    made = world(PATTERNS[5])
    again = copy(made)._replace(out=made.hidden.clone())
    routed_attention_decode(made, triton=True)
    routed_attention_decode(again._replace(hidden=again.out), triton=True)
    assert torch.equal(made.out, again.out)


@pytest.mark.skipif(DEVICE == "cuda", reason="reads are counted by the interpreter")
@pytest.mark.parametrize("pattern", PATTERNS, ids=name)
@pytest.mark.parametrize("evicts", [False, True], ids=["leaves", "evicts"])
def test_only_what_executing_rows_need_is_read_and_once(
    pattern: tuple[bool, ...], evicts: bool
) -> None:
    """Heads fill the tiles' rows, as published ones do: then no byte of a weight comes twice."""
    made = world(pattern, PLAIN, evicts=evicts, padded=True)
    weights = {part: getattr(made.weights, part) for part in ("query", "key", "value", "output")}
    cache = {"keys": made.cache.key, "values": made.cache.value}
    assert made.cache.first is not None
    columns = (made.cache.stored - made.cache.first).tolist()
    with bytes_read(weights | cache) as read:
        routed_attention_decode(made, triton=True)
    used = dict.fromkeys(("query", "output"), any(pattern))
    used |= dict.fromkeys(("key", "value"), any(pattern) or not evicts)
    expected = {part: weight.nbytes * used[part] for part, weight in weights.items()}
    seen = sum(count for count, runs in zip(columns, pattern, strict=True) if runs)
    expected |= dict.fromkeys(cache, seen * PLAIN.shared * PLAIN.head_dim * 4)
    assert read == expected


def test_what_does_not_fit_is_named() -> None:
    made = world(PATTERNS[5])
    cache = made.cache
    with pytest.raises(ValueError, match="1 to 16 rows, not 17"):
        routed_attention_decode(made._replace(hidden=made.hidden.new_empty(17, 48)), triton=False)
    with pytest.raises(ValueError, match="'cosine' must be contiguous"):
        routed_attention_decode(made._replace(cosine=made.cosine[:, :4], sine=made.sine[:, :4]))
    with pytest.raises(ValueError, match=r"'cache.stored' must be torch.int32 or torch.int64"):
        routed_attention_decode(made._replace(cache=cache._replace(stored=cache.stored.float())))
    with pytest.raises(ValueError, match=r"'cache.stored' must be contiguous, \(9,\)"):
        routed_attention_decode(
            made._replace(cache=cache._replace(stored=cache.stored[0]), evicts=True)
        )
    with pytest.raises(ValueError, match=r"'cache.key' must be contiguous"):
        routed_attention_decode(made._replace(cache=cache._replace(key=cache.key.bfloat16())))
    sums = made.workspace.sums[:, :1]
    with pytest.raises(ValueError, match=r"'workspace.sums' must be contiguous"):
        routed_attention_decode(made._replace(workspace=made.workspace._replace(sums=sums)))
