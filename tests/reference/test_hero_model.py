"""A toy Llama under HeRo against a forward pass of plain loops, in every way it may be called."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from methods import load_method, load_model
from methods.base import Fitted, Request
from methods.core.model.backbone import decoder, load_backbone
from methods.core.model.checkpoint import describe, save
from methods.core.routing.routed import router_of
from methods.hero.router import HeroRouter
from tests.reference import hero_oracle as oracle
from tests.toys.models import make_model
from tests.toys.texts import PAD

ROUTED = [2, 3, 5]
STRUCTURE = {"layers": ROUTED, "seed": 3, "threshold": 0.5}
LENGTHS = (11, 7, 9)
# Balances the local head that `perturb` draws.
SHIFT = 0.7
ROWS = [
    torch.randint(0, 60, (length,), generator=torch.Generator().manual_seed(length)).tolist()
    for length in LENGTHS
]


class Found(NamedTuple):
    """Of one sequence: gates and decisions (R, T), logits (T, V)."""

    gates: Tensor
    executed: Tensor
    logits: Tensor


def perturb(router: HeroRouter) -> None:
    """Gates on both sides of the threshold, a memory that matters, adapters that add."""
    rng = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in router.parameters():
            inputs = parameter.shape[-1] if parameter.dim() > 1 else 1
            noise = torch.randn(parameter.shape, generator=rng)
            parameter.copy_(0.7 * noise / math.sqrt(inputs))
        if isinstance(router, HeroRouter):
            router.formula_parameters()["local_b2"] -= SHIFT


def hero(folder: Path, **params: Any) -> PreTrainedModel:
    model = load_method("hero", params).build(load_backbone(folder), STRUCTURE)
    perturb(router_of(model))
    return model.eval()


@pytest.fixture(scope="module")
def model(llama: Path) -> PreTrainedModel:
    return hero(llama)


@pytest.fixture(scope="module")
def slow(model: PreTrainedModel) -> list[Found]:
    """The reference, one sequence at a time; no gate so near a half that rounding decides."""
    found = [plain_forward(model, ids) for ids in ROWS]
    gates = torch.cat([one.gates.flatten() for one in found])
    assert bool(((gates - 0.5).abs() > 1e-4).all())
    assert 0.2 < float((gates >= 0.5).double().mean()) < 0.8
    return found


def norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return weight * x / math.sqrt(float(x @ x) / len(x) + eps)


def rotate(x: Tensor, position: int, base: float) -> Tensor:
    """Rotary embedding of one head: pairs (i, i + half) turn by position * base^(-2i / width)."""
    half = len(x) // 2
    turned = torch.empty_like(x)
    for i in range(half):
        angle = position * base ** (-2 * i / len(x))
        cos, sin = math.cos(angle), math.sin(angle)
        turned[i] = x[i] * cos - x[i + half] * sin
        turned[i + half] = x[i + half] * cos + x[i] * sin
    return turned


def attend(w: oracle.Weights, prefix: str, rows: list[Tensor], config: Any) -> list[Tensor]:
    """Causal grouped-query attention on normed rows, one token and one head at a time."""
    heads, groups = config.num_attention_heads, config.num_key_value_heads
    width = config.hidden_size // heads
    base = config.rope_parameters["rope_theta"]

    def part(name: str, count: int, turn: bool) -> list[list[Tensor]]:
        made = []
        for position, row in enumerate(rows):
            pieces = (w[f"{prefix}.{name}.weight"] @ row).split(width)
            assert len(pieces) == count
            made.append([rotate(p, position, base) if turn else p for p in pieces])
        return made

    queries, keys = part("q_proj", heads, True), part("k_proj", groups, True)
    values = part("v_proj", groups, False)
    outputs = []
    for position in range(len(rows)):
        mixed = []
        for head in range(heads):
            group = head * groups // heads
            scores = [
                float(queries[position][head] @ keys[past][group]) / math.sqrt(width)
                for past in range(position + 1)
            ]
            weights = [math.exp(score - max(scores)) for score in scores]
            total = sum(weights)
            mixed.append(sum(weight / total * values[n][group] for n, weight in enumerate(weights)))
        outputs.append(w[f"{prefix}.o_proj.weight"] @ torch.cat(mixed))
    return outputs


def plain_forward(model: PreTrainedModel, ids: list[int]) -> Found:
    """Every layer for every token from the weights alone, in float64, without a cache."""
    w = oracle.in_double(model.state_dict())
    router = router_of(model)
    weights, eps = oracle.in_double(router.formula_parameters()), model.config.rms_norm_eps
    states = [oracle.fresh(weights) for _ in ids]
    hidden = [w["model.embed_tokens.weight"][token] for token in ids]
    gates = []
    for number in range(model.config.num_hidden_layers):
        name = f"model.layers.{number}"
        normed = [norm(h, w[f"{name}.input_layernorm.weight"], eps) for h in hidden]
        mixed = attend(w, f"{name}.self_attn", normed, model.config)
        middle = [h + update for h, update in zip(hidden, mixed, strict=True)]
        inner = [norm(h, w[f"{name}.post_attention_layernorm.weight"], eps) for h in middle]
        if number not in ROUTED:
            hidden = [h + ffn(w, name, u) for h, u in zip(middle, inner, strict=True)]
            continue
        block = ROUTED.index(number)
        row = []
        for token, (hbar, u) in enumerate(zip(middle, inner, strict=True)):
            found, states[token] = oracle.one_gate(
                weights, block + 1, len(ROUTED), hbar, states[token], eps, router.variant
            )
            gate = found["gate"]
            row.append(gate)
            adapter = f"model.router.adapters.{block}"
            if gate >= 0.5:
                hidden[token] = hbar + gate * ffn(w, name, u)
            else:
                down, up = w[f"{adapter}.down.weight"], w[f"{adapter}.up.weight"]
                hidden[token] = hbar + (1 - gate) * (up @ oracle.silu(down @ u))
        gates.append(row)
    last = [norm(h, w["model.norm.weight"], eps) for h in hidden]
    logits = torch.stack([w["lm_head.weight"] @ h for h in last])
    soft = torch.tensor(gates, dtype=torch.float64)
    return Found(soft, soft >= 0.5, logits)


def ffn(w: oracle.Weights, layer: str, u: Tensor) -> Tensor:
    gate, up, down = (w[f"{layer}.mlp.{part}_proj.weight"] for part in ("gate", "up", "down"))
    return down @ (oracle.silu(gate @ u) * (up @ u))


@torch.no_grad()
def fast(model: PreTrainedModel, **inputs: Any) -> Found:
    """The batched model: gates and decisions (B, R, T), logits (B, T, V)."""
    output = decoder(model)(**inputs)
    return Found(output.soft, output.executed, model.lm_head(output.last_hidden_state))


def agrees(found: Found, row: int, where: slice, expected: Found, place: slice) -> None:
    assert torch.equal(found.executed[row, :, where], expected.executed[:, place])
    near = {"rtol": 0, "atol": 1e-5}
    torch.testing.assert_close(
        found.gates[row, :, where].double(), expected.gates[:, place], **near
    )
    torch.testing.assert_close(
        found.logits[row, where].double(), expected.logits[place], rtol=1e-4, atol=1e-4
    )


def padded(side: str) -> tuple[Tensor, Tensor, list[slice]]:
    """Ids and mask (B, T), and where each sequence lies."""
    width = max(LENGTHS)
    ids = torch.full((len(ROWS), width), PAD)
    mask = torch.zeros(len(ROWS), width, dtype=torch.int64)
    places = []
    for number, row in enumerate(ROWS):
        first = width - len(row) if side == "left" else 0
        places.append(slice(first, first + len(row)))
        ids[number, places[-1]] = torch.tensor(row)
        mask[number, places[-1]] = 1
    return ids, mask, places


def test_one_by_one(model: PreTrainedModel, slow: list[Found]) -> None:
    for ids, expected in zip(ROWS, slow, strict=True):
        agrees(fast(model, input_ids=torch.tensor([ids])), 0, slice(None), expected, slice(None))


@pytest.mark.parametrize("positions", ["given", "counted"])
@pytest.mark.parametrize("side", ["left", "right"])
def test_batch_with_pads(
    model: PreTrainedModel, slow: list[Found], side: str, positions: str
) -> None:
    ids, mask, places = padded(side)
    given = {} if positions == "counted" else {"position_ids": (mask.cumsum(1) - 1).clamp(min=0)}
    found = fast(model, input_ids=ids, attention_mask=mask, **given)
    for row, place in enumerate(places):
        agrees(found, row, place, slow[row], slice(None))


def test_packed_row(model: PreTrainedModel, slow: list[Found]) -> None:
    ids = torch.tensor([[token for row in ROWS for token in row]])
    positions = torch.cat([torch.arange(length) for length in LENGTHS])[None]
    found = fast(model, input_ids=ids, position_ids=positions, use_cache=False)
    start = 0
    for expected, length in zip(slow, LENGTHS, strict=True):
        agrees(found, 0, slice(start, start + length), expected, slice(None))
        start += length


@pytest.mark.parametrize("steps", [[1] * 11, [5, 1, 1, 1, 3], [10, 1]])
def test_cached(model: PreTrainedModel, slow: list[Found], steps: list[int]) -> None:
    assert sum(steps) == LENGTHS[0]
    cache, start = None, 0
    for step in steps:
        part = torch.tensor([ROWS[0][start : start + step]])
        with torch.no_grad():
            output = decoder(model)(input_ids=part, past_key_values=cache, use_cache=True)
        cache = output.past_key_values
        found = Found(output.soft, output.executed, model.lm_head(output.last_hidden_state))
        agrees(found, 0, slice(None), slow[0], slice(start, start + step))
        start += step


def test_cached_and_left_padded(model: PreTrainedModel, slow: list[Found]) -> None:
    ids, mask, places = padded("left")
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    cache, width = None, ids.shape[1]
    for first, last in ((0, 8), (8, 9), (9, width)):
        with torch.no_grad():
            output = decoder(model)(
                input_ids=ids[:, first:last], attention_mask=mask[:, :last],
                position_ids=positions[:, first:last], past_key_values=cache, use_cache=True,
            )  # fmt: skip
        cache = output.past_key_values
        found = Found(output.soft, output.executed, model.lm_head(output.last_hidden_state))
        for row, place in enumerate(places):
            begin = max(first, place.start)
            agrees(
                found, row, slice(begin - first, last - first), slow[row],
                slice(begin - place.start, last - place.start),
            )  # fmt: skip


@pytest.mark.parametrize(
    "params",
    [
        {"memory_width": 32},
        {"variant": "no-history"},
        {"variant": "no-memread"},
        {"variant": "no-aux"},
        {"variant": "no-position"},
        {"variant": "same-size"},
    ],
    ids=lambda params: str(next(iter(params.values()))),
)
def test_other_routers(llama: Path, params: dict[str, Any]) -> None:
    model = hero(llama, **params)
    expected = plain_forward(model, ROWS[1])
    assert bool(((expected.gates - 0.5).abs() > 1e-4).all())
    agrees(fast(model, input_ids=torch.tensor([ROWS[1]])), 0, slice(None), expected, slice(None))


def test_later_tokens_never_change_earlier_gates(model: PreTrainedModel) -> None:
    ids = torch.tensor([ROWS[0]])
    before = fast(model, input_ids=ids)
    for place in (1, 5, 10):
        other = ids.clone()
        other[0, place:] = (other[0, place:] + 17) % 60
        after = fast(model, input_ids=other)
        near = {"rtol": 0, "atol": 1e-6}
        torch.testing.assert_close(after.gates[..., :place], before.gates[..., :place], **near)
        assert torch.equal(after.executed[..., :place], before.executed[..., :place])
        assert (after.gates[..., place] - before.gates[..., place]).abs().max() > 1e-3


def test_forced_decisions_replace_decision_and_scale(model: PreTrainedModel) -> None:
    ids = torch.tensor([ROWS[0]])
    every = torch.ones(1, len(ROUTED), len(ROWS[0]), dtype=torch.bool)
    dense = make_model()(ids).logits
    assert torch.equal(model(ids, forced=every).logits, dense)
    assert not torch.allclose(model(ids).logits, dense, atol=1e-2)


@pytest.mark.parametrize("variant", ["full", "no-history", "same-size", "static", "random"])
def test_save_and_load(llama: Path, tmp_path: Path, variant: str) -> None:
    backbone = load_backbone(llama)
    method = load_method("hero", {"variant": variant})
    structure = STRUCTURE | {"threshold": 0.41, "rates": [[0.3], [0.6], [0.1]], "closed": 2}
    model = method.build(backbone, structure).eval()
    perturb(router_of(model))
    card = describe("hero", method, backbone, Request(0.1, 3, tmp_path), tmp_path)
    save(tmp_path, method, Fitted(model, structure, {}), card, None)
    again = load_model(tmp_path)
    ids = torch.tensor([ROWS[0]])
    # Where a tensor starts in memory may move the last bit of a product.
    weights = again.state_dict()
    assert all(torch.equal(value, weights[name]) for name, value in model.state_dict().items())
    torch.testing.assert_close(again(ids).logits, model(ids).logits, rtol=1e-5, atol=1e-5)
    assert torch.equal(fast(again, input_ids=ids).executed, fast(model, input_ids=ids).executed)
    if variant == "full":
        assert router_of(again).threshold == 0.41


def test_adapters_of_a_16_bit_backbone_are_cast_once(llama: Path, tmp_path: Path) -> None:
    backbone = load_backbone(llama, "bfloat16")
    method = load_method("hero", {})
    model = method.build(backbone, STRUCTURE).eval()
    perturb(router_of(model))
    card = describe("hero", method, backbone, Request(0.1, 3, tmp_path), tmp_path)
    save(tmp_path, method, Fitted(model, STRUCTURE, {}), card, None)
    again = load_model(tmp_path)
    kept, cast = (router_of(m).alternative(0).down.weight for m in (model, again))
    assert (kept.dtype, cast.dtype) == (torch.float32, torch.bfloat16)
    assert router_of(again).local_head[0].weight.dtype == torch.float32
    ids = torch.tensor([ROWS[0]])
    torch.testing.assert_close(again(ids).logits, model(ids).logits, rtol=1e-2, atol=1e-2)
