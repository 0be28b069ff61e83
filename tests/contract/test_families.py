"""Rows that train, on every family of backbones: windows, biases, norms of queries, tied heads."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from methods import load_method
from methods.base import Request
from methods.core.data import Data
from methods.core.model.backbone import load_backbone
from tests.contract.conftest import BUDGET, BUDGETS, IDS, ROWS, SEED
from tests.toys.models import CONFIGS
from tests.toys.texts import VOCABULARY
from workflows.suite.job import data_parts

# Enough to move weights, on ids: transformers gives a Qwen2 folder a tokenizer without toy words.
PARAMS = {"updates": 2, "batch_tokens": 128, "row_length": 64}
TRAINED = [row for row in ROWS if ROWS[row].trained]


@pytest.mark.parametrize("kind", [kind for kind in CONFIGS if kind != "llama"])
@pytest.mark.parametrize("row", TRAINED)
def test_a_trained_row_decodes_from_a_cache_as_in_one_pass(
    row: str, kind: str, backbones: dict[str, Path], data_files: dict[str, Path], tmp_path: Path
) -> None:
    backbone = load_backbone(backbones[kind])
    files = {f"{part}_file": data_files["ids"] for part in data_parts(ROWS[row])}
    data = Data(backbone.tokenizer, VOCABULARY, 64, **files)
    budget = BUDGETS.get(row, BUDGET) if ROWS[row].budgeted else None
    method, request = load_method(row, PARAMS), Request(budget, SEED, tmp_path)
    reason = method.skip_reason(backbone, request)
    if reason is not None:
        assert (row, kind) in {("d-llm", "mistral"), ("d-llm", "qwen2")}, reason
        return
    model = method.fit(backbone, data, request).model.eval()
    with torch.no_grad():
        whole, cache, steps = model(IDS).logits, None, []
        for place in range(IDS.shape[1]):
            step = model(IDS[:, place : place + 1], past_key_values=cache, use_cache=True)
            cache = step.past_key_values
            steps.append(step.logits)
    torch.testing.assert_close(torch.cat(steps, dim=1), whole, rtol=0, atol=1e-4)
