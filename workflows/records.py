"""One record per run: made here, checked against the schema, read back for reports."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from methods import Row, find_row
from methods.core.jsonfile import cut, read_json
from workflows import ROOT

if TYPE_CHECKING:
    import jsonschema

SCHEMAS = ROOT / "workflows" / "schemas"
# Column of the frame of items with the texts of each, as JSON.
SAMPLE = "sample"
# What a fit decided: in the folder of its model, and by this ending beside its record.
DECISIONS = "decisions.json"
# Keywords that say something of a value and nothing of values in it.
PLAIN = {"type", "enum", "const", "minimum", "maximum", "minLength", "pattern"}


@cache
def _validator(what: str) -> jsonschema.Draft202012Validator:
    # Timing on a bare GPU machine reads no record and needs no validator.
    import jsonschema

    base = jsonschema.Draft202012Validator
    told = {"properties": _properties}
    return jsonschema.validators.extend(base, told)(read_json(SCHEMAS / f"{what}.schema.json"))


def _properties(
    validator: Any, schemas: Mapping[str, Any], value: Any, schema: Any
) -> Iterator[jsonschema.ValidationError]:
    """As jsonschema's own, which makes a validator for each property: those that fit need none."""
    held = value if isinstance(value, dict) else {}
    for name in (name for name in schemas if name in held):
        if not _fits(validator, held[name], schemas[name]):
            yield from validator.descend(held[name], schemas[name], path=name, schema_path=name)


def _fits(validator: Any, value: Any, schema: Mapping[str, Any]) -> bool:
    """Whether a value keeps a schema of plain keywords; False where there are others."""
    return schema.keys() <= PLAIN and not any(
        any(validator.VALIDATORS[keyword](validator, told, value, schema))
        for keyword, told in schema.items()
    )


def check_record(record: Mapping[str, Any], where: str = "the new record") -> None:
    """Hold a record against record.schema.json.

    Raises:
        ValueError: It breaks the schema; the message names the field.
    """
    _check("record", record, where)
    if record["status"] == "ok":
        _check_layers(record, where)


def _check_layers(record: Mapping[str, Any], where: str) -> None:
    """Units, removed layers and routes are of one model."""
    units, layers = record["units"], record["layers"]
    highest = max([unit["layer"] for unit in units] + layers["removed"], default=0)
    if highest >= layers["dense"]:
        raise ValueError(
            f"{where} breaks the record schema at layers: layer {highest} of {layers['dense']}"
        )
    for route in record.get("routes", []):
        signs = [len(unit) for unit in route["executed"]]
        if signs != [len(route["tokens"])] * len(units):
            raise ValueError(
                f"{where} breaks the record schema at routes: '{route['task']}' has not a sign for "
                "each token and unit"
            )


def _check(what: str, told: Mapping[str, Any], where: str) -> None:
    error = next(iter(_validator(what).iter_errors(told)), None)
    if error is not None:
        field = "/".join(map(str, error.absolute_path)) or "top level"
        raise ValueError(f"{where} breaks the {what} schema at {field}: {cut(error.message)}")


def read_record(file: Path) -> dict[str, Any]:
    """A record from disk.

    Raises:
        ValueError: Not JSON, or it breaks the schema.
    """
    record = read_json(file)
    check_record(record, str(file))
    return record


def read_speeds(file: Path) -> list[dict[str, Any]]:
    """The measurements of a run, as the time step wrote them.

    Raises:
        ValueError: Not JSON, or a line lacks what tables show.
    """
    told = read_json(file)
    _check("speed", told, str(file))
    lines: list[dict[str, Any]] = told["lines"]
    return lines


def read_decisions(file: Path) -> dict[str, Any]:
    """What the fit of a record decided, from beside it or from its model; empty without both.

    Raises:
        ValueError: Not JSON, or the curve of training has other values than numbers.
    """
    places = file.with_suffix(f".{DECISIONS}"), file.parent / "model" / DECISIONS
    found = next((place for place in places if place.is_file()), None)
    if found is None:
        return {}
    told = read_json(found)
    _check("decisions", told, str(found))
    return told


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


def removed_layers(card: Mapping[str, Any]) -> list[int]:
    """Dense layers that a fit removed, or the fit whose model it started from."""
    made = card["start"] or card
    found: list[int] = made.get("structure", {}).get("removed_layers", [])
    return found
