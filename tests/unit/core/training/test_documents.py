"""Packed documents stay apart: by a mask, or by flash attention over documents of known lengths."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from methods.core.data import Document
from methods.core.routing import flash
from methods.core.surgery.layers import remove_sublayers
from methods.core.training import documents
from methods.core.training.documents import (
    Documents,
    attend_documents,
    document_mask,
    packed_attention,
)
from methods.core.training.packing import lay_out
from tests.toys.models import make_model
from tests.toys.training import (
    build_row,
    one_update,
    same_bits,
    same_gradients,
    trainer_for,
    values,
)

CPU = torch.device("cpu")


def test_the_mask_of_packed_rows_by_hand() -> None:
    rows = lay_out([Document([11, 12, 13], 2), Document([21, 22], 0), Document([31] * 6, 0)], 6, 1)
    # Two documents and a pad, which is a third.
    seen = ["100000", "110000", "111000", "000100", "000110", "000001"]
    mask = document_mask(rows.positions, torch.bfloat16)
    assert mask.dtype == torch.bfloat16
    assert mask.shape == (2, 1, 6, 6)
    assert [mask.stride(n) % 8 for n in range(4)] == [0, 0, 0, 1]
    assert mask[0, 0].tolist() == [[0.0 if c == "1" else -torch.inf for c in line] for line in seen]
    with packed_attention(make_model(), rows.positions, CPU) as arguments:
        assert torch.equal(arguments["attention_mask"], mask.float())
    with packed_attention(make_model(), torch.arange(4)[None], CPU) as arguments:
        assert not arguments


@pytest.mark.parametrize("row", ["hero", "lora", "d-llm"])
def test_masks_of_packed_rows_are_those_of_transformers(
    row: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for own in (True, False):
        model = None if row in ("hero", "lora") else build_row(row, rank=4)
        trainer = trainer_for(row, tmp_path / str(own), updates=2, model=model)
        assert documents.mask_dtype(trainer.model, CPU) is torch.float32
        if not own:
            monkeypatch.setattr(documents, "mask_dtype", lambda *_: None)
        found.append((trainer.run(), values(trainer)))
    assert found[0][0] == found[1][0]
    same_bits(found[0][1], found[1][1])


def document_by_document(
    query: Tensor, key: Tensor, value: Tensor, starts: Tensor, *others: Any, scale: float, **_: Any
) -> Tensor:
    """What flash attention computes of documents (L, H, d), on a CPU."""
    ends, _, _ = others
    assert starts is ends
    sizes = starts.diff().tolist()
    pieces = zip(
        *(part.transpose(0, 1).split(sizes, 1) for part in (query, key, value)), strict=True
    )
    read = [
        scaled_dot_product_attention(*piece, is_causal=True, scale=scale, enable_gqa=True)
        for piece in pieces
    ]
    return torch.cat(read, dim=1).transpose(0, 1)


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("row", ["hero", "lora", "skipgpt-joint"])
def test_documents_of_known_lengths_train_as_under_a_mask(
    row: str, checkpointing: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for lengths in (False, True):
        model = None if row in ("hero", "lora") else build_row(row, rank=4)
        trainer = trainer_for(
            row, tmp_path / str(lengths), updates=1, model=model, checkpointing=checkpointing
        )
        if lengths:
            monkeypatch.setattr(documents, "flash_takes", lambda *_: True)
            monkeypatch.setattr(documents, "varlen_attn", document_by_document)
            monkeypatch.setattr(documents, "document_mask", None)
        found.append(one_update(trainer))
        assert trainer.model.config._attn_implementation == "sdpa"
    assert found[1][0]["loss"] == pytest.approx(found[0][0]["loss"], rel=1e-5)
    same_gradients(found[0][1], found[1][1], 1e-5)


def test_flash_attention_takes_these_documents(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shapes and types as on the device; meta tensors hold no numbers."""
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda _: False)
    with torch.device("meta"):
        query, key, value = (
            torch.empty(2, heads, 24, 64, requires_grad=True) for heads in (8, 2, 2)
        )
        starts = torch.empty(6, dtype=torch.int32)
    parts = [part.bfloat16() for part in (query, key, value)]
    read, weights = attend_documents(torch.nn.Module(), *parts, None, Documents(starts, 9), 0.125)
    assert weights is None
    assert (read.shape, read.dtype) == ((2, 24, 8, 64), torch.bfloat16)
    read.float().sum().backward()
    assert query.grad is not None


def test_flash_attention_takes_what_it_computes_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    model = remove_sublayers(make_model(), [0], [])
    assert not documents.flash_takes(model, CPU)
    monkeypatch.setattr(flash, "capable", lambda _: True)
    assert documents.flash_takes(model, CPU)
    model.config._attn_implementation = "eager"
    assert not documents.flash_takes(model, CPU)
    # Four channels of a head, where eight are the least.
    assert not documents.flash_takes(make_model(head_dim=4), CPU)


def test_an_error_leaves_the_attention_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "flash_takes", lambda *_: True)
    model = make_model()
    packed = packed_attention(model, torch.tensor([[0, 1, 0, 1, 2]]), CPU)
    arguments = packed.__enter__()
    assert model.config._attn_implementation == documents.DOCUMENTS
    assert arguments["documents"].starts.tolist() == [0, 2, 5]
    assert arguments["documents"].longest == 3
    assert not packed.__exit__(RuntimeError, RuntimeError("no memory"), None)
    assert model.config._attn_implementation == "sdpa"
