"""Files of a run, each checked against its schema when it is read."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from methods.core.jsonfile import cut, read_json
from workflows import ROOT
from workflows.records import DECISIONS
from workflows.records.record import FORMAT, Record

if TYPE_CHECKING:
    import jsonschema

SCHEMAS = ROOT / "workflows" / "schemas"


@cache
def _validator(schema: str) -> jsonschema.Draft202012Validator:
    # Imported here: a GPU machine that only times reads no record and has no jsonschema.
    import jsonschema

    return jsonschema.Draft202012Validator(read_json(SCHEMAS / f"{schema}.schema.json"))


def to_record(entries: Mapping[str, Any], where: str = "the new record") -> Record:
    """A record from its JSON, checked against record.schema.json.

    Args:
        entries: The JSON.
        where: What to call it in errors.

    Raises:
        ValueError: It breaks the schema; the message names the field. Or it has format 1.
    """
    if entries.get("format") == 1:
        raise ValueError(
            f"{where} has format 1, in which answer tokens are called 'deciding' and kinds of "
            f"tokens differ from those of format {FORMAT}: remove its folder, then fit and score "
            "the run again"
        )
    _check("record", entries, where)
    record = Record.of(entries)
    if record.done:
        _check_layers(record, where)
        _check_fidelity(record, where)
    return record


def _check_layers(record: Record, where: str) -> None:
    """Units, removed layers and routes belong to one model."""
    units, layers = record.units, record.layers
    highest = max([*(unit.layer for unit in units), *layers.removed], default=0)
    if highest >= layers.dense:
        raise ValueError(
            f"{where} breaks the record schema at layers: layer {highest} of {layers.dense}"
        )
    for route in record.routes:
        signs = [len(unit) for unit in route.executed]
        if signs != [len(route.tokens)] * len(units):
            raise ValueError(
                f"{where} breaks the record schema at routes: '{route.task}' has not a sign for "
                "each token and unit"
            )


def _check_fidelity(record: Record, where: str) -> None:
    """Every kind of token has a sum for each text, and there are tokens."""
    distances = {} if record.fidelity is None else record.fidelity.distances
    sizes = {len(getattr(d, n)) for d in distances.values() for n in ("tokens", "kl", "agreement")}
    if len(sizes) > 1 or not all(sum(distance.tokens) for distance in distances.values()):
        raise ValueError(
            f"{where} breaks the record schema at fidelity: not a sum for each text, or no token"
        )


def _check(schema: str, entries: Mapping[str, Any], where: str) -> None:
    error = next(iter(_validator(schema).iter_errors(entries)), None)
    if error is not None:
        field = "/".join(map(str, error.absolute_path)) or "top level"
        raise ValueError(f"{where} breaks the {schema} schema at {field}: {cut(error.message)}")


def read_record(file: Path) -> Record:
    """A record from disk.

    Raises:
        ValueError: It is not JSON, or :func:`to_record` refuses it.
    """
    return to_record(read_json(file), str(file))


def read_speeds(file: Path, weights: str | None) -> dict[str, Any] | None:
    """What the time step wrote of a run: ``lines``, and how many cases are ``left``; None if of
    another model.

    Args:
        file: What the step wrote.
        weights: Hash of the run's fitted weights.

    Raises:
        ValueError: The file is not JSON, or a line lacks what tables show.
    """
    entries = read_json(file)
    _check("speed", entries, str(file))
    return entries if entries.get("weights_hash", weights) == weights else None


def read_decisions(file: Path) -> dict[str, Any]:
    """What the fit of a run decided; empty where neither its record nor its model has the file.

    Args:
        file: The record. Its decisions lie beside it, or in the folder of the model.

    Raises:
        ValueError: The file is not JSON, or the curve of training holds other things than numbers.
    """
    places = file.with_suffix(f".{DECISIONS}"), file.parent / "model" / DECISIONS
    decisions = next((place for place in places if place.is_file()), None)
    if decisions is None:
        return {}
    entries = read_json(decisions)
    _check("decisions", entries, str(decisions))
    return entries
