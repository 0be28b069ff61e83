"""HeRo's gates for whole layers, on what was last added, and without adapters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from methods import load_method
from methods.base import Request
from methods.core.model.backbone import load_backbone
from methods.core.routing.routed import router_of
from tests.near import assert_near
from tests.toys.models import keep_layers, make_model, wrap
from tests.toys.routed import IDS, TRAINING, Texts
from workflows.suite.config import read_configs
from workflows.suite.jobs import read_suite

ROUTED = [2, 3, 4, 5]
DENSE = make_model()
FORMS = pytest.mark.parametrize("variant", ["full", "same-size", "difference"])


def built(bias: float = 0.0, variant: str = "full", **params: Any) -> Any:
    given = {"unit": "block", "initial_bias": bias, "variant": variant, **params}
    structure = {"layers": ROUTED, "seed": 7, "threshold": 0.5}
    return load_method("hero", given).build(wrap(make_model()), structure).eval()


def shaken(variant: str) -> Any:
    model, rng = built(variant=variant), torch.Generator().manual_seed(4)
    with torch.no_grad():
        for parameter in router_of(model).parameters():
            parameter += 0.3 * torch.randn(parameter.shape, generator=rng)
    return model


@FORMS
@torch.no_grad()
def test_both_ends(variant: str) -> None:
    assert torch.equal(built(100.0, variant)(IDS).logits, DENSE(IDS).logits)
    assert_near(built(-100.0, variant)(IDS).logits, keep_layers(DENSE, [0, 1])(IDS).logits)


@FORMS
@torch.no_grad()
def test_both_units_of_a_layer_decide_as_one_cached_or_not(variant: str) -> None:
    model = shaken(variant)
    output = model.model(IDS, use_cache=True)
    assert torch.equal(output.executed[:, ::2], output.executed[:, 1::2])
    assert 0.1 < output.executed.float().mean() < 0.9
    first = model.model(IDS[:, :5], use_cache=True)
    states = [first.last_hidden_state]
    for place in range(5, IDS.shape[1]):
        step = model.model(IDS[:, place : place + 1], past_key_values=first.past_key_values)
        states.append(step.last_hidden_state)
    assert_near(torch.cat(states, dim=1), output.last_hidden_state, terms=512)


@torch.no_grad()
def test_the_first_change_is_counted_from_the_embeddings() -> None:
    model, seen = built(variant="difference"), list[Tensor]()
    router_of(model).gates.local_head.register_forward_hook(
        lambda module, given, output: seen.append(given[0])
    )
    inputs = [model.model.embed_tokens(IDS)]
    for number in ROUTED:
        model.model.layers[number].register_forward_hook(lambda *_: None)
        model.model.layers[number].input_layernorm.register_forward_hook(
            lambda module, given, output: inputs.append(given[0])
        )
    model.model(IDS, use_cache=False)
    for read, before, now in zip(seen, inputs[:-1], inputs[1:], strict=True):
        change = now - before
        eps = router_of(model).gates.eps
        assert_near(read, change / (change.square().mean(-1, keepdim=True) + eps).sqrt())


@torch.no_grad()
def test_without_adapters_nothing_runs_instead() -> None:
    model = built(-100.0, adapter_width=0)
    assert not [name for name, _ in router_of(model).named_parameters() if "adapter" in name]
    assert_near(model(IDS).logits, keep_layers(DENSE, [0, 1])(IDS).logits)
    ffn = load_method("hero", {"adapter_width": 0}).build(
        wrap(make_model()), {"layers": ROUTED, "seed": 7, "threshold": 0.5}
    )
    assert router_of(ffn).alternative(0) is None


@FORMS
def test_a_fit_meets_the_budget_by_layers(variant: str, tmp_path: Path) -> None:
    method = load_method("hero", TRAINING | {"unit": "block", "variant": variant})
    fitted = method.fit(wrap(make_model()), Texts(), Request(0.25, 5, tmp_path))
    assert fitted.decisions["bypass_rates"][::2] == fitted.decisions["bypass_rates"][1::2]
    layer = sum(unit.parameters for unit in router_of(fitted.model).units[:2])
    share = layer / wrap(DENSE).parameters
    # Within half a layer: what six updates tell apart moves in leaps.
    found = sum(fitted.decisions["bypass_rates"][::2]) * share
    assert found == pytest.approx(0.25, abs=share / 2)


def test_the_suite_trains_as_much_in_every_row() -> None:
    """Within 1 % of HeRo."""
    suite = read_suite(read_configs(["parts"]))
    counts = {}
    for job in suite.jobs:
        if job.method.name != "hero" or job.row in counts:
            continue
        backbone = load_backbone(Path("workflows/demo/backbone"))
        structure = {"layers": list(range(6, 12)), "seed": 1, "threshold": 0.5}
        model = load_method("hero", job.params).build(backbone, structure)
        counts[job.row] = sum(p.numel() for p in model.parameters() if p.requires_grad)
    assert len(counts) == 12
    for row, count in counts.items():
        assert count == pytest.approx(counts["hero"], rel=0.01), row


def test_random_and_static_gates_of_whole_layers_are_refused() -> None:
    with pytest.raises(ValueError, match="param 'unit' is block, which variant 'static' lacks"):
        load_method("hero", {"unit": "block", "variant": "static"})
