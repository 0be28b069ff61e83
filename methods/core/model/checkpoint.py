"""The folder of a fitted model: what a fit writes, and how a new process reads the model again.

skipbench.json        the card: row, params, structure, identity of the backbone
decisions.json        what the fit decided, and why
config.json           what transformers sees of the folder: see ``pretrained.py``
tokenizer             of the backbone
model.safetensors     static methods: all weights, with ``generation_config.json``
trained.safetensors   other methods: the trained weights; the backbone stays in its own folder

``save_pretrained`` of a loaded model writes a folder with all weights, for any method.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from methods.base import Fitted, Method, Request
from methods.core.jsonfile import check_plain, write_json
from methods.core.model.backbone import Backbone, convert, load_backbone
from methods.core.model.card import CARD, BackboneCard, Card, read_card, write_card
from methods.core.model.finite import check_buffers, check_parameters
from methods.core.model.folder import INDEX, WEIGHTS, check_no_adapter, hash_folder
from methods.core.model.ledger import Ledger
from methods.core.model.pretrained import SkipbenchConfig, guard, is_plain
from methods.core.model.tensors import read_tensors, share
from methods.core.model.whole import assign, build, guard_whole, hash_fitted, read_from, read_whole
from methods.core.routing.routed import router_of
from methods.discovery import find_row, load_method

DECISIONS, TRAINED = "decisions.json", "trained.safetensors"


@dataclass
class Loaded:
    """A compressed model and what belongs to it.

    Args:
        model: Causal LM in eval mode.
        tokenizer: Of the backbone.
        card: Of the fitted model.
        method: The method that made the model.
        ledger: Sizes for the skip rates.
    """

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase | None
    card: Card
    method: Method
    ledger: Ledger


def save(
    folder: Path,
    method: Method,
    fitted: Fitted,
    card: Card,
    tokenizer: PreTrainedTokenizerBase | None,
) -> None:
    """Write a fitted model into an existing, empty folder.

    Args:
        folder: Where to write.
        method: The method, with its params.
        fitted: Result of its fit.
        card: From :func:`describe`, with what the step measured.
        tokenizer: Stored with the model.

    Raises:
        ValueError: A weight is NaN or infinite, structure or decisions are no JSON, or ``build``
            makes another model.
    """
    model, card = fitted.model, replace(card, structure=fitted.structure)
    fit = f"row '{card.row}'"
    check_plain(fitted.structure, f"{fit}, structure")
    check_plain(fitted.decisions, f"{fit}, decisions")
    check_parameters(model, fit)
    assert isinstance(model, PreTrainedModel)
    if method.kind == "static":
        check_buffers(model, fit)
    guard_whole(model, method, card)
    trained_file = folder / TRAINED
    if method.kind == "static":
        model.save_pretrained(folder)
    else:
        trained = {n: p.detach().cpu() for n, p in model.named_parameters() if p.requires_grad}
        if trained:
            save_file({n: p.contiguous() for n, p in trained.items()}, trained_file)
            share(folder)
        SkipbenchConfig(row=card.row, vocab_size=model.config.vocab_size).save_pretrained(folder)
    if tokenizer is not None:
        tokenizer.save_pretrained(folder)
    write_json(folder / DECISIONS, fitted.decisions)
    stored = hash_folder(folder) if method.kind == "static" else card.backbone.hash
    added = trained_file.read_bytes() if trained_file.is_file() else b""
    weights = hash_fitted(method, stored, fitted.structure, added)
    write_card(folder, replace(card, weights_hash=weights))


def describe(row: str, method: Method, backbone: Backbone, request: Request, folder: Path) -> Card:
    """The card of a fit before it runs; ``folder`` is where its model will be."""
    path, start = backbone.path.resolve(), backbone.start
    return Card(
        row=row,
        params=vars(method.params),
        budget=request.budget if start is None else start.budget,
        match=request.match if find_row(row).is_matched(request.budget) else None,
        seed=request.seed,
        start=None if start is None else start.as_start,
        backbone=BackboneCard(
            path=str(path),
            relative_path=os.path.relpath(path, folder.resolve()),
            revision=backbone.revision,
            hash=backbone.hash,
            parameters=backbone.parameters,
            layers=backbone.layer_count if start is None else start.backbone.layers,
            dtype=str(backbone.model.dtype).removeprefix("torch."),
            config=backbone.config.to_diff_dict(),
        ),
    )


def load(
    folder: Path, backbone: Path | None = None, device: str = "cpu", dtype: Any = None
) -> Loaded:
    """Read a compressed model back.

    Args:
        folder: Output of the fit step.
        backbone: Where the dense backbone is now; None: where it was during the fit, first
            relative to the folder.
        device: Where the model goes.
        dtype: See :func:`methods.core.model.backbone.convert`.

    Raises:
        ValueError: A part is missing or damaged, or the backbone is another one.
    """
    card = read_card(folder)
    if card.not_applicable is not None:
        raise ValueError(f"{folder} holds no model: {card.not_applicable}")
    check_no_adapter(folder)
    with read_from(folder):
        method = load_method(card.row, card.params)
    dense = card.backbone
    if method.kind == "static" or any((folder / name).is_file() for name in (WEIGHTS, INDEX)):
        model, tokenizer = read_whole(folder, method, card)
    else:
        start = open_backbone(_locate(folder, card, backbone), dense.dtype)
        model, tokenizer = build(method, start, card, folder), start.tokenizer
        _fill_trained(model, folder)
    convert(model, dtype)
    cast_alternatives(model)
    ledger = Ledger.of(model, dense.parameters, dense.layers)
    torch.nn.Module.to(model, device).eval()
    # What adapters that are trained on the model name as their base.
    model.name_or_path = model.config.name_or_path = str(folder)
    if card.structure or not is_plain(model):
        guard_whole(model, method, card)
    else:
        # Without a structure the model is its backbone, whose folder needs no card, unless loading
        # split its matrices.
        guard(model)
    return Loaded(model, tokenizer, card, method, ledger)


def dense_folder(folder: Path) -> Path:
    """The dense backbone of a compressed model, also if its fit started from another model.

    Raises:
        ValueError: It is not where it was during the fit, or it is another one.
    """
    while (folder / CARD).is_file():
        folder = _locate(folder, read_card(folder), None)
    return folder


def open_backbone(
    path: Path, dtype: str = "float32", device: str = "cpu", revision: str | None = None
) -> Backbone:
    """What a fit starts from: a dense backbone, or the model of a static row.

    Raises:
        ValueError: The folder is neither of them, or damaged.
    """
    if not (path / CARD).is_file():
        return load_backbone(path, dtype, device, revision)
    loaded = load(path, device=device)
    if loaded.method.kind != "static":
        raise ValueError(f"{path} holds row '{loaded.card.row}'; only a static row can be built on")
    card, now = loaded.card, hash_folder(path)
    if card.weights_hash not in (None, now):
        raise ValueError(
            f"the files in {path} are not those that its {CARD} was written for: their hash is "
            f"{now}, the card says {card.weights_hash}; fit the row again"
        )
    total = card.backbone.parameters
    return Backbone(loaded.model, loaded.tokenizer, path, None, now, total, card)


def _fill_trained(model: torch.nn.Module, folder: Path) -> None:
    """Load the trained weights into the parameters that ask for a gradient.

    Raises:
        ValueError: The names of the two differ.
    """
    names = {name for name, p in model.named_parameters() if p.requires_grad}
    file = folder / TRAINED
    tensors = read_tensors(file) if file.is_file() else {}
    if names != set(tensors):
        odd = sorted(names ^ set(tensors))[0]
        raise ValueError(
            f"{file} does not fit the model: tensor '{odd}' is only in the file or only in "
            "the model"
        )
    assign(model, tensors, folder)


def cast_alternatives(model: PreTrainedModel) -> None:
    """Give alternatives the dtype of the backbone, so that they are not cast in every call.

    Training keeps them in float32.
    """
    router = router_of(model)
    for alternative in [] if router is None else router.alternatives():
        alternative.to(model.dtype)


def backbone_places(folder: Path, card: Card, moved: Path | None) -> list[Path]:
    """Where the folder that a fit started from may be, the likeliest first.

    Args:
        folder: Of the fitted model.
        card: Of the fitted model.
        moved: Where the user says that it is now; None: no word from the user.
    """
    dense = card.backbone
    return [folder / dense.relative_path, Path(dense.path)] if moved is None else [moved]


def _locate(folder: Path, card: Card, moved: Path | None) -> Path:
    """The folder that the fit started from; its hash is checked."""
    dense = card.backbone
    for path in backbone_places(folder, card, moved):
        compressed = (path / CARD).is_file()
        if (path / "config.json").is_file() and compressed == (card.start is not None):
            now = hash_folder(path)
            if now != dense.hash:
                raise ValueError(
                    f"{path} is another backbone: its hash is {now}, "
                    f"{folder} was made from {dense.hash}"
                )
            return path
    where = moved if moved is not None else Path(dense.path)
    raise ValueError(
        f"the backbone of {folder} is not at {where}; name its folder (--backbone, or backbone=)"
    )
