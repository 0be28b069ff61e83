"""DiffSkip: what its router reads, and what runs."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity

from methods import load_method
from methods.base import Request
from methods.core.data import Document
from methods.core.model.backbone import (
    attention_norm,
    decoder,
    empty_backbone,
    ffn,
    ffn_norm,
    shape_config,
)
from methods.core.model.backbone import layers as layers_of
from methods.core.model.ledger import Ledger
from methods.core.routing.router import Context, ffn_units
from methods.diffskip import correlations
from tests.near import assert_near
from tests.toys.models import make_model, wrap
from tests.toys.routed import (
    IDS,
    ROUTED,
    TRAINING,
    Texts,
    build_biased,
    causal_reads,
    shake_variant,
    slow_attention,
    without_pads,
)
from tests.toys.texts import ids_of

DENSE = make_model()
built = partial(build_biased, "diffskip")


@torch.no_grad()
def gate(model: Any, before: Tensor, after: Tensor) -> Tensor:
    """The soft gate of the first routed layer."""
    router = model.model.router
    state = router.start(without_pads(IDS), before, Context())
    return router.gate(0, before, after, state, Context())[0].value


def streams() -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(3)
    before = torch.randn(*IDS.shape, 32, generator=rng)
    return before, torch.randn(*IDS.shape, 32, generator=rng)


@torch.no_grad()
def test_the_formulas() -> None:
    """Each routed layer against its formulas, fed with the stream that the model had there."""
    model = shake_variant("diffskip")
    router, seen = model.model.router, dict[int, tuple[Tensor, Tensor]]()
    real = router.gate

    def listening(index: int, before: Tensor, after: Tensor, *rest: Any) -> Any:
        seen[index] = (before, after)
        return real(index, before, after, *rest)

    router.gate = listening
    inputs = [list[Tensor]() for _ in layers_of(model)]
    norm = list[Tensor]()
    for number, layer in enumerate(layers_of(model)):
        attention_norm(layer).register_forward_hook(
            lambda module, given, output, number=number: inputs[number].append(given[0])
        )
    model.model.norm.register_forward_hook(lambda module, given, output: norm.append(given[0]))
    executed = model.model(IDS, use_cache=False).executed
    for place, unit in enumerate(router.units):
        before, after = seen[place]
        layer, delta = layers_of(model)[unit.layer], after - before
        read = delta / (delta.square().mean(-1, keepdim=True) + router.eps).sqrt()
        w = torch.sigmoid(router.heads[place](read) + router.initial_bias)[..., None]
        assert torch.equal(executed[:, place], w[..., 0] > 0.5)
        u = ffn_norm(layer)(after)
        slim = router.adapters[place](u.reshape(-1, 32)).reshape(u.shape)
        expected = after + torch.where(w > 0.5, w * ffn(layer)(u), (1 - w) * slim)
        following = inputs[unit.layer + 1] if unit.layer + 1 < len(inputs) else norm
        assert_near(following[0], expected)


@torch.no_grad()
def test_both_ends() -> None:
    assert torch.equal(built(100.0)(IDS).logits, DENSE(IDS).logits)
    without = make_model()
    for number in ROUTED:
        layers_of(without)[number].mlp.down_proj.weight.zero_()
    assert_near(built(-100.0)(IDS).logits, without(IDS).logits)


def test_the_router_reads_the_difference_alone() -> None:
    model, (before, delta) = built(0.0), streams()
    given = gate(model, before, before + delta)
    shift = torch.randn(32, generator=torch.Generator().manual_seed(8))
    assert_near(gate(model, before + shift, before + delta + shift), given, terms=1024)
    assert not torch.allclose(gate(model, before, before + delta.flip(-1)), given, atol=1e-3)


def test_lengths_count_only_where_asked() -> None:
    before, delta = streams()
    for asked in (False, True):
        model = built(0.0, append_norm=asked)
        short, long = (gate(model, before, before + size * delta) for size in (1.0, 16.0))
        assert torch.allclose(short, long, atol=1e-4) != asked


@torch.no_grad()
def test_the_appended_length() -> None:
    """log of the ratio of the root mean squares."""
    model, (before, delta) = built(0.0, append_norm=True), streams()
    head = model.model.router.heads[0]
    head.enc.weight.zero_()
    head.enc.weight[:, -1] = 0.01
    seen = list[Tensor]()
    head.enc.register_forward_hook(lambda module, given, output: seen.append(given[0][..., -1]))
    gate(model, before, before + delta)
    rms = [math.sqrt(float(each[0, 0].square().mean())) for each in (delta, before)]
    assert float(seen[0][0, 0]) == pytest.approx(math.log(rms[0] / rms[1]), rel=1e-4)


@torch.no_grad()
def test_attention_that_changes_nothing_leaves_the_bias() -> None:
    model = built(0.3)
    for number in ROUTED:
        layers_of(model)[number].self_attn.o_proj.weight.zero_()
    soft = model.model(IDS, use_cache=False).soft
    assert soft.isfinite().all()
    assert_near(soft, torch.full_like(soft, 1 / (1 + math.exp(-0.3))))


@torch.no_grad()
def test_the_layer_s_own_attention_decides_with_it() -> None:
    """SkipGPT's routers are asked before it."""
    for variant, moves in (("diffskip", True), ("skipgpt-rt", False)):
        model = shake_variant(variant)
        router = model.model.router
        index = next(n for n, u in enumerate(router.units) if (u.layer, u.kind) == (2, "ffn"))
        before = model.model(IDS, use_cache=False).executed[:, index]
        layers_of(model)[2].self_attn.o_proj.weight.neg_()
        after = model.model(IDS, use_cache=False).executed[:, index]
        assert torch.equal(before, after) != moves, variant


@torch.no_grad()
def changes(number: int, ids: list[int]) -> tuple[Tensor, Tensor]:
    """What attention and FFN of a dense layer add to one document, each (T, D)."""
    hidden = decoder(DENSE)(torch.tensor([ids]), use_cache=False, output_hidden_states=True)
    layer, before = layers_of(DENSE)[number], hidden.hidden_states[number][0]
    normed = attention_norm(layer)(before)
    mixed = slow_attention(DENSE, layer, normed, causal_reads(len(ids)))
    return mixed, ffn(layer)(ffn_norm(layer)(before + mixed))


@torch.no_grad()
def test_correlations_are_those_of_the_dense_changes() -> None:
    documents = [Document(ids, 1) for ids in ids_of([9, 5, 12], 4)]
    found = correlations(wrap(make_model()), documents, [1, 4])
    for line, number in zip(found, [1, 4], strict=True):
        pairs = [changes(number, document.ids) for document in documents]
        mixed, fed = (torch.cat(each) for each in zip(*pairs, strict=True))
        cosine = float(cosine_similarity(mixed, fed, dim=-1).mean())
        assert line["cosine"] == pytest.approx(cosine, abs=1e-5)
        lengths = torch.stack([mixed.norm(dim=-1), fed.norm(dim=-1)])
        assert line["lengths"] == pytest.approx(float(torch.corrcoef(lengths)[0, 1]), abs=1e-5)


def test_parts_that_write_alike_for_all_tokens_have_no_correlation() -> None:
    model = make_model()
    with torch.no_grad():
        layers_of(model)[4].self_attn.o_proj.weight.zero_()
    documents = [Document(ids, 1) for ids in ids_of([9, 5], 4)]
    constant, other = correlations(wrap(model), documents, [4, 1])
    assert constant["lengths"] is None
    assert other["lengths"] is not None


def test_sizes_at_8b() -> None:
    backbone = empty_backbone(shape_config("llama31_8b"))
    chosen = list(range(16, 32))
    model = load_method("diffskip").build(backbone, {"layers": chosen, "seed": 1, "threshold": 0.5})
    ledger = Ledger.of(model, backbone.parameters, 32)
    assert ledger.always + sum(ledger.instead) == 209_784_832
    assert [unit.kind for unit in ledger.units] == ["ffn"] * 16
    assert list(ledger.units) == ffn_units(backbone.model, chosen)


def test_with_a_pinned_weight_no_probe_is_read(tmp_path: Path) -> None:
    class Training:
        def training(self) -> list[Document]:
            return Texts().training()

    method = load_method("diffskip", TRAINING | {"alpha": 0.001})
    decisions = method.fit(wrap(make_model()), Training(), Request(None, 5, tmp_path)).decisions
    assert "correlation" not in decisions
    assert len(decisions["training"]) > 0
