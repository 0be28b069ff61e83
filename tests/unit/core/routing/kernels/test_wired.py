"""The kernels inside the routed decoder, under Triton's interpreter or on a GPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from methods.core.routing.decoding import StaticDecoder
from methods.core.routing.kernels import choose
from methods.core.routing.kernels.launch import Launch
from methods.core.routing.routed import router_of
from tests.contract.conftest import IDS
from tests.interpreted import DEVICE, mend
from tests.unit.core.routing.test_decoding import model_of

pytest.importorskip("triton", reason="Triton is not installed")
mend()

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


def gradients(model: Any) -> dict[str, torch.Tensor]:
    output = model.model(SHORT)
    (output.last_hidden_state.sin().sum() + output.soft.sum()).backward()
    found = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    return found | {"states": output.last_hidden_state.detach()}


def test_training_agrees_with_the_host_dispatch(queued: list[str]) -> None:
    model = model_of("hero").to(DEVICE)
    kernels = gradients(model)
    assert queued
    queued.clear()
    for parameter in model.parameters():
        # What would be trained of an FFN is what kernels give no gradient.
        parameter.requires_grad_()
    host = gradients(model)
    assert not queued
    for name, value in kernels.items():
        bound = 1e-5 * float(host[name].abs().max())
        torch.testing.assert_close(value, host[name], rtol=0, atol=bound)


@pytest.mark.parametrize("name", ["hero", "block"])
@pytest.mark.parametrize("executes", [True, False])
def test_a_decode_step_agrees_with_its_twin(
    name: str, executes: bool, queued: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    decoders = [StaticDecoder(model_of(name).to(DEVICE), 3, 12, False, forced=True) for _ in "ab"]
    for decoder in decoders:
        decoder.prefill(SHORT)
        assert decoder.gates is not None
        decoder.gates.fill_(executes)
        queued.clear()
        decoder.step()
        monkeypatch.setattr(choose, "missing", lambda tensor: "not this time")
    assert not queued
    torch.testing.assert_close(decoders[0].logits, decoders[1].logits, rtol=1e-4, atol=1e-5)


def test_two_launches_serve_both_branches(queued: list[str]) -> None:
    decoder = StaticDecoder(model_of("block").to(DEVICE), 3, 12, False)
    decoder.prefill(SHORT)
    queued.clear()
    decoder.step()
    units = len(router_of(decoder.model).units)  # type: ignore[union-attr]
    assert queued == ["inner_kernel", "outer_kernel"] * units
