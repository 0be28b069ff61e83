"""FFN-SkipLLM against a slow loop over tokens and layers, and how its settings are chosen."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity

from methods import load_method
from methods.base import Fitted, Request
from methods.core.data import Data, Document
from methods.core.model.backbone import attention, attention_norm, decoder, ffn, ffn_norm, layers
from methods.core.model.ledger import Ledger, Tally
from methods.core.routing.routed import router_of
from methods.ffn_skipllm import Setting
from methods.ffn_skipllm.router import ffn_turns, turn
from tests.toys.models import CONFIGS, make_model, wrap
from tests.toys.texts import VOCABULARY, calibration_data, ids_of

IDS = torch.randint(0, 60, (3, 14), generator=torch.Generator().manual_seed(5))
FFN = 6144 / 59808


def built(model: Any = None, **structure: Any) -> Any:
    """A toy of six layers, routed from its second layer on."""
    given = {"region": [1, 6], "run_length": 2, "warmup": 1, "tau": 0.7, "spread": 0.2}
    backbone = wrap(make_model() if model is None else model)
    return load_method("ffn-skipllm").build(backbone, given | structure)


def texts(lengths: list[int], seed: int) -> list[Document]:
    """Documents whose last two tokens are an answer."""
    return [
        Document(ids, len(ids) - 2, "task", ((len(ids) - 3, len(ids) - 1),))
        for ids in ids_of(lengths, seed)
    ]


def data() -> Data:
    made = Data(None, VOCABULARY, probe_file=Path("given"))
    made.__dict__["_calibration"] = texts([9, 14, 5, 12], 1)
    made.__dict__["_validation"] = texts([8, 11, 6, 13], 2)
    made.__dict__["_probe"] = texts([10, 9, 14, 12, 7, 13] * 4, 3)
    return made


def fit(budget: float | None = None, match: Any = "pooled", model: Any = None, **p: Any) -> Fitted:
    backbone = wrap(make_model() if model is None else model)
    return load_method("ffn-skipllm", p).fit(backbone, data(), Request(budget, 0, Path(), match))


@torch.no_grad()
def executed(model: Any, ids: Tensor = IDS, **given: Any) -> Tensor:
    return model.model(ids, use_cache=False, **given).executed


@torch.no_grad()
def slow(ids: list[int], first: int, stop: int, k: int, w: int, tau: float) -> list[list[bool]]:
    """Which FFN runs for which token, one layer, then one token, at a time: [R][T]."""
    model = make_model()
    inner = decoder(model)
    hidden = inner.embed_tokens(torch.tensor([ids]))
    turned = inner.rotary_emb(hidden, position_ids=torch.arange(len(ids))[None])
    causal = torch.full((len(ids), len(ids)), -torch.inf).triu(1)[None, None]
    to_skip = [0] * len(ids)
    ran = []
    for number, layer in enumerate(layers(model)):
        normed = attention_norm(layer)(hidden)
        given = {"position_embeddings": turned, "attention_mask": causal}
        hidden = hidden + attention(layer)(hidden_states=normed, **given)[0]
        choice = []
        for t in range(len(ids)):
            x = hidden[0, t].clone()
            inside = first <= number < stop
            if inside and to_skip[t] > 0:
                to_skip[t] -= 1
                choice.append(False)
                continue
            y = x + ffn(layer)(ffn_norm(layer)(x[None]))[0]
            hidden[0, t] = y
            choice.append(True)
            if inside and t >= w and float(cosine_similarity(x, y, dim=0)) >= tau:
                to_skip[t] = k
        if first <= number < stop:
            ran.append(choice)
    return ran


@pytest.mark.parametrize(
    ("region", "k", "w", "tau"),
    [([1, 6], 2, 1, 0.7), ([0, 6], 1, 0, 0.6), ([2, 5], 8, 3, 0.5), ([1, 5], 3, 2, 0.8)],
)
def test_decisions_equal_the_loop_over_tokens_and_layers(
    region: list[int], k: int, w: int, tau: float
) -> None:
    found = executed(built(region=region, run_length=k, warmup=w, tau=tau))
    expected = [slow(ids, *region, k, w, tau) for ids in IDS.tolist()]
    assert torch.equal(found, torch.tensor(expected))
    assert not found.all()
    assert found[:, :, w:].any()


@pytest.mark.parametrize("kind", sorted(CONFIGS))
def test_a_cosine_no_stream_reaches_leaves_the_dense_logits(kind: str) -> None:
    region = [0, len(layers(make_model(kind)))]
    model = built(make_model(kind), region=region, tau=1.01)
    assert executed(model).all()
    with torch.no_grad():
        dense = make_model(kind)(IDS).logits
        torch.testing.assert_close(model(IDS).logits, dense, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("k", [1, 2, 3, 4])
def test_at_the_lowest_cosine_every_run_costs_one_ffn(k: int) -> None:
    model = built(run_length=k, warmup=0, tau=-1.0)
    found = executed(model)
    runs = torch.tensor([j % (k + 1) == 0 for j in range(5)])
    assert torch.equal(found, runs[None, :, None].expand_as(found))
    tally = Tally(Ledger.of(model, 59808, 6))
    tally.add(found.transpose(0, 1).flatten(1), IDS.numel())
    most = Setting(1, 0, k).most_skips(6)
    assert most == int((~runs).sum())
    assert tally.rates().skip == pytest.approx(most * FFN)
    assert tally.rates().skip_net == tally.rates().skip
    assert load_method("ffn-skipllm").authors_skip(tally.rates()) == pytest.approx(most / 6)


@pytest.mark.parametrize("pads", [0, 4])
def test_warm_up_counts_from_the_start_of_a_sequence(pads: int) -> None:
    ids = torch.cat([torch.zeros(3, pads, dtype=torch.int64), IDS], dim=1)
    mask = (torch.arange(14 + pads) >= pads).long().expand(3, -1)
    found = executed(built(tau=-1.0, warmup=3), ids, attention_mask=mask)[:, :, pads:]
    assert found[:, :, :3].all()
    assert not found[:, 1, 3:].any()


@pytest.mark.parametrize(("factor", "starts"), [(0.0, True), (1e4, False)])
def test_an_ffn_that_adds_nothing_starts_a_run_and_a_huge_one_does_not(
    factor: float, starts: bool
) -> None:
    model = make_model()
    with torch.no_grad():
        ffn(layers(model)[1]).down_proj.weight.mul_(factor)
    tau = 1.0 if starts else 0.9
    found = executed(built(model, tau=tau, run_length=2))[:, :, 1:]
    assert bool((~found[:, 1:3]).all() if starts else found[:, 1].all())


def test_equal_streams_have_a_cosine_of_exactly_one() -> None:
    x = torch.randn(50, 32, generator=torch.Generator().manual_seed(0)) * 100
    assert (turn(x, x) == 0).all()
    y = x + torch.randn(50, 32, generator=torch.Generator().manual_seed(1))
    expected = 1 - cosine_similarity(x.double(), y.double(), dim=-1)
    torch.testing.assert_close(turn(x, y).double(), expected, rtol=1e-3, atol=1e-7)
    torch.testing.assert_close(turn(x.bfloat16(), x.bfloat16()), torch.zeros(50))


def test_no_decision_depends_on_later_tokens_nor_on_the_cache() -> None:
    model, other = built(), IDS.clone()
    other[:, 9:] = (other[:, 9:] + 1) % 60
    whole = executed(model)
    assert torch.equal(whole[:, :, :9], executed(model, other)[:, :, :9])
    with torch.no_grad():
        step = model.model(IDS[:, :5], use_cache=True)
        parts = [step.executed]
        for t in range(5, 14):
            cache = step.past_key_values
            step = model.model(IDS[:, t : t + 1], past_key_values=cache, use_cache=True)
            parts.append(step.executed)
    assert torch.equal(torch.cat(parts, dim=2), whole)


def test_a_lower_cosine_never_delays_the_first_start() -> None:
    starts = []
    for tau in (0.95, 0.8, 0.6, 0.3, -1.0):
        skips = ~executed(built(tau=tau, run_length=3))
        starts.append(torch.where(skips.any(1), skips.int().argmax(1), 99))
    assert all((low <= high).all() for high, low in itertools.pairwise(starts))
    assert (starts[0] != starts[-1]).any()


def test_the_threshold_is_tau_on_another_scale() -> None:
    router = router_of(built(tau=0.8, spread=0.2))
    assert router.threshold == pytest.approx(0.5)
    for threshold in (0.1, 0.5, 0.9):
        router.threshold = threshold
        assert router.threshold == pytest.approx(threshold)
    # The share of 1 - cosine in its sum with the spread.
    assert (1 - router.tau) / (1 - router.tau + 0.2) == pytest.approx(0.9)


def test_similarities_are_medians_over_the_calibration_tokens() -> None:
    backbone, given = wrap(make_model()), data()
    turns = ffn_turns(backbone, given.calibration(batch_size=2))
    streams: list[Tensor] = []
    layer = layers(backbone.model)[3]
    hooks = [
        ffn_norm(layer).register_forward_pre_hook(lambda _, x: streams.append(x[0][0])),
        layer.register_forward_hook(lambda _, __, y: streams.append(y[0])),
    ]
    expected = []
    with torch.no_grad():
        for document in given._calibration:
            streams.clear()
            backbone.model(torch.tensor([document.ids]), use_cache=False)
            expected.append(1 - cosine_similarity(*streams, dim=-1))
    for hook in hooks:
        hook.remove()
    torch.testing.assert_close(turns[3], torch.cat(expected), rtol=1e-3, atol=1e-6)
    decisions = fit(tau=0.7, run_length=2, cold=[1, 1]).decisions
    assert decisions["similarity"][0] is decisions["similarity"][5] is None
    assert decisions["similarity"][3] == pytest.approx(1 - float(turns[3].median()), abs=1e-6)


def test_pinned_params_are_kept_and_nothing_is_searched() -> None:
    fitted = fit(0.25, tau=0.6, run_length=2, cold=[2, 1], warmup=4)
    expected = {"region": [2, 5], "run_length": 2, "warmup": 4, "tau": 0.6}
    assert {key: fitted.structure[key] for key in expected} == expected
    assert fitted.decisions["choice"] == []
    assert "calibration" not in fitted.decisions
    only = fit(0.2, run_length=4, cold=[1, 0]).decisions
    assert only["choice"] == []
    assert only["region"] == [1, 6]
    assert only["warmup"] == 1


def test_without_anything_to_choose_no_probe_is_needed() -> None:
    params = {"tau": 0.6, "run_length": 2, "cold": [2, 1], "warmup": 4}
    data = calibration_data(ids_of([12, 9, 14]))
    method, request = load_method("ffn-skipllm", params), Request(None, 0, Path())
    fitted = method.fit(wrap(make_model()), data, request)
    assert fitted.structure["warmup"] == 4


def test_what_cannot_be_met_says_why() -> None:
    backbone = wrap(make_model())
    reason = load_method("ffn-skipllm").skip_reason
    assert reason(backbone, Request(0.3, 0, Path())) is None
    assert "less than the budget" in str(reason(backbone, Request(0.7, 0, Path())))
    assert "'tau'" in str(reason(backbone, Request(None, 0, Path())))
    pinned = load_method("ffn-skipllm", {"tau": 0.9, "run_length": 1})
    assert pinned.skip_reason(backbone, Request(None, 0, Path())) is None


@pytest.mark.parametrize(
    ("params", "name"),
    [
        ({"run_length": 0}, "run_length"),
        ({"warmup": -1}, "warmup"),
        ({"cold": [1]}, "cold"),
        ({"tau": 0.9}, "run_length"),
    ],
)
def test_wrong_numbers_are_refused_by_name(params: dict[str, Any], name: str) -> None:
    with pytest.raises(ValueError, match=f"param '{name}'"):
        load_method("ffn-skipllm", params)


def test_cold_layers_must_leave_some() -> None:
    with pytest.raises(ValueError, match="param 'cold' is"):
        fit(0.2, cold=[4, 2])
