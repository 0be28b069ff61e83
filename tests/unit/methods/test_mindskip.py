"""MindSkip: ties, gradients, targets, and the level of the sequence."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache

from methods import load_method
from methods.base import Request
from methods.core.data import Data, Document
from methods.core.model.backbone import attention_norm, decoder, layers
from methods.core.routing.calibration import skip_rates, weigh
from methods.core.routing.router import Tokens
from methods.core.training.method import Plan
from methods.mindskip import mean_by, mean_use
from tests.near import assert_near
from tests.toys.models import make_model, wrap
from tests.toys.routed import IDS, training_context
from tests.toys.texts import ids_of

ROUTED = [2, 3, 4, 5]
DENSE = make_model()
TARGETS = pytest.mark.parametrize("target", ["attention", "mlp", "block"])


def built(target: str = "block", chosen: list[int] = ROUTED, **params: Any) -> Any:
    method = load_method("mindskip", {"target": target, **params})
    structure = {"layers": chosen, "seed": 7, "threshold": 0.5}
    return method.build(wrap(make_model()), structure).eval()


def point(model: Any, seed: int = 5) -> Any:
    """Routers that decide both ways."""
    rng = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for vector in model.model.router.vectors:
            vector.weight.normal_(generator=rng)
    return model


@TARGETS
@torch.no_grad()
def test_zero_routers_run_everything(target: str) -> None:
    model = built(target)
    assert model.model(IDS, use_cache=False).executed.all()
    # A block adds both updates at once.
    assert_near(model(IDS).logits, DENSE(IDS).logits, terms=64 if target == "block" else 0)


@TARGETS
@torch.no_grad()
def test_skipping_all_leaves_the_target_out(target: str) -> None:
    model, expected = built(target), make_model()
    for number in ROUTED:
        if target in ("attention", "block"):
            layers(expected)[number].self_attn.o_proj.weight.zero_()
        if target in ("mlp", "block"):
            layers(expected)[number].mlp.down_proj.weight.zero_()
    model.model.router.threshold = 1 - 1e-7
    found = model.model(IDS, use_cache=False).last_hidden_state
    assert_near(found, decoder(expected)(IDS, use_cache=False).last_hidden_state)


@TARGETS
@torch.no_grad()
def test_decisions_follow_the_normed_input(target: str) -> None:
    model = point(built(target))
    inputs = dict[int, Tensor]()
    for number in ROUTED:
        attention_norm(layers(model)[number]).register_forward_hook(
            lambda module, given, output, number=number: inputs.setdefault(number, output)
        )
    executed = model.model(IDS, use_cache=False).executed
    for place, number in enumerate(ROUTED):
        logit = inputs[number] @ model.model.router.vectors[place].weight[0]
        sure = logit.abs() > 1e-4
        assert torch.equal(executed[:, place][sure], (logit >= 0)[sure])
    assert 0.2 < executed.float().mean() < 0.8


def test_the_gradient_of_a_decision_is_that_of_its_sigmoid() -> None:
    model = point(built("block", [5]))
    seen = list[Tensor]()
    norm = attention_norm(layers(model)[5])
    norm.register_forward_hook(lambda module, given, output: seen.append(output.detach()))
    output = model.model(IDS, use_cache=False, context=training_context())
    assert set(output.soft.detach().unique().tolist()) <= {0.0, 1.0}
    output.soft.sum().backward()
    vector = model.model.router.vectors[0].weight
    s = torch.sigmoid(seen[0] @ vector[0].detach())
    expected = ((s * (1 - s))[..., None] * seen[0]).sum(dim=(0, 1))
    assert_near(vector.grad[0], expected, terms=512)


@TARGETS
def test_skipped_tokens_teach_their_router(target: str) -> None:
    """One document, skipped everywhere: the loss still moves the vectors."""
    model = built(target, [4])
    with torch.no_grad():
        model.model.router.threshold = 1 - 1e-7
    output = model.model(IDS, use_cache=False, context=training_context())
    assert not output.executed.any()
    weights = torch.randn(
        output.last_hidden_state.shape, generator=torch.Generator().manual_seed(1)
    )
    (output.last_hidden_state * weights).sum().backward()
    assert float(model.model.router.vectors[0].weight.grad.abs().max()) > 0


@torch.no_grad()
def test_skipped_tokens_leave_keys_and_values() -> None:
    model = built("block", [0])
    model.model.router.threshold = 1 - 1e-7
    cache, whole = DynamicCache(config=model.config), DynamicCache(config=model.config)
    assert not model.model(IDS, past_key_values=cache).executed.any()
    decoder(DENSE)(IDS, past_key_values=whole)
    assert_near(cache.layers[0].keys, whole.layers[0].keys)
    assert_near(cache.layers[0].values, whole.layers[0].values)


def test_attention_alone_cannot_meet_a_quarter(tmp_path: Any) -> None:
    backbone, request = wrap(make_model()), Request(0.25, 1, tmp_path)
    reason = load_method("mindskip").skip_reason(backbone, request)
    assert reason is not None
    assert reason.startswith("its attention targets hold")
    assert load_method("mindskip-block").skip_reason(backbone, request) is None


@torch.no_grad()
def test_a_sequence_decides_as_one_and_is_not_causal() -> None:
    model = point(built("block", level="sequence"))
    assert not load_method("mindskip", {"level": "sequence"}).batchable()
    executed = model.model(IDS, use_cache=False).executed
    assert (executed == executed[..., :1]).all()
    # A later token moves the mean, and with it what the first one runs.
    shorter = [model.model(IDS[:, :n], use_cache=False).executed[..., 0] for n in range(2, 11)]
    assert any(not torch.equal(each, executed[..., 0]) for each in shorter)


@torch.no_grad()
def test_packed_documents_and_pads_have_means_of_their_own() -> None:
    values = torch.tensor([[1.0, 3.0, 10.0, 20.0, 99.0]])
    groups = torch.tensor([[1, 1, 2, 2, 0]])
    assert mean_by(groups, values)[0, :4].tolist() == [2.0, 2.0, 15.0, 15.0]
    router = built("block", level="sequence").model.router
    positions = torch.tensor([[0, 1, 0, 1, 2]])
    valid = torch.tensor([[True, True, True, True, False]])
    found = router.start(Tokens(None, positions, valid), torch.zeros(1, 5, 32), training_context())
    assert found.tolist() == groups.tolist()


def test_the_penalty_is_linear_and_silent_below_a_capacity() -> None:
    soft = torch.tensor([[[1.0, 1.0, 0.0, 0.0], [1.0, 1.0, 1.0, 1.0]]])
    counted = torch.tensor([[1.0, 1.0, 1.0, 0.0]])
    assert float(mean_use(soft, counted, None)) == pytest.approx(5.0)
    assert float(mean_use(soft, counted, 0.8)) == pytest.approx(3 - 0.8 * 3)


def test_a_capacity_is_about_the_tokens_of_all_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    soft = torch.stack([torch.ones(2, 4), torch.zeros(2, 4)]).requires_grad_()
    counted = torch.ones(2, 4)
    whole = mean_use(soft, counted, 0.3)
    (slope,) = torch.autograd.grad(whole, soft)
    total = soft.detach().sum(dim=(0, 2)) - 0.3 * counted.sum()
    monkeypatch.setattr("methods.mindskip.sum_over_processes", lambda values: values.copy_(total))
    parts = [mean_use(soft[[n]], counted[[n]], 0.3) for n in range(2)]
    assert sum(parts).item() == pytest.approx(whole.item())
    (slopes,) = torch.autograd.grad(sum(parts), soft)
    assert torch.equal(slopes, slope)


def test_what_it_refuses() -> None:
    with pytest.raises(ValueError, match="'target_capacity' needs param 'gradient_scale'"):
        load_method("mindskip", {"target_capacity": 0.5})
    params = {"target_capacity": 0.5, "gradient_scale": 1.0, "micro_tokens": 64}
    with pytest.raises(ValueError, match="'micro_tokens' divides"):
        load_method("mindskip", params)
    with pytest.raises(ValueError, match="'target_capacity' is 1.5, must be between 0 and 1"):
        load_method("mindskip", {"target_capacity": 1.5, "gradient_scale": 1.0})


def test_trained_are_the_vectors_alone() -> None:
    model = built("mlp")
    trained = [name for name, p in model.named_parameters() if p.requires_grad]
    assert trained == [f"model.router.vectors.{n}.weight" for n in range(len(ROUTED))]
    assert sum(p.numel() for p in model.model.router.parameters()) == len(ROUTED) * 32


def test_a_sequence_is_calibrated_without_the_pads_of_a_batch() -> None:
    method = load_method("mindskip-block", {"level": "sequence"})
    model = point(built(level="sequence"))
    texts = [Document(ids, 0) for ids in ids_of(list(range(3, 24)))]
    data = cast(Data, SimpleNamespace(probe=lambda: texts))
    plan = Plan(0.25, Request(0.25, 0, Path()), torch.full((4,), 0.25, dtype=torch.float64), {})
    method.calibrate(model, data, plan)
    alone = torch.stack([skip_rates(model, weigh([text], "pooled"))[0] for text in texts])
    lengths = torch.arange(3, 24, dtype=torch.float64)[:, None]
    expected = (alone * lengths).sum(dim=0) / lengths.sum()
    assert plan.decisions["bypass_rates"] == pytest.approx(expected.tolist())
    assert skip_rates(model, weigh(texts, "pooled"))[0].tolist() != pytest.approx(expected.tolist())


def test_a_mean_reads_no_number_on_the_host() -> None:
    """The device named meta has no numbers, so that reading one would fail."""
    groups = torch.ones(2, 5, dtype=torch.long, device="meta")
    assert mean_by(groups, torch.zeros(2, 5, device="meta")).shape == (2, 5)
