"""A suite's config: defaults, and the checks that need no job list."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Container, Mapping, Sequence
from pathlib import Path
from typing import Any

import jsonschema
import yaml

from methods.core.jsonfile import cut
from workflows import ROOT
from workflows.demo.presets import PRESETS
from workflows.evaluation.tasklist import TaskEntry
from workflows.records.record import Protocol
from workflows.suite.splits import VALIDATION, check_one_split

TASKS = "tasks"  # source of a probe that is made of the suite's tasks
SELF = "self"  # source of texts that the backbone writes itself
# In front of what a backbone is fetched from: a repository, a package, a file.
FETCHED = ("hub:", "pypi:", "gguf:")
WORLD = "world:"  # in front of a world's name: the backbone that is trained on it
VARIABLE = re.compile(r"\$\{([A-Z][A-Z0-9_]*)(?::-([^}]*))?\}")
SUITES = "workflows/suites"
SCHEMA = ROOT / "workflows" / "schemas" / "config.schema.yaml"
FOCUS = "hero"  # whose claims the suites examine
# Keys of earlier versions -> what does their work now.
RETIRED = {
    "params_from": "`lender: ROW` gives a control the fitted model whose rates it takes",
    "scoring": "overlays/paper_literal lists the tasks on the validation splits of ARC",
    "training_noise": "run the suite under other variables (ATEN_CPU_CAPABILITY=avx2) and another "
    "name (--config suite=NAME), then hold both results folders against each other with `compare`",
}


def read_configs(names: Sequence[str], root: Path = ROOT) -> dict[str, Any]:
    """Several suite files as one config, merged as Snakemake does with several ``--configfile``.

    Mappings merge key by key; a later file replaces everything else. The files that key ``base``
    names come first.

    Args:
        names: Files, or names of files below ``workflows/suites``.
        root: Checkout.

    Raises:
        ValueError: A file does not exist or is no mapping in YAML.
    """
    config: dict[str, Any] = {}
    for name in names:
        file = next((f for f in (Path(name), root / SUITES / f"{name}.yaml") if f.is_file()), None)
        if file is None:
            raise ValueError(f"suite '{name}' is no file and no name below {SUITES}")
        _merge(config, _read(file))
    return with_base(config)


def with_base(config: Mapping[str, Any]) -> dict[str, Any]:
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
        _merge(complete, _read(bases[name]))
    _merge(complete, {key: value for key, value in config.items() if key != "base"})
    if isinstance(derived := complete.get("derive"), dict):
        complete["derive"] = {name: line for name, line in derived.items() if line is not None}
    expanded: dict[str, Any] = _expand(complete)
    return expanded


def _expand(value: Any) -> Any:
    """Variables of the environment in texts: ``${NAME}``, or ``${NAME:-what else}``.

    Raises:
        ValueError: One without an else is not set.
    """
    if isinstance(value, dict):
        return {key: _expand(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_expand(inner) for inner in value]
    return VARIABLE.sub(_variable, value) if isinstance(value, str) else value


def _variable(match: re.Match[str]) -> str:
    name, otherwise = match.groups()
    value = os.environ.get(name, otherwise)
    if value is None:
        raise ValueError(f"suite config: the environment has no variable {name}")
    return value


def _read(file: Path) -> dict[str, Any]:
    try:
        config = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"suite file {file} is not valid YAML: {error}") from error
    if not isinstance(config, dict):
        raise ValueError(f"suite file {file} is no mapping of keys")
    return config


def _merge(into: dict[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    for key, value in more.items():
        old = into.get(key)
        inner = old if isinstance(old, dict) else {}
        into[key] = _merge(inner, value) if isinstance(value, Mapping) else value
    return into


def with_defaults(config: Mapping[str, Any]) -> dict[str, Any]:
    """The config merged over its base, with the schema's defaults filled in.

    Raises:
        ValueError: The config breaks the schema; the message names the key and what is allowed.
    """
    schema = yaml.safe_load(SCHEMA.read_text(encoding="utf-8"))
    complete = json.loads(json.dumps(with_base(config)))
    if complete.get("scoring") == "standard":  # a default that old suite.json files still have
        del complete["scoring"]
    derived = complete.get("derive")
    rows = derived.values() if isinstance(derived, dict) else []
    keys = {key for mapping in (complete, *rows) if isinstance(mapping, dict) for key in mapping}
    for key in (key for key in RETIRED if key in keys):
        raise ValueError(f"suite config, {key}: this key is gone; {RETIRED[key]}")
    if "each" in str(complete.get("match")):
        raise ValueError("suite config, match: 'each' is called 'split' now")
    _fill(complete, schema, schema)
    errors = jsonschema.Draft202012Validator(schema).iter_errors(complete)
    error = next(iter(sorted(errors, key=lambda e: list(map(str, e.absolute_path)))), None)
    if error is not None:
        key = ".".join(map(str, error.absolute_path)) or "top level"
        allowed = ""
        if error.validator == "additionalProperties":
            allowed = f" (allowed: {', '.join(error.schema['properties'])})"
        raise ValueError(f"suite config, {key}: {cut(error.message)}{allowed}")
    for budget in complete["budgets"]:
        check_budget("budgets", budget)
    return complete


def check_end(part: str, spec: Mapping[str, Any]) -> None:
    """Some texts have no end, and ``rows`` must say how many: what a model writes itself, and what
    a world draws for training and calibration.

    Raises:
        ValueError: It does not.
    """
    if "rows" in spec:
        return
    if spec["source"] == SELF:
        raise ValueError(f"data.{part}: rows must say how many texts the backbone writes")
    if spec["source"] in PRESETS and part in ("training", "calibration"):
        raise ValueError(f"data.{part}: rows must say how many texts of world '{spec['source']}'")


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
    error = next(iter(jsonschema.Draft202012Validator(part).iter_errors(complete)), None)
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


def check_budget(key: str, budget: float | None) -> None:
    """A budget of a suite is a fraction, or None.

    Raises:
        ValueError: It is outside (0, 1).
    """
    if budget is not None and not 0 < budget < 1:
        raise ValueError(f"suite config, {key}: {budget} must lie between 0 and 1, such as 0.25")


def check_retain(
    config: dict[str, Any], entries: Sequence[TaskEntry], table: Mapping[str, Any]
) -> None:
    """Tasks of the Retain and its reference row must be in the suite; perplexity never counts."""
    tasks = [entry.task for entry in entries if not entry.is_perplexity]
    if not tasks:
        raise ValueError("suite config, tasks: Retain needs a task beside perplexity")
    config.setdefault("retain_tasks", tasks)
    for task in config["retain_tasks"]:
        if task not in tasks:
            raise ValueError(
                f"suite config, retain_tasks: '{task}' is not scored (tasks: {', '.join(tasks)})"
            )
    try:
        check_one_split(
            VALIDATION.get(e.task, e.task) if e.split == "validation" else e.task
            for e in entries
            if e.task in config["retain_tasks"]
        )
    except ValueError as error:
        raise ValueError(f"suite config, {error}") from error
    if config["reference_row"] not in table:
        raise ValueError(
            f"suite config, reference_row: '{config['reference_row']}' is not among the rows"
        )


def default_focus(rows: Container[str], reference: str) -> str | None:
    """The row that all are compared with beside the reference, where a suite names none."""
    return FOCUS if FOCUS in rows and reference != FOCUS else None


def check_focus(config: dict[str, Any], table: Mapping[str, Any]) -> None:
    """The row in focus must be in the suite, and another one than the reference; fill it in.

    Raises:
        ValueError: It is not.
    """
    reference = config["reference_row"]
    focus = config.setdefault("focus", default_focus(table, reference))
    others = [row for row in table if row != reference]
    if focus is not None and focus not in others:
        raise ValueError(
            f"suite config, focus: '{focus}' is no row beside the reference '{reference}' "
            f"(rows: {', '.join(others)})"
        )


def check_first(config: Mapping[str, Any], rows: Container[str]) -> None:
    """Rows of key ``first`` must exist, though an overlay may have left them out of the suite.

    Args:
        config: The suite's.
        rows: Names of rows, of the suite and of the project.

    Raises:
        ValueError: There is no such row.
    """
    for row in config["first"]:
        if row not in rows:
            raise ValueError(f"suite config, first: there is no row '{row}'")


def check_timing(config: Mapping[str, Any]) -> None:
    """Rows are timed on texts of the suite.

    Raises:
        ValueError: The suite has no texts.
    """
    data = config["data"]
    texts = data.get("probe", data.get("validation", {})).get("source", "")
    if "timing" in config and (not texts or texts.endswith(".npy")):
        raise ValueError("suite config, timing: it needs texts, data.probe or data.validation")


def check_fidelity(config: Mapping[str, Any]) -> None:
    """Rows are compared with the dense model on texts.

    Raises:
        ValueError: The part of the data is no text.
    """
    source = config["data"].get("fidelity", {}).get("source", "")
    if source.endswith(".npy"):
        raise ValueError(f"suite config, data.fidelity: {source} holds ids, and it needs texts")


def check_paths(config: Mapping[str, Any], root: Path) -> None:
    """Folders, files and worlds must exist; the prepare rules check names of the hub."""
    for place in (p for top in ("results", "reports") for p in (top, f"{top}/{config['suite']}")):
        if (root / place).exists() and not (root / place).is_dir():
            raise ValueError(f"{place} is a file, a folder is needed there")
    for name, backbone in config["backbones"].items():
        path = backbone["path"]
        if path.startswith(WORLD) and path.removeprefix(WORLD) not in PRESETS:
            worlds = ", ".join(f"{WORLD}{world}" for world in PRESETS)
            raise ValueError(f"suite config, backbones.{name}: {path} is unknown (known: {worlds})")
        file = path.removeprefix("gguf:")
        if path != file and not (root / file).is_file():
            raise ValueError(f"suite config, backbones.{name}: file {file} does not exist")
        if is_local(path) and not (root / path / "config.json").is_file():
            problem = "does not exist" if not (root / path).is_dir() else "has no config.json"
            raise ValueError(f"suite config, backbones.{name}: folder {path} {problem}")
    for part, spec in config["data"].items():
        source = spec["source"]
        check_end(part, spec)
        if source == SELF and len(config["backbones"]) > 1:
            raise ValueError(
                f"suite config, data.{part}: texts of source '{SELF}' are one backbone's own, and "
                f"this suite has several ({', '.join(config['backbones'])})"
            )
        if is_file(part, source) and not (root / source).is_file():
            worlds = ", ".join(PRESETS)
            raise ValueError(
                f"suite config, data.{part}: file {source} does not exist (worlds: {worlds})"
            )


def is_file(part: str, source: str) -> bool:
    """Whether a part of the data is a local file: no world, not of the hub, not made of tasks or
    written by the backbone.
    """
    elsewhere = source in (*PRESETS, SELF) or source.startswith("hub:")
    return not elsewhere and (part, source) != ("probe", TASKS)


def is_local(path: str) -> bool:
    """Whether a backbone's path is a folder, and not one that a prepare rule makes first."""
    return not path.startswith((*FETCHED, WORLD))
