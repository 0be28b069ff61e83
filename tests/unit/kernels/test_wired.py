"""The kernels inside the routed decoder, under Triton's interpreter or on a GPU."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch

from methods.core.routing.decisions import Decider
from methods.core.routing.decoding import StaticDecoder
from methods.core.routing.routed import router_of
from methods.core.training.lora import fold_lora
from methods.kernels import choose
from methods.kernels.launch import Launch
from tests.contract.fits import IDS
from tests.interpreted import DEVICE, prepare
from tests.unit.core.routing.test_decoding import ROUTED, model_of

pytest.importorskip("triton", reason="Triton is not installed")
prepare()

FFN_KERNELS = {"inner_kernel", "outer_kernel"}
SHORT = IDS[:, :6].to(DEVICE)


@pytest.fixture
def queued(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Kernels run wherever their tensors are; the names of those launched."""
    monkeypatch.setattr(choose, "missing", lambda tensor: None)
    plain, names = Launch.run, list[str]()

    def run(self: Launch) -> None:
        names.append(self.kernel.__name__)
        plain(self)

    monkeypatch.setattr(Launch, "run", run)
    return names


def folded(name: str) -> Any:
    model = model_of(name).to(DEVICE)
    fold_lora(model)
    return model


def gradients(model: Any) -> dict[str, torch.Tensor]:
    output = model.model(SHORT)
    (output.last_hidden_state.sin().sum() + output.soft.sum()).backward()
    found = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    return found | {"states": output.last_hidden_state.detach()}


def test_training_agrees_with_plain_reading(
    queued: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = model_of("hero").to(DEVICE)
    kernels = gradients(model)
    assert set(queued) == {"sums_kernel", "gradients_kernel"}
    queued.clear()
    monkeypatch.setattr(choose, "missing", lambda tensor: "not this time")
    host = gradients(model)
    assert not queued
    assert set(kernels) == set(host)
    for name, value in kernels.items():
        bound = 1e-5 * float(host[name].abs().max())
        torch.testing.assert_close(value, host[name], rtol=0, atol=bound)


def test_recomputed_gates_run_their_kernels_again(
    queued: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a GPU; to the same gradients."""
    model = model_of("hero").to(DEVICE)
    monkeypatch.setattr(Decider, "_recomputes_gates", lambda self, hidden: False)
    expected, once = gradients(model), Counter(queued)
    queued.clear()
    monkeypatch.setattr(Decider, "_recomputes_gates", lambda self, hidden: True)
    found = gradients(model)
    assert queued.count("sums_kernel") == 2 * once["sums_kernel"]
    assert queued.count("gradients_kernel") == once["gradients_kernel"]
    for name, value in found.items():
        assert torch.equal(value, expected[name])


@pytest.mark.parametrize("name", ROUTED)
@pytest.mark.parametrize("executes", [True, False])
def test_a_decode_step_agrees_with_its_twin(
    name: str, executes: bool, queued: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    decoders = [StaticDecoder(folded(name), 3, 12, False, forced=True) for _ in "ab"]
    for decoder in decoders:
        decoder.prefill(SHORT)
        assert decoder.decisions is not None
        decoder.decisions.fill_(executes)
        queued.clear()
        decoder.step()
        monkeypatch.setattr(choose, "missing", lambda tensor: "not this time")
    assert not queued
    torch.testing.assert_close(decoders[0].logits, decoders[1].logits, rtol=1e-4, atol=1e-5)


READING = ["project_kernel", "read_kernel", "merge_kernel", "outer_kernel"]
DECIDING = ["project_kernel", "decide_kernel"]
LAUNCHES = {
    "hero": [*DECIDING, "inner_kernel", "outer_kernel"],
    "hero-block": [*DECIDING, *READING, "inner_kernel", "outer_kernel"],
    "diffskip": ["inner_kernel", "outer_kernel"],
    "block": [*READING, "inner_kernel", "outer_kernel"],
    "d-llm": [*READING, "inner_kernel", "outer_kernel"],
}


@pytest.mark.parametrize("name", LAUNCHES)
def test_few_launches_serve_both_branches(name: str, queued: list[str]) -> None:
    """Of each routed layer, whatever is decided."""
    decoder = StaticDecoder(folded(name), 3, 12, False)
    decoder.prefill(SHORT)
    queued.clear()
    decoder.step()
    units = router_of(decoder.model).units  # type: ignore[union-attr]
    assert queued == LAUNCHES[name] * len({unit.layer for unit in units})


@torch.no_grad()
def test_a_prompt_takes_one_launch_beside_its_product(
    queued: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = model_of("hero").to(DEVICE)
    found = model.model(IDS.to(DEVICE))
    assert queued == ["prompt_kernel"] * len(router_of(model).units)  # type: ignore[union-attr]
    monkeypatch.setattr(choose, "missing", lambda tensor: "not this time")
    expected = model.model(IDS.to(DEVICE))
    torch.testing.assert_close(found.soft, expected.soft, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(found[0], expected[0], rtol=1e-4, atol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("executes", [True, False])
def test_rows_of_an_evicting_layer_grow_alone(executes: bool, queued: list[str]) -> None:
    """By kernels as by the twin: columns of tokens that skipped are written over."""
    decoder = StaticDecoder(folded("d-llm"), 3, 12, False, forced=True)
    decoder.prefill(SHORT)
    decisions: Any = decoder.decisions
    queued.clear()
    decisions.copy_(torch.arange(3, device=DEVICE)[:, None, None] < 2)
    decisions[0] = executes
    before = [layer.cumulative_length.clone() for layer in decoder.cache.layers]
    decoder.step()
    units: Any = router_of(decoder.model).units  # type: ignore[union-attr]
    grown = torch.tensor([int(executes), 1, 0], device=DEVICE)
    for number in (unit.layer for unit in units):
        layer = decoder.cache.layers[number]
        assert torch.equal(layer.cumulative_length, before[number] + grown)
    assert queued == LAUNCHES["d-llm"] * len(units)


@torch.no_grad()
def test_a_prompt_renews_the_weights_that_kernels_read(
    queued: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where they were: a graph that is captured reads those addresses."""
    model = model_of("hero").to(DEVICE)
    router: Any = router_of(model)
    cache = model(SHORT, use_cache=True).past_key_values
    model(SHORT[:, :1], past_key_values=cache)
    held = router._kernels
    places = [part.data_ptr() for part in held if isinstance(part, torch.Tensor)]
    for parameter in router.parameters():
        parameter.add_(0.1)
    cache = model(SHORT, use_cache=True).past_key_values
    found = model.model(SHORT[:, :1], past_key_values=cache).soft
    assert router._kernels is held
    assert [part.data_ptr() for part in held if isinstance(part, torch.Tensor)] == places
    cache = model(SHORT, use_cache=True).past_key_values
    monkeypatch.setattr("methods.hero.router.use_device", lambda hidden: False)
    torch.testing.assert_close(
        found, model.model(SHORT[:, :1], past_key_values=cache).soft, rtol=1e-5, atol=1e-6
    )


@torch.no_grad()
def test_a_step_of_many_sequences_renews_nothing(queued: list[str]) -> None:
    """It may be part of a graph, for which prompts renew the weights."""
    model = model_of("hero").to(DEVICE)
    router: Any = router_of(model)
    cache = model(SHORT, use_cache=True).past_key_values
    model(SHORT[:, :1], past_key_values=cache)
    before = router._kernels.wide.clone()
    for parameter in router.parameters():
        parameter.add_(0.1)
    many = SHORT[:1].expand(choose.MOST_ROWS + 1, -1)
    cache = model(many, use_cache=True).past_key_values
    renewed = router._kernels.wide.clone()
    assert not torch.equal(renewed, before)
    for parameter in router.parameters():
        parameter.add_(0.1)
    model(many[:, :1], past_key_values=cache)
    assert torch.equal(router._kernels.wide, renewed)


@pytest.mark.parametrize("asks", ["nothing", "a gradient", "another precision"])
@pytest.mark.parametrize("learns", [False, True])
def test_kernels_leave_what_they_would_compute_otherwise(
    asks: str, learns: bool, queued: list[str]
) -> None:
    """Where gradients flow, a few rows too; products that autocast rounds."""
    model = model_of("hero").to(DEVICE).requires_grad_(asks == "a gradient")
    precise = torch.autocast(DEVICE, torch.bfloat16, enabled=asks == "another precision")
    with torch.set_grad_enabled(learns), precise:
        model(SHORT[:, :1])
    wanted = not learns and asks != "another precision"
    assert bool(FFN_KERNELS & set(queued)) == wanted
