"""The model that is scored: of a compressed or a plain Hugging Face folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from methods import load_method
from methods.base import Request
from methods.core.model.backbone import load_backbone
from methods.core.model.checkpoint import Loaded, backbone_places, describe, load
from methods.core.model.folder import INDEX
from methods.core.model.folder import WEIGHTS as WHOLE
from methods.core.model.ledger import Ledger
from methods.core.model.pretrained import CARD, read_card
from workflows.runtime.contents import SETTINGS, TOKENIZER, WEIGHTS, Contents, model_files

# What a card says of the numbers of its model; of a backbone all but these.
LASTING = ("row", "params", "structure")
LABELS = ("path", "relative_path", "revision")


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


def model_identity(
    folder: Path, backbone: Path | None, described: Mapping[str, Any], contents: Contents
) -> list[Any]:
    """What scores depend on of a model, wherever it lies.

    Args:
        folder: That :func:`load_any` read.
        backbone: Where the dense backbone lies now, if it moved.
        described: By :func:`describe_model`.
        contents: Hashes of files.

    Returns:
        JSON value: of its card what decides which weights run, and its files by what they hold.
    """
    start = described["start"]
    made = [
        [told.get(key) for key in LASTING]
        + [{key: value for key, value in told["backbone"].items() if key not in LABELS}]
        for told in (described, *([start] if start else []))
    ]
    # The hash of a backbone, which loading has held against its weights, stands for them.
    own = model_files(folder, *WEIGHTS) if (folder / CARD).is_file() else []
    read = [
        model_files(place, *SETTINGS, *TOKENIZER) for place in _places(folder, backbone, described)
    ]
    return [made, contents.of(own), *map(contents.of, read)]


def _places(folder: Path, backbone: Path | None, described: Mapping[str, Any]) -> list[Path]:
    """A model's folder, and the one from which :func:`load_any` read what it does not hold."""
    if any((folder / name).is_file() for name in (WHOLE, INDEX)):
        return [folder]
    places = backbone_places(folder, described, backbone)
    return [folder, *[place for place in places if (place / "config.json").is_file()][:1]]


def harness_arguments(loaded: Loaded) -> dict[str, Any]:
    """What a :class:`workflows.evaluation.harness.CountingLM` takes of a model."""
    return {
        "model": loaded.model,
        "tokenizer": loaded.tokenizer,
        "ledger": loaded.ledger,
        "pads": loaded.method.batchable(),
    }
