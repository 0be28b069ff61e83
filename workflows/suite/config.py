"""A suite's config: its files merged, with the schema's defaults."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jsonschema
import yaml

from methods.core.jsonfile import check_plain, cut
from workflows import ROOT
from workflows.records.record import Protocol

VARIABLE = re.compile(r"\$\{([A-Z][A-Z0-9_]*)(?::-([^}]*))?\}")
# Words in the name of a variable that no suite may read: its value is published with the suite.
SECRETS = ("TOKEN", "KEY", "SECRET", "PASSWORD")
SUITES = "workflows/suites"
SCHEMA = ROOT / "workflows" / "schemas" / "config.schema.yaml"
# For JSON Schema 1.0 is an integer; a folder or an option made of it is another than of 1.
WHOLE_NUMBERS = jsonschema.validators.extend(
    jsonschema.Draft202012Validator,
    type_checker=jsonschema.Draft202012Validator.TYPE_CHECKER.redefine(
        "integer", lambda _, value: isinstance(value, int) and not isinstance(value, bool)
    ),
)


def read_configs(names: Sequence[str]) -> dict[str, Any]:
    """Several suite files as one config, merged as Snakemake does with several ``--configfile``.

    Mappings merge key by key; a later file replaces everything else. The files that key ``base``
    names come first.

    Args:
        names: Files, or names of files below ``workflows/suites``.

    Raises:
        ValueError: A file does not exist or is no mapping in YAML.
    """
    config: dict[str, Any] = {}
    for name in names:
        file = next((f for f in (Path(name), ROOT / SUITES / f"{name}.yaml") if f.is_file()), None)
        if file is None:
            raise ValueError(f"suite '{name}' is no file and no name below {SUITES}")
        _merge(config, read_yaml(file, "suite file"))
    return with_base(config)


def with_base(config: Mapping[str, Any]) -> dict[str, Any]:
    """A user's config over its bases, with the variables of the environment that it names.

    Raises:
        ValueError: There is no such base, or a variable is not set or must not be read.
    """
    expanded: dict[str, Any] = _expand(_over_bases(config))
    return expanded


def _over_bases(config: Mapping[str, Any]) -> dict[str, Any]:
    """A config merged over the files of ``workflows/suites/bases`` that its key ``base`` names.

    A line of ``derive`` that is null is left out.

    Raises:
        ValueError: There is no such file.
    """
    complete: dict[str, Any] = {}
    bases = {file.stem: file for file in sorted((ROOT / SUITES / "bases").glob("*.yaml"))}
    names = config.get("base", [])
    for name in names if isinstance(names, list) else [names]:
        if str(name) not in bases:
            raise ValueError(
                f"suite config, base: there is no '{name}' (bases: {', '.join(bases)})"
            )
        _merge(complete, read_yaml(bases[name], "suite file"))
    _merge(complete, {key: value for key, value in config.items() if key != "base"})
    if isinstance(derived := complete.get("derive"), dict):
        complete["derive"] = {name: line for name, line in derived.items() if line is not None}
    return complete


def _expand(value: Any) -> Any:
    """Variables of the environment in texts: ``${NAME}``, or ``${NAME:-what else}``.

    Raises:
        ValueError: One without an else is not set, one may be a secret, or one is part of a URL.
    """
    if isinstance(value, dict):
        return {key: _expand(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_expand(inner) for inner in value]
    if not isinstance(value, str) or not VARIABLE.search(value):
        return value
    expanded = VARIABLE.sub(_variable, value)
    if "://" in expanded:
        raise ValueError(
            f"suite config: {cut(repr(value))} is a URL and must not hold a variable, whose value "
            "would be sent there"
        )
    return expanded


def _variable(match: re.Match[str]) -> str:
    name, otherwise = match.groups()
    if any(word in name.upper() for word in SECRETS):
        raise ValueError(
            f"suite config: the variable {name} may be a secret (allowed: names without "
            f"{', '.join(SECRETS)})"
        )
    value = os.environ.get(name, otherwise)
    if value is None:
        raise ValueError(f"suite config: the environment has no variable {name}")
    return value


def read_yaml(file: Path, what: str) -> dict[str, Any]:
    """The mapping in a YAML file.

    Args:
        file: The file.
        what: Its name in messages, such as "suite file".

    Raises:
        ValueError: It is not YAML, or no mapping.
    """
    try:
        config = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"{what} {file} is not valid YAML: {error}") from error
    if not isinstance(config, dict):
        raise ValueError(f"{what} {file} is no mapping of keys")
    return config


def _merge(into: dict[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    for key, value in more.items():
        old = into.get(key)
        inner = old if isinstance(old, dict) else {}
        into[key] = _merge(inner, value) if isinstance(value, Mapping) else value
    return into


def with_defaults(config: Mapping[str, Any]) -> dict[str, Any]:
    """The config merged over its base, with the schema's defaults filled in.

    Variables stay as they are written: a config may come from the results of others.

    Raises:
        ValueError: The config breaks the schema; the message names the key and what is allowed.
    """
    schema = yaml.safe_load(SCHEMA.read_text(encoding="utf-8"))
    complete = _over_bases(config)
    check_plain(complete, "suite config")
    complete = json.loads(json.dumps(complete))
    _fill(complete, schema, schema)
    errors = WHOLE_NUMBERS(schema).iter_errors(complete)
    error = next(iter(sorted(errors, key=lambda e: list(map(str, e.absolute_path)))), None)
    if error is not None:
        key = ".".join(map(str, error.absolute_path)) or "top level"
        allowed = ""
        if error.validator == "additionalProperties":
            allowed = f" (allowed: {', '.join(error.schema['properties'])})"
        said = f"{cut(error.message)}{allowed}"
        if words := error.schema.get("description"):
            said = f"{cut(repr(error.instance))} must be {words}"
        raise ValueError(f"suite config, {key}: {said}")
    return complete


def check_source(raw: Any, kind: str) -> dict[str, Any]:
    """One entry of a suite, as a step gets it, with the schema's defaults.

    Args:
        raw: As in the suite.
        kind: ``"source"``, of data, or ``"backbone"``.

    Raises:
        ValueError: It breaks the schema.
    """
    schema = yaml.safe_load(SCHEMA.read_text(encoding="utf-8"))
    part = schema["$defs"][kind]
    complete = json.loads(json.dumps(raw))
    _fill(complete, part, schema)
    error = next(iter(WHOLE_NUMBERS(part).iter_errors(complete)), None)
    if error is not None:
        raise ValueError(f"--source is no {kind} as in a suite: {cut(error.message)}")
    source: dict[str, Any] = complete
    return source


def _fill(value: Any, schema: Mapping[str, Any], top: Mapping[str, Any]) -> None:
    """Insert defaults, in place, wherever the schema states one."""
    if "$ref" in schema:
        schema = top["$defs"][schema["$ref"].rsplit("/", 1)[1]]
    if not isinstance(value, dict):
        return
    properties = schema.get("properties", {})
    for key, sub in properties.items():
        if "default" in sub:
            value.setdefault(key, json.loads(json.dumps(sub["default"])))
    extra = schema.get("additionalProperties")
    for key, item in value.items():
        sub = properties.get(key, extra if isinstance(extra, dict) else None)
        if sub is not None:
            _fill(item, sub, top)


def protocols(config: Mapping[str, Any]) -> list[Protocol]:
    """How a suite's budgets are met: its key ``match``, one protocol or several."""
    match: Protocol | list[Protocol] = config["match"]
    return [match] if isinstance(match, str) else match
