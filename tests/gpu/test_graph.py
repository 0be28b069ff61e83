"""Decode steps as CUDA graphs: the tokens of generate, no wait for the device."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from methods.core.routing import decoding
from methods.core.routing.decoding import StaticDecoder, generate
from methods.core.routing.routed import router_of
from tests.contract.fits import IDS
from tests.unit.core.routing.test_decoding import ROUTED, expected, model_of

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.mark.parametrize("name", ["dense", *ROUTED])
@pytest.mark.parametrize("graph", [False, True])
def test_the_tokens_are_those_of_generate(name: str, graph: bool) -> None:
    model, ids = model_of(name).to("cuda"), IDS.cuda()
    mask = torch.ones_like(ids)
    mask[0, :4] = 0
    found = generate(model, ids, mask, new_tokens=12, graph=graph)
    assert torch.equal(found, expected(model, ids, mask, 12))


@pytest.mark.parametrize("name", ["dense", *ROUTED])
def test_a_step_waits_for_nothing(name: str) -> None:
    decoder = StaticDecoder(model_of(name).to("cuda"), 3, 40, graph=False)
    decoder.prefill(IDS.cuda())
    decoder.step()  # compiles kernels
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        decoder.step()
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_a_graph_follows_a_second_prompt_and_new_weights() -> None:
    model: Any = model_of("hero").to("cuda")
    router: Any = router_of(model)
    decoder = StaticDecoder(model, 3, 40)
    logits = []
    for turn in range(2):
        decoder.prefill(IDS.cuda())
        decoder.step()
        logits.append(decoder.logits.clone())
        eager = StaticDecoder(model, 3, 40, graph=False)
        eager.prefill(IDS.cuda())
        eager.step()
        torch.testing.assert_close(decoder.logits, eager.logits, rtol=1e-4, atol=1e-4)
        for parameter in router.parameters() if turn == 0 else ():
            parameter.data.add_(0.2 * torch.randn_like(parameter))
    assert (logits[0] - logits[1]).abs().max() > 1e-3


@pytest.mark.parametrize("name", ["dense", "hero", "skipgpt-rt"])
def test_flash_attention_decodes_as_sdpa(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In bfloat16, behind prompts of different lengths; up to its rounding."""
    model, ids = model_of(name).to("cuda", torch.bfloat16), IDS.cuda()
    mask = torch.ones_like(ids)
    mask[0, :4] = mask[2, :1] = 0
    found = []
    for flash in (True, False):
        if not flash:
            monkeypatch.setattr(decoding, "takes", lambda *_: False)
        decoder = StaticDecoder(model, len(ids), 40, forced=name != "dense")
        decoder.prefill(ids, mask)
        assert bool(decoder._columns) == flash
        decoder.token.fill_(5)
        decoder.step()
        decoder.step()
        found.append(decoder.logits.float())
    assert (found[0] - found[1]).norm() < 0.03 * found[1].norm()
