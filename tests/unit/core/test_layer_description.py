"""The committed table of families, and the description of a layer by hand."""

from __future__ import annotations

import re

import torch
from torch import nn

from methods.core.model.backbone import finish, is_finished
from methods.core.model.families import split_matrices
from tests.families import table
from tests.toys.models import make_model, make_scaled
from workflows import ROOT
from workflows.report.published import REFERENCE


def test_the_committed_table_says_what_rows_say() -> None:
    """It holds the rows that the README names; a file dropped into methods/ may add others."""
    committed = (REFERENCE / "families" / "families.csv").read_text(encoding="utf-8").splitlines()
    named = set(re.findall(r"`([\w-]+)`", (ROOT / "README.md").read_text(encoding="utf-8")))
    rows = [line for line in table().splitlines() if line.split(",")[0] in {"row", *named}]
    assert rows == committed


def test_what_a_sublayer_adds_is_normed_and_scaled() -> None:
    output = torch.randn(2, 3, 32)
    llama, granite, gemma = (
        make_scaled(kind).model.layers[0] for kind in ("llama", "granite", "gemma2")
    )
    assert is_finished(llama)
    assert finish(llama, "ffn", output) is output
    assert torch.equal(finish(granite, "ffn", output), 0.5 * output)
    normed = gemma.post_attention_layernorm(output)
    assert torch.equal(finish(gemma, "attention", output), normed)
    assert not is_finished(granite)
    assert not is_finished(gemma)


def test_split_matrices_hold_the_rows_of_the_fused_ones() -> None:
    fused, split = make_model("phi3"), split_matrices(make_model("phi3"))
    before, after = fused.model.layers[1], split.model.layers[1]
    heads = [getattr(after.self_attn, f"{name}_proj").weight for name in "qkv"]
    assert torch.equal(torch.cat(heads), before.self_attn.qkv_proj.weight)
    channels = torch.cat([after.mlp.gate_proj.weight, after.mlp.up_proj.weight])
    assert torch.equal(channels, before.mlp.gate_up_proj.weight)
    assert isinstance(after.self_attn.q_proj, nn.Linear)
    counts = [sum(p.numel() for p in model.parameters()) for model in (fused, split)]
    assert counts[0] == counts[1]
