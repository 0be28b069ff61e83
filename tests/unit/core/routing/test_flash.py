"""Flash attention over a static cache: what it is given, and the tokens that follow."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from methods.core.model.backbone import layers
from methods.core.routing import decoding, flash
from methods.core.routing.decoding import StaticDecoder, generate
from methods.core.routing.flash import Columns, attend_to_columns
from methods.core.surgery.layers import remove_sublayers
from tests.contract.fits import IDS
from tests.toys.models import make_model
from tests.unit.core.routing.test_decoding import expected, model_of


def columns_in_use(*given: Any, scale: float, enable_gqa: bool, seqused_k: Tensor) -> Tensor:
    """What flash attention computes of sequences behind each other, on a CPU."""
    query, key, value, tokens, starts, *_ = given
    assert tokens.tolist() == list(range(len(query) + 1))
    assert (starts.diff() >= seqused_k).all()
    read = []
    for row, start, length in zip(query, starts.tolist(), seqused_k.tolist(), strict=False):
        used = slice(start, start + length)
        weights = torch.softmax(row @ key[used, 0].T * scale, dim=-1)
        read.append(weights @ value[used, 0])
    return torch.stack(read)


@pytest.mark.parametrize("name", ["dense", "hero", "skipgpt-rt", "block"])
@pytest.mark.parametrize("padded", [False, True])
def test_flash_attention_reads_the_columns_in_use(
    name: str, padded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = list[int]()

    def attend(*given: Any, **options: Any) -> Tensor:
        calls.append(1)
        return columns_in_use(*given, **options)

    model, mask = model_of(name), torch.ones_like(IDS)
    if padded:
        mask[0, :4] = mask[2, :1] = 0
    tokens = expected(model, IDS, mask, 12)
    monkeypatch.setattr(decoding, "takes", lambda *_: True)
    monkeypatch.setattr(flash, "varlen_attn", attend)
    assert torch.equal(generate(model, IDS, mask, 12), tokens)
    # The first new token comes with the prompt.
    assert len(calls) == 11 * len(layers(model))
    assert model.config._attn_implementation == "sdpa"

    decoder = StaticDecoder(model, len(IDS), 40)
    for _ in range(2):
        decoder.prefill(IDS, mask)
        back = decoder.mark()
        seen = []
        for _ in range(2):
            decoder.step()
            decoder.step()
            seen.append(decoder.logits.clone())
            back()
        assert torch.equal(*seen)


def test_a_layer_without_attention_has_no_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    model = remove_sublayers(make_model(), [0, 3], [1]).eval()
    tokens = expected(model, IDS, None, 12)
    monkeypatch.setattr(decoding, "takes", lambda *_: True)
    monkeypatch.setattr(flash, "varlen_attn", columns_in_use)
    assert torch.equal(generate(model, IDS, None, 12), tokens)


def test_flash_attention_takes_a_cache() -> None:
    """Shapes and types as on the device; meta tensors hold no numbers."""
    with torch.device("meta"):
        query = torch.empty(3, 8, 1, 64, dtype=torch.bfloat16)
        key = torch.empty(3, 2, 40, 64, dtype=torch.bfloat16)
        columns = {2: Columns.of(torch.zeros(3, dtype=torch.int64), 7, 2, 40)}
        read, _ = attend_to_columns(torch.nn.Module(), query, key, key, None, columns, 0.125)
    assert (read.shape, read.dtype) == ((3, 1, 8, 64), torch.bfloat16)
