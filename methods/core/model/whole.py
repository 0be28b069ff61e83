"""Folders with every weight of a compressed model: how they are read, and written again.

``save_pretrained`` of a loaded model is done here. The user may have changed the model since it was
loaded. So the card is written anew, with the hash of the present weights and with the changes of
the config. A model that its card cannot rebuild is refused.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from methods.base import Method
from methods.core.jsonfile import cut, first_line
from methods.core.model.backbone import Backbone, decoder, empty_backbone
from methods.core.model.card import CARD, Card, FitCard, write_card
from methods.core.model.families import restore_scale
from methods.core.model.folder import (
    hash_folder,
    make_config,
    read_generation,
    read_tokenizer,
    weight_files,
)
from methods.core.model.pretrained import (
    SkipbenchConfig,
    check_storable,
    guard_by,
    is_plain,
    odd_part,
    untie_own_head,
    write_plainly,
)
from methods.core.model.tensors import read_tensors
from methods.discovery import load_method

# Attributes by which routers decide, set by a fit; a card has them, the weights do not.
ROUTING = ("threshold", "tau", "levels", "skips")
HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"


def read_whole(
    folder: Path, method: Method, card: Card
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase | None]:
    """Model and tokenizer of a folder; the model's shape follows from the card.

    Raises:
        ValueError: A part is missing or damaged, or the weights do not fit the card.
    """
    model = _rebuild(method, card, folder)
    tensors: dict[str, torch.Tensor] = {}
    for file in weight_files(folder):
        tensors |= read_tensors(file)
    config = model.config
    if config.tie_word_embeddings and EMBEDDING in tensors:
        tensors.setdefault(HEAD, tensors[EMBEDDING])
    assign(model, tensors, folder)
    # Rotary frequencies are not stored; a new module computes them from the config.
    inner = decoder(model)
    inner.rotary_emb = type(inner.rotary_emb)(config)
    restore_scale(inner.embed_tokens)
    untie_own_head(model)
    model.tie_weights()
    settings = read_generation(folder)
    if settings is not None:
        model.generation_config = settings
    return model, read_tokenizer(folder, config)


def _rebuild(method: Method, card: Card, folder: Path) -> PreTrainedModel:
    """The model that a card describes, on the meta device."""
    start, dense = card.start, card.first.backbone
    config = make_config(dense.config, folder / CARD)
    if config.num_hidden_layers != dense.layers:
        raise ValueError(
            f"{folder / CARD} says {dense.layers} layers, its config says "
            f"{config.num_hidden_layers} (num_hidden_layers)"
        )
    empty = empty_backbone(config, folder)
    if start is not None:
        with read_from(folder):
            first = load_method(start.row, start.params)
        empty.model = build(first, empty, start, folder)
    return build(method, empty, card, folder)


def build(method: Method, backbone: Backbone, fit: FitCard, folder: Path) -> PreTrainedModel:
    """The model of a fit, from the structure in its card; its weights are not those of the fit."""
    with read_from(folder):
        assert fit.structure is not None
        model = method.build(backbone, fit.structure)
        assert isinstance(model, PreTrainedModel)
        return model


@contextmanager
def read_from(folder: Path) -> Iterator[None]:
    """A context that turns an error about a card's values into one sentence with its name.

    Raises:
        ValueError: A value does not fit the row.
    """
    try:
        yield
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{folder / CARD} describes no model: {first_line(error)}") from error


def assign(model: torch.nn.Module, tensors: dict[str, torch.Tensor], folder: Path) -> None:
    """Replace the parameters of a model by tensors.

    Raises:
        ValueError: A tensor is unknown or of another shape, or a parameter on the meta device has
            none.
    """
    try:
        _, unknown = model.load_state_dict(tensors, strict=False, assign=True)
    except RuntimeError as error:
        reason = cut(" ".join(str(error).split()))
        raise ValueError(f"the weights in {folder} do not fit: {reason}") from error
    empty = [name for name, parameter in model.named_parameters() if parameter.is_meta]
    if empty or unknown:
        odd = [*empty, *unknown][0]
        raise ValueError(
            f"the weights in {folder} do not fit: tensor '{odd}' is only in the file or only in "
            "the model"
        )


def hash_fitted(
    method: Method, weights: str, structure: dict[str, Any], trained: bytes = b""
) -> str:
    """The identity of a fitted model: 16 hex digits, equal for rows with the same weights.

    A static row is identified by its weights alone; it does not matter which method made them.

    Args:
        method: The method that made the model.
        weights: Hash of the folder with all weights, or else of the backbone.
        structure: Of the fit.
        trained: Content of the file of trained tensors, if the other weights are the backbone's.
    """
    if method.kind == "static":
        return weights
    made_by = [type(method).__module__, vars(method.params)]
    facts = json.dumps([*made_by, weights, structure], sort_keys=True)
    digest = hashlib.sha256(facts.encode())
    digest.update(trained)
    return digest.hexdigest()[:16]


def guard_whole(model: PreTrainedModel, method: Method, card: Card) -> None:
    """Let ``save_pretrained`` write the model with its card, or refuse to.

    Args:
        model: Causal LM; it may be changed later.
        method: The method that made it.
        card: Describes the model as it is now.
    """
    config = model.config.to_dict()
    guard_by(model, partial(_save, method, card, config))


def _save(
    method: Method,
    card: Card,
    config: dict[str, Any],
    model: PreTrainedModel,
    folder: str | Path,
    **options: Any,
) -> None:
    """``save_pretrained`` of a compressed model; the card comes last.

    Raises:
        ValueError: The folder could not be read again as the present model.
    """
    check_storable(model)
    card, place = _card_of_now(card, model, config), Path(folder)
    _check_described(model, method, card, place)
    own_config = model.config
    if not is_plain(model):
        model.config = SkipbenchConfig(row=card.row, vocab_size=own_config.vocab_size)
    try:
        write_plainly(model, folder, **options)
    finally:
        model.config = own_config
    assert card.structure is not None
    weights = hash_fitted(method, hash_folder(place), card.structure)
    write_card(place, replace(card, weights_hash=weights))


def _card_of_now(card: Card, model: PreTrainedModel, config: dict[str, Any]) -> Card:
    """The card with the changes of the model's config, which was ``config`` at first."""
    changes = {k: v for k, v in model.config.to_dict().items() if config.get(k) != v}
    dtype, dense = str(model.dtype).removeprefix("torch."), card.first.backbone
    dense = replace(dense, config=dense.config | changes, dtype=dtype)
    if card.start is None:
        return replace(card, backbone=dense)
    return replace(card, start=replace(card.start, backbone=dense))


def _check_described(model: PreTrainedModel, method: Method, card: Card, folder: Path) -> None:
    """Refuse a model that its card does not rebuild."""
    try:
        odd = odd_part(model, _rebuild(method, card, folder), ROUTING)
        reason = None if odd is None else f"'{odd}' is of another type, shape or value"
    except ValueError as error:
        reason = str(error)
    if reason is not None:
        raise ValueError(
            f"this model is not what {CARD} says of it: {reason}; undo the change, or change the "
            "backbone and fit the row again; after a fit, build of its row makes another model"
        )
