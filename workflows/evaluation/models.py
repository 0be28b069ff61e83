"""The model that is scored: of a compressed or a plain Hugging Face folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from methods import load_method
from methods.base import Request
from methods.core.backbone import load_backbone
from methods.core.checkpoint import Loaded, describe, load
from methods.core.ledger import Ledger
from methods.core.pretrained import CARD, read_card


def describe_model(folder: Path) -> dict[str, Any]:
    """The card of a compressed model, or one made for a plain Hugging Face folder (row dense)."""
    if (folder / CARD).is_file():
        return read_card(folder)
    backbone = load_backbone(folder)
    return describe("dense", load_method("dense"), backbone, Request(None, 0, folder), folder)


def load_any(folder: Path, backbone: Path | None, device: str) -> Loaded:
    """A compressed model, or a plain folder, whose card is empty.

    Args:
        folder: With a tokenizer.
        backbone: Where the dense backbone lies now, if it moved.
        device: Where the model goes.

    Raises:
        ValueError: The folder cannot be read or has no tokenizer.
    """
    if (folder / CARD).is_file():
        loaded = load(folder, backbone, device)
    else:
        plain = load_backbone(folder, device=device)
        ledger = Ledger.of(plain.model, plain.parameters, plain.layer_count)
        loaded = Loaded(plain.model, plain.tokenizer, {}, load_method("dense"), ledger)
    if loaded.tokenizer is None:
        raise ValueError(f"{folder} has no tokenizer, so its text tasks cannot be scored")
    return loaded


def harness_arguments(loaded: Loaded) -> dict[str, Any]:
    """What a :class:`workflows.evaluation.harness.CountingLM` takes of a model."""
    return {
        "model": loaded.model,
        "tokenizer": loaded.tokenizer,
        "ledger": loaded.ledger,
        "pads": loaded.method.batchable(),
    }
