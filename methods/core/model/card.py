"""The card of a fitted model: one typed value, stored as ``skipbench.json`` in the model's folder.

The card says which row was fitted with which params, on which backbone, and with which result. It
is read and written here alone.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import NoneType
from typing import Any

from methods.core.jsonfile import cut, read_json, write_json

CARD = "skipbench.json"
FORMAT = 1
# Keys that a card must have, with the types of their values.
_FIT_TYPES: dict[str, Any] = {"row": str, "params": dict, "seed": int, "backbone": dict}
_CARD_TYPES: dict[str, Any] = {"start": (dict, NoneType), "budget": (float, NoneType)}
_BACKBONE_TYPES: dict[str, Any] = {
    "path": str, "relative_path": str, "hash": str, "parameters": int, "layers": int, "dtype": str,
    "config": dict,
}  # fmt: skip


@dataclass(frozen=True)
class BackboneCard:
    """The folder that a fit started from: where it was, and what identifies it.

    Args:
        path: Absolute, at the time of the fit.
        relative_path: The same, relative to the folder of the fitted model.
        revision: Version label given by the user or the hub, if any.
        hash: See :func:`methods.core.model.folder.hash_folder`.
        parameters: Parameters of the dense model.
        layers: Layers of the dense model.
        dtype: Of the weights during the fit, such as ``"float32"``.
        config: Content of its config.json, without default values.
    """

    path: str
    relative_path: str
    revision: str | None
    hash: str
    parameters: int
    layers: int
    dtype: str
    config: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class FitCard:
    """What a card says of a fit from which another fit started.

    Args:
        row: Its row.
        params: Its params, defaults included.
        seed: Its seed.
        backbone: What it started from.
        structure: JSON value from which ``Method.build`` makes the model again; None where there
            is no model.
    """

    row: str
    params: dict[str, Any]
    seed: int
    backbone: BackboneCard
    structure: dict[str, Any] | None = None


@dataclass(frozen=True, kw_only=True)
class Card(FitCard):
    """Content of ``skipbench.json``: what was fitted, and with which result.

    Args:
        budget: Fraction to skip; of the fit that it started from, if there is one.
        match: How the budget is met, ``"pooled"`` or ``"split"``; None where the row has no choice,
            and in a folder of an older version.
        start: The fit whose model took the place of the dense one; None: the fit started from the
            dense model.
        not_applicable: Why the row does not fit this backbone or budget; the folder then holds no
            model. None: it holds one.
        fit: What the step measured while it fitted: seconds, memory, device.
        provenance: Versions, commit and hashes of the code, hardware; empty where no step ran.
        weights_hash: See :func:`methods.core.model.whole.hash_fitted`.
    """

    budget: float | None
    match: str | None
    start: FitCard | None = None
    not_applicable: str | None = None
    fit: dict[str, Any] | None = None
    provenance: dict[str, Any] = field(default_factory=dict)
    weights_hash: str | None = None

    @property
    def first(self) -> FitCard:
        """The fit that started from the dense model: this one, or the one it started from."""
        return self if self.start is None else self.start

    @property
    def as_start(self) -> FitCard:
        """The part of this card that the card of a fit which starts from this model repeats."""
        names = [each.name for each in dataclasses.fields(FitCard)]
        return FitCard(**{name: getattr(self, name) for name in names})


def read_card(folder: Path) -> Card:
    """The card in a fitted model's folder.

    Raises:
        ValueError: There is none, or it is damaged.
    """
    file = folder / CARD
    if not file.is_file():
        raise ValueError(f"{folder} is no compressed model: it has no {CARD}")
    content = read_json(file)
    if content.get("format") != FORMAT:
        raise ValueError(
            f"{file} has format {content.get('format')!r}, this version reads format {FORMAT}"
        )
    _check_types(content, _CARD_TYPES, file)
    start = content["start"]
    structure = {} if "not_applicable" in content else {"structure": dict}
    for part in (content, start or content):
        _check_types(part, _FIT_TYPES | structure, file)
        _check_types(part["backbone"], _BACKBONE_TYPES, f"{file}, backbone")
    names = {each.name for each in dataclasses.fields(Card)} | {"format"}
    return Card(
        **_fit_entries(content),
        budget=content["budget"],
        match=content.get("match"),
        start=FitCard(**_fit_entries(start)) if start else None,
        not_applicable=content.get("not_applicable"),
        fit=content.get("fit"),
        provenance={key: value for key, value in content.items() if key not in names},
        weights_hash=content.get("weights_hash"),
    )


def write_card(folder: Path, card: Card) -> None:
    """Write a card into the folder of its model; keys that do not apply to it are left out."""
    content = {
        "format": FORMAT,
        "row": card.row,
        "params": card.params,
        "budget": card.budget,
        "match": card.match,
        "seed": card.seed,
        "start": None if card.start is None else _fit_content(card.start),
        "backbone": vars(card.backbone),
    }
    before = {"not_applicable": card.not_applicable, "fit": card.fit}
    after = {"structure": card.structure, "weights_hash": card.weights_hash}
    content |= _without_none(before) | card.provenance | _without_none(after)
    write_json(folder / CARD, content)


def _fit_entries(content: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of :class:`FitCard`."""
    dense = content["backbone"]
    names = [each.name for each in dataclasses.fields(BackboneCard)]
    return {
        "row": content["row"],
        "params": content["params"],
        "seed": content["seed"],
        "backbone": BackboneCard(**{name: dense.get(name) for name in names}),
        "structure": content.get("structure"),
    }


def _fit_content(fit: FitCard) -> dict[str, Any]:
    """The JSON value of a fit that another one started from."""
    return _without_none(vars(fit) | {"backbone": vars(fit.backbone)})


def _without_none(content: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in content.items() if value is not None}


def _check_types(content: Mapping[str, Any], types: Mapping[str, Any], where: object) -> None:
    for key, kind in types.items():
        if key not in content:
            raise ValueError(f"{where} lacks '{key}'")
        if not isinstance(content[key], kind):
            value = cut(repr(content[key]))
            raise ValueError(f"{where}: '{key}' is {value}, a value of another type")
