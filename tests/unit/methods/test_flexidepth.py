"""FlexiDepth: what runs, what carries a gradient, what a skipped token leaves behind."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache

from methods import load_method
from methods.base import Request
from methods.core.data import Document
from methods.core.model.backbone import (
    attention,
    attention_norm,
    decoder,
    empty_backbone,
    ffn,
    ffn_norm,
    shape_config,
)
from methods.core.model.backbone import layers as layers_of
from methods.core.model.ledger import Ledger, Tally
from methods.core.routing.router import Context
from methods.core.routing.steering import squared_use
from tests.near import assert_near
from tests.toys.models import keep_layers, make_model, wrap
from tests.toys.routed import (
    IDS,
    ROUTED,
    TRAINING,
    build_biased,
    causal_reads,
    shake_variant,
    slow_attention,
)
from tests.toys.texts import ids_of

DENSE = make_model()
built = partial(build_biased, "flexidepth")


def fill_adapters(model: Any) -> None:
    """Make W_up other than zero."""
    for adapter in model.model.router.adapters:
        torch.nn.init.normal_(adapter.up.weight, generator=torch.Generator().manual_seed(2))


def slow_states(model: Any, ids: Tensor) -> tuple[Tensor, list[list[bool]]]:
    """One sequence (T,): final states (T, D) and who runs, [routed layer][T], by the formulas."""
    router, hidden, ran = model.model.router, model.model.embed_tokens(ids), []
    numbers = [unit.layer for unit in router.units[::2]]
    for number, layer in enumerate(layers_of(model)):
        normed = attention_norm(layer)(hidden)
        mixed = slow_attention(model, layer, normed, causal_reads(len(ids)))
        place = numbers.index(number) if number in numbers else None
        rows, choice = [], []
        for h, z, update in zip(hidden, normed, mixed, strict=True):
            if place is None:
                x = h + update
                rows.append(x + ffn(layer)(ffn_norm(layer)(x[None]))[0])
                continue
            head, slim = router.heads[place], router.adapters[place]
            inner = head.enc.weight @ z
            inner = inner / (inner.square().mean() + head.norm.eps).sqrt() * head.norm.weight
            logit = head.head.weight[0] @ (head.dec.weight @ inner.tanh()) + router.initial_bias
            w = 1 / (1 + (-logit).exp())
            choice.append(bool(w > 0.5))
            if choice[-1]:
                x = h + update
                rows.append(x + w * ffn(layer)(ffn_norm(layer)(x[None]))[0])
            else:
                u = ffn_norm(layer)(h[None])[0]
                opened = torch.nn.functional.silu(slim.gate.weight @ u)
                rows.append(h + (1 - w) * (slim.up.weight @ (opened * (slim.down.weight @ u))))
        hidden = torch.stack(rows)
        ran += [choice] if place is not None else []
    return model.model.norm(hidden), ran


@torch.no_grad()
def test_the_formulas_token_by_token() -> None:
    model = shake_variant("flexidepth")
    model.model.router.initial_bias = 0.0
    output = model.model(IDS, use_cache=False)
    for row, ids in enumerate(IDS):
        states, ran = slow_states(model, ids)
        assert_near(output.last_hidden_state[row], states, terms=512)
        assert output.executed[row].tolist() == [each for each in ran for _ in range(2)]
    assert 0.1 < output.executed.float().mean() < 0.9


@torch.no_grad()
def test_open_gates_give_the_dense_logits_bit_for_bit() -> None:
    assert torch.equal(built(100.0)(IDS).logits, DENSE(IDS).logits)


@torch.no_grad()
def test_closed_gates_are_the_model_without_the_layers() -> None:
    model = built(-100.0)
    assert_near(model(IDS).logits, keep_layers(DENSE, [0, 1])(IDS).logits)
    fill_adapters(model)
    hidden = decoder(keep_layers(DENSE, [0, 1]))
    hidden.norm = torch.nn.Identity()
    expected = hidden(IDS, use_cache=False).last_hidden_state
    for place, number in enumerate(ROUTED):
        rows = ffn_norm(layers_of(model)[number])(expected)
        expected = expected + model.model.router.adapters[place](rows)
    assert_near(model.model(IDS, use_cache=False).last_hidden_state, model.model.norm(expected))


@torch.no_grad()
def test_a_tie_skips() -> None:
    model = built(0.0)
    for head in model.model.router.heads:
        head.head.weight.zero_()
    assert not model.model(IDS, use_cache=False).executed.any()


@torch.no_grad()
def test_skipped_tokens_leave_keys_and_values_that_later_ones_read() -> None:
    model, dense = built(-100.0, [0]), DENSE
    cache, whole = DynamicCache(config=model.config), DynamicCache(config=model.config)
    model.model(IDS, past_key_values=cache)
    decoder(dense)(IDS, past_key_values=whole)
    assert_near(cache.layers[0].keys, whole.layers[0].keys)
    assert_near(cache.layers[0].values, whole.layers[0].values)
    # The last token alone runs: what it reads are the others' keys, though they were skipped.
    forced = torch.zeros(len(IDS), 2, IDS.shape[1], dtype=torch.bool)
    forced[:, :, -1] = True
    seen = []
    model.model.layers[0].self_attn.o_proj.register_forward_hook(
        lambda module, given, output: seen.append(given[0].reshape(-1, given[0].shape[-1]))
    )
    model.model(IDS, use_cache=False, forced=forced)
    expected = []
    attention(layers_of(dense)[0]).o_proj.register_forward_hook(
        lambda module, given, output: expected.append(given[0][:, -1])
    )
    decoder(dense)(IDS, use_cache=False)
    assert_near(seen[0], expected[0])


@torch.no_grad()
def test_the_gate_scales_the_ffn_and_not_attention() -> None:
    """With an FFN that gives nothing, a layer that runs at half strength adds attention whole."""
    model, layer = built(1e-3, [5]), 5
    model.model.router.heads[0].head.weight.zero_()
    for found in (model, twin := make_model()):
        layers_of(found)[layer].mlp.down_proj.weight.zero_()
    assert model.model(IDS, use_cache=False).executed.all()
    assert_near(model(IDS).logits, twin(IDS).logits)


def test_the_lm_loss_reaches_the_router_through_the_factors_alone() -> None:
    model = built(1.0, [5])
    router = model.model.router
    with torch.no_grad():
        layers_of(model)[5].mlp.down_proj.weight.zero_()
    model(IDS, labels=IDS).loss.backward()
    assert float(router.heads[0].enc.weight.grad.abs().max()) == 0
    output = model.model(IDS, use_cache=False, context=Context(0.5))
    counted = torch.ones(IDS.shape)
    squared_use(output.soft, counted, units=2).backward()
    assert float(router.heads[0].enc.weight.grad.abs().max()) > 0
    assert all(p.grad is None for p in DENSE.parameters())


def test_the_penalty_counts_a_layer_once() -> None:
    soft = torch.full((2, 2 * 6, 5), 0.5)
    counted = torch.ones(2, 5)
    assert float(squared_use(soft, counted, units=2)) == pytest.approx(10 * 6**2 / 4)


@pytest.mark.parametrize("place", ["before", "after"])
def test_where_the_norm_stands(place: Any) -> None:
    head = built(0.0, norm_place=place).model.router.heads[0]
    z = torch.randn(3, 32, generator=torch.Generator().manual_seed(1))
    inner = z @ head.enc.weight.T
    rms = torch.nn.functional.rms_norm
    inner = (
        torch.tanh(rms(inner, (32,), eps=head.norm.eps))
        if place == "before"
        else rms(torch.tanh(inner), (32,), eps=head.norm.eps)
    )
    assert_near(head(z), (inner @ head.dec.weight.T @ head.head.weight.T)[:, 0])


@pytest.mark.parametrize(
    ("shape", "trained", "share"),
    [("llama31_8b", 209_784_832, 0.02612), ("llama2_7b", None, 0.02505)],
)
def test_sizes_of_true_shapes(shape: str, trained: int | None, share: float) -> None:
    """What is trained, and the share of a skipped layer: attention but keys and values, the FFN."""
    backbone = empty_backbone(shape_config(shape))
    method = load_method("flexidepth")
    chosen = list(range(16, 32))
    model = method.build(backbone, {"layers": chosen, "seed": 1, "threshold": 0.5})
    ledger = Ledger.of(model, backbone.parameters, 32)
    assert sum(ledger.sizes[:2]) / backbone.parameters == pytest.approx(share, abs=5e-6)
    if trained is not None:
        assert ledger.always + sum(ledger.instead) == trained
    tally = Tally(ledger)
    executed = torch.ones(32, 10, dtype=torch.bool)
    executed[:16] = False
    tally.add(executed, 10)
    # Eight layers of 32.
    assert method.authors_skip(tally.rates()) == pytest.approx(0.25)


def test_what_it_refuses(tmp_path: Any) -> None:
    backbone = wrap(make_model())
    method = load_method("flexidepth")
    assert "neither a budget nor 'alpha'" in str(
        method.skip_reason(backbone, Request(None, 1, tmp_path))
    )
    few = load_method("flexidepth", {"candidates": [5]})
    assert "candidates hold" in str(few.skip_reason(backbone, Request(0.25, 1, tmp_path)))
    with pytest.raises(ValueError, match="'adapter_width' is 0, must be at least 1"):
        load_method("flexidepth", {"adapter_width": 0})


def test_with_a_pinned_weight_texts_without_answers_do(tmp_path: Path) -> None:
    """The weight decides alone, so no kind of token has a budget of its own."""

    class Plain:
        def training(self) -> list[Document]:
            return [Document(ids, 1) for ids in ids_of([12] * 40)]

    method = load_method("flexidepth", TRAINING | {"alpha": 0.001})
    fitted = method.fit(wrap(make_model()), Plain(), Request(0.2, 5, tmp_path, "split"))
    assert "calibration" not in fitted.decisions
