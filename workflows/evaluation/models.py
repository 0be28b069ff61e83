"""The model that is scored: from a compressed folder or a plain Hugging Face folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from methods import load_method
from methods.base import Request
from methods.core.model.backbone import Backbone, load_backbone
from methods.core.model.card import CARD, Card, read_card
from methods.core.model.checkpoint import Loaded, backbone_places, describe, load
from methods.core.model.folder import INDEX, WEIGHTS
from methods.core.model.ledger import Ledger
from workflows.runtime.contents import (
    SETTINGS_FILES,
    TOKENIZER_FILES,
    WEIGHTS_FILES,
    Contents,
    model_files,
)

# What a card says of its backbone and what changes no number.
LABELS = ("path", "relative_path", "revision")


def describe_model(folder: Path) -> Card:
    """The card of a compressed model; for a plain Hugging Face folder a new one, of row dense."""
    if (folder / CARD).is_file():
        return read_card(folder)
    return _dense_card(load_backbone(folder))


def _dense_card(backbone: Backbone) -> Card:
    """The card of a backbone that is scored as it is."""
    folder = backbone.path
    return describe("dense", load_method("dense"), backbone, Request(None, 0, folder), folder)


def load_any(folder: Path, backbone: Path | None, device: str) -> Loaded:
    """Load a compressed model, or a plain folder as row dense.

    Args:
        folder: With a tokenizer.
        backbone: Folder of the dense backbone, if it has moved since the fit.
        device: Of the model.

    Raises:
        ValueError: The folder cannot be read or has no tokenizer.
    """
    if (folder / CARD).is_file():
        loaded = load(folder, backbone, device)
    else:
        plain = load_backbone(folder, device=device)
        ledger = Ledger.of(plain.model, plain.parameters, plain.layer_count)
        dense = load_method("dense")
        loaded = Loaded(plain.model, plain.tokenizer, _dense_card(plain), dense, ledger)
    if loaded.tokenizer is None:
        raise ValueError(f"{folder} has no tokenizer, so its text tasks cannot be scored")
    return loaded


def model_identity(
    folder: Path, backbone: Path | None, card: Card, contents: Contents
) -> list[Any]:
    """Everything of a model on which its scores depend; not where its folder is.

    Args:
        folder: As for :func:`load_any`.
        backbone: Folder of the dense backbone, if it has moved since the fit.
        card: From :func:`describe_model`.
        contents: Hashes of files.

    Returns:
        JSON value: keys of the card that decide which weights run, and hashes of the model's files.
    """
    fits = [card] if card.start is None else [card, card.start]
    facts = []
    for fit in fits:
        dense = {key: value for key, value in vars(fit.backbone).items() if key not in LABELS}
        facts.append([fit.row, fit.params, fit.structure, dense])
    # The card has the hash of the backbone's weights, and loading has compared it with them.
    weights = model_files(folder, *WEIGHTS_FILES) if (folder / CARD).is_file() else []
    settings = [
        model_files(place, *SETTINGS_FILES, *TOKENIZER_FILES)
        for place in _folders(folder, backbone, card)
    ]
    return [facts, contents.of(weights), *map(contents.of, settings)]


def _folders(folder: Path, backbone: Path | None, card: Card) -> list[Path]:
    """A model's folder and, unless it has all weights, the folder of its backbone."""
    if any((folder / name).is_file() for name in (WEIGHTS, INDEX)):
        return [folder]
    places = backbone_places(folder, card, backbone)
    return [folder, *[place for place in places if (place / "config.json").is_file()][:1]]


def harness_arguments(loaded: Loaded) -> dict[str, Any]:
    """Arguments of :class:`workflows.evaluation.harness.CountingLM` that depend on the model."""
    return {
        "model": loaded.model,
        "tokenizer": loaded.tokenizer,
        "ledger": loaded.ledger,
        "batchable": loaded.method.batchable(),
    }
