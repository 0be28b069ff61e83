"""The controls of the model card."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

import torch

from tests.toys.texts import VOCABULARY
from workflows.steps.model_card import with_adapters


def test_adapters_replace_every_late_ffn(llama: Path, data_files: dict[str, Path]) -> None:
    args = Namespace(model=llama, data=data_files["training"].parent)
    params = {"updates": 2, "batch_tokens": 128, "row_length": 64}
    model = with_adapters(args, params, [4, 5]).eval()
    ids = torch.arange(20)[None] % VOCABULARY
    executed = model.model(input_ids=ids, use_cache=False).executed
    assert executed.shape == (1, 2, 20)
    assert not executed.any()
