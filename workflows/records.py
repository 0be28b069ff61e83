"""One record per run: made here, checked against the schema, read back for reports."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from methods import Row, find_row, load_method
from workflows.runtime.provenance import ROOT

if TYPE_CHECKING:
    import jsonschema

SCHEMA = ROOT / "workflows" / "schemas" / "record.schema.json"
# Column of the frame of items with the texts of each, as JSON.
SAMPLE = "sample"
# What a fit decided: in the folder of its model, and by this ending beside its record.
DECISIONS = "decisions.json"


@cache
def _validator() -> jsonschema.Draft202012Validator:
    # Timing on a bare GPU machine reads no record and needs no validator.
    import jsonschema

    return jsonschema.Draft202012Validator(json.loads(SCHEMA.read_text(encoding="utf-8")))


def check_record(record: Mapping[str, Any], where: str = "the new record") -> None:
    """Hold a record against record.schema.json.

    Raises:
        ValueError: It breaks the schema; the message names the field.
    """
    error = next(iter(_validator().iter_errors(record)), None)
    if error is not None:
        field = "/".join(map(str, error.absolute_path)) or "top level"
        raise ValueError(f"{where} breaks the record schema at {field}: {error.message}")


def read_record(file: Path) -> dict[str, Any]:
    """A record from disk.

    Raises:
        ValueError: Not JSON, or it breaks the schema.
    """
    try:
        record: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise ValueError(f"{file} is not valid JSON: {error}") from error
    check_record(record, str(file))
    return record


def new_record(
    status: str, described: Mapping[str, Any], labels: Mapping[str, str | None]
) -> dict[str, Any]:
    """The part of a record that says what ran: row, params, budget, seed, backbone, fit."""
    name = labels["row"] or described["row"]
    row = find_row(described["row"])
    title = row.title.format(**described["params"]) if name == row.name else name
    start = described["start"]
    backbone = described["backbone"] if start is None else start["backbone"]
    return {
        "format": 1,
        "status": status,
        "reason": described.get("not_applicable"),
        "suite": labels["suite"],
        "row": name,
        "method": described["row"],
        "title": title,
        "kind": row.kind if start is None else find_row(start["row"]).kind,
        "stochastic": row.stochastic,
        "params": described["params"],
        "start": start and {k: start[k] for k in ("row", "params", "seed")},
        "budget": described["budget"],
        # A folder of an older version says nothing; a table refuses it where a protocol applies.
        "match": described.get("match"),
        "seed": described["seed"],
        "backbone": {
            "name": labels["backbone_name"],
            "path": _place(Path(backbone["path"])),
            **{k: backbone[k] for k in ("revision", "hash", "parameters", "layers")},
        },
        "fit": described.get("fit"),
        "fit_code": described.get("code"),
        "weights_hash": described.get("weights_hash"),
    }


def _place(backbone: Path) -> str:
    """Its path below the working folder, else its name: equal runs in two folders are equal."""
    here = Path.cwd()
    return str(backbone.relative_to(here) if here in backbone.parents else backbone.name)


def rows_of(card: Mapping[str, Any]) -> list[Row]:
    """The row that a card tells of, and the one whose model its fit started from."""
    start = [card["start"]["row"]] if card["start"] else []
    return [find_row(name) for name in (card["row"], *start)]


def describe_model(folder: Path) -> dict[str, Any]:
    """The card of a compressed model, or one made for a plain Hugging Face folder (row dense)."""
    from methods.base import Request
    from methods.core.backbone import load_backbone
    from methods.core.checkpoint import CARD, describe, read_card

    if (folder / CARD).is_file():
        return read_card(folder)
    backbone = load_backbone(folder)
    return describe("dense", load_method("dense"), backbone, Request(None, 0, folder), folder)


def removed_layers(card: Mapping[str, Any]) -> list[int]:
    """Dense layers that a fit removed, or the fit whose model it started from."""
    made = card["start"] or card
    found: list[int] = made.get("structure", {}).get("removed_layers", [])
    return found


def load_any(folder: Path, backbone: Path | None, device: str) -> tuple[Any, Any, Any, Any]:
    """Model, tokenizer, ledger and method of a compressed model or a plain folder."""
    from methods.core.backbone import load_backbone
    from methods.core.checkpoint import CARD, load
    from methods.core.ledger import Ledger

    if (folder / CARD).is_file():
        loaded = load(folder, backbone, device)
        return loaded.model, loaded.tokenizer, loaded.ledger, loaded.method
    plain = load_backbone(folder, device=device)
    ledger = Ledger.of(plain.model, plain.parameters, plain.layer_count)
    return plain.model, plain.tokenizer, ledger, load_method("dense")
