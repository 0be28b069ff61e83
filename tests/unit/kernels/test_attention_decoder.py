"""A toy decoded with the attention of fixed room, against the routed decoder's own steps."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import pytest
import torch
from torch import Tensor

from methods.core.model.backbone import attention, attention_norm, decoder, ffn, ffn_norm, layers
from methods.core.routing.caches import EvictingLayer
from methods.core.routing.routed import route
from methods.core.routing.router import (
    Context,
    Gate,
    Router,
    Tokens,
    attention_units,
    block_units,
    evicting_units,
)
from methods.kernels import attention as module
from methods.kernels.attention import attention_workspace, routed_attention_decode
from methods.kernels.operands import AttentionCache, AttentionStep, attention_weights
from tests.interpreted import DEVICE
from tests.near import assert_near
from tests.toys.models import make_model

MAKERS = {"attention": attention_units, "block": block_units, "evicting": evicting_units}
IDS = torch.arange(24, device=DEVICE).reshape(2, 12)
PROMPT, CAPACITY, PADS = 8, 16, 3
FORMS = [
    False,
    pytest.param(True, marks=pytest.mark.skipif(not find_spec("triton"), reason="no Triton")),
]
# Qwen2 with full attention alone: its toy has a window.
QWEN2 = {"use_sliding_window": False, "layer_types": ["full_attention"] * 4}


class Chosen(Router):
    """Executes the first two tokens and those where (id + unit) is no multiple of three."""

    def __init__(self, model: Any, unit: str) -> None:
        super().__init__()
        self.units = MAKERS[unit](model, range(1, len(layers(model))))

    def start(self, tokens: Tokens, hidden: Tensor, at: Context) -> Tokens:
        return tokens

    def gate(
        self, index: int, block_input: Tensor, post: Tensor | None, state: Any, at: Context
    ) -> tuple[Gate, Any]:
        return Gate(execute=((state.ids + index) % 3 != 0) | (state.positions < 2)), state


def fixed(cache: Any, mask: Tensor) -> list[AttentionCache]:
    """The cache of a prompt by layer, in fixed room; what counts for nothing is NaN."""
    pads = (mask == 0).sum(1)
    made = []
    for layer in cache.layers:
        length = layer.keys.shape[2]
        room = (*layer.keys.shape[:2], CAPACITY, layer.keys.shape[3])
        live, stored, first = mask.bool(), torch.tensor(length, device=DEVICE), pads
        if isinstance(layer, EvictingLayer):
            live = layer.columns >= 0
            stored, first = live.sum(1, dtype=torch.int32), None
        parts = []
        for part in (layer.keys, layer.values):
            part = part.masked_fill(~live[:, None, :, None], float("nan"))
            parts.append(part.new_full(room, float("nan")))
            parts[-1][:, :, :length] = part
        made.append(AttentionCache(*parts, stored, first))
    return made


def step(
    model: Any, ids: Tensor, places: Tensor, gates: dict[int, Tensor],
    caches: list[AttentionCache], kind: str, triton: bool,
) -> Tensor:  # fmt: skip
    """One new token (B,) at its position: the states (B, D) behind the last norm."""
    inner = decoder(model)
    hidden = inner.embed_tokens(ids)
    rotary = inner.rotary_emb(hidden[:, None], position_ids=places[:, None])
    rotary = [part[:, 0] for part in rotary]
    for number, layer in enumerate(layers(model)):
        weights, execute = attention_weights(attention(layer)), gates.get(number)
        assert weights is not None
        space, middle = attention_workspace(len(ids), weights), torch.empty_like(hidden)
        evicts = kind == "evicting" and number in gates
        step = AttentionStep(
            hidden, attention_norm(layer)(hidden), execute, None, weights, *rotary,
            caches[number], middle, space, evicts,
        )  # fmt: skip
        routed_attention_decode(step, triton)
        update = ffn(layer)(ffn_norm(layer)(middle))
        if execute is not None and kind != "attention":
            update = torch.where(execute[:, None], update, 0)
        hidden = middle + update
        if not evicts:
            caches[number].stored.add_(1)
    return inner.norm(hidden)


@pytest.mark.parametrize("triton", FORMS, ids=["twin", "kernels"])
@pytest.mark.parametrize(
    ("kind", "backbone"),
    [("attention", "llama"), ("block", "qwen3"), ("evicting", "llama"), ("attention", "qwen2")],
)
@torch.no_grad()
def test_steps_equal_those_of_the_routed_decoder(
    kind: str, backbone: str, triton: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PROGRAMS", 8)
    model = make_model(backbone, **(QWEN2 if backbone == "qwen2" else {})).to(DEVICE)
    if backbone == "qwen2":
        for layer in layers(model):
            for part in "qkv":
                torch.nn.init.normal_(getattr(attention(layer), f"{part}_proj").bias)
    routed = route(model, Chosen(model, kind))
    mask = torch.ones_like(IDS)
    mask[1, :PADS] = 0
    places = (mask.cumsum(1) - 1).clamp(min=0)

    def run(begin: int, end: int, cache: Any) -> Any:
        return routed.model(
            IDS[:, begin:end], attention_mask=mask[:, :end], position_ids=places[:, begin:end],
            past_key_values=cache, use_cache=True,
        )  # fmt: skip

    eager = run(0, PROMPT, None)
    caches = fixed(eager.past_key_values, mask[:, :PROMPT])
    skipped = 0
    for t in range(PROMPT, IDS.shape[1]):
        eager = run(t, t + 1, eager.past_key_values)
        executed = eager.executed[..., 0]
        gates = {unit + 1: executed[:, unit].contiguous() for unit in range(executed.shape[1])}
        found = step(model, IDS[:, t], places[:, t], gates, caches, kind, triton)
        assert_near(found, eager.last_hidden_state[:, 0])
        skipped += int((~eager.executed).sum())
    assert skipped > 5
    if kind == "evicting":
        for number in gates:
            stored = eager.past_key_values.layers[number].columns
            assert torch.equal(caches[number].stored, (stored >= 0).sum(1, dtype=torch.int32))


def test_what_has_no_kernel_is_not_taken() -> None:
    windowed = make_model("qwen2")
    known = attention_weights(attention(layers(windowed)[0]))
    assert known is not None
    assert known.query_bias is not None
    assert attention_weights(attention(layers(windowed)[3])) is None
    biased = make_model("llama", attention_bias=True)
    assert attention_weights(attention(layers(biased)[0])) is None
    heads = attention(layers(make_model())[0])
    heads.v_proj = torch.nn.Sequential(heads.v_proj)
    assert attention_weights(heads) is None
