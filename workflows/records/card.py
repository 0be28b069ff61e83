"""From the card of a fitted model, or the description of a plain one, to its record."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from methods import Row, find_row
from methods.core.model.card import Card
from workflows.records.files import to_record
from workflows.records.parts import one_line
from workflows.records.record import FORMAT, Record


def new_record(card: Card, labels: Mapping[str, str | None], made_by: Mapping[str, Any]) -> Record:
    """The record of a run that is not scored yet.

    Args:
        card: Of the model.
        labels: ``suite``, ``backbone_name``, and ``row``: None for the card's own.
        made_by: Of :func:`workflows.runtime.provenance.provenance`.

    Returns:
        Its status is "not applicable"; the score step sets it with the scores.

    Raises:
        ValueError: The card has wrong values.
    """
    name = labels["row"] or card.row
    row = find_row(card.row)
    start, backbone, reason = card.start, card.first.backbone, card.not_applicable
    return to_record(
        {
            "format": FORMAT,
            "status": "not applicable",
            "reason": one_line(reason) if isinstance(reason, str) else reason,
            "suite": labels["suite"],
            "row": name,
            "method": card.row,
            "title": row.title_of(card.params) if name == row.name else name,
            "kind": find_row(card.first.row).kind,
            "stochastic": row.stochastic,
            "params": card.params,
            "start": start and {"row": start.row, "params": start.params, "seed": start.seed},
            "budget": card.budget,
            # The card of an older version names none; a table refuses it where a protocol applies.
            "match": card.match,
            "seed": card.seed,
            "backbone": {
                "name": labels["backbone_name"],
                "path": _place(Path(backbone.path)),
                "revision": backbone.revision,
                "hash": backbone.hash,
                "parameters": backbone.parameters,
                "layers": backbone.layers,
            },
            "fit": card.fit,
            "fit_code": card.provenance.get("code"),
            "weights_hash": card.weights_hash,
            **made_by,
        }
    )


def _place(backbone: Path) -> str:
    """Its path below the working folder, else its name, so that records do not depend on both."""
    here = Path.cwd()
    return str(backbone.relative_to(here) if here in backbone.parents else backbone.name)


def rows_of(card: Card) -> list[Row]:
    """The row of a card, and the row of the model that its fit started from."""
    start = [] if card.start is None else [card.start.row]
    return [find_row(name) for name in (card.row, *start)]


def removed_layers(card: Card) -> list[int]:
    """Dense layers that a fit removed, or the fit whose model it started from."""
    removed: list[int] = (card.first.structure or {}).get("removed_layers", [])
    return removed
