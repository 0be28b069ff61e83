"""Checks of a suite's config that need no job list."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Container, Mapping, Sequence
from pathlib import Path
from typing import Any

from workflows.demo.presets import PRESETS
from workflows.evaluation.tasklist import TaskEntry
from workflows.runtime.wheels import PINNED
from workflows.suite.splits import VALIDATION, check_one_split

FROM_TASKS = "tasks"  # source of a probe that is made of the suite's tasks
# Endings of files that a part of the data may be.
TEXT_FILES = (".jsonl", ".txt", ".npy")
FROM_BACKBONE = "self"  # source of texts that the backbone writes itself
# Prefix of a backbone's source -> the form of the rest, and how messages write it.
FORMS = {
    "hub:": (re.compile(r"\w[\w.-]*/\w[\w.-]*", re.ASCII), "hub:OWNER/NAME"),
    "pypi:": (PINNED, "pypi:NAME==VERSION"),
    "gguf:": (re.compile(r".+"), "gguf:FILE"),
}
# Keys of a part of the data that only a source of the hub has.
HUB_KEYS = ("column", "split", "revision")
# Folders in results/ that are not of a suite.
OTHER_RESULTS = ("backbones", "trained", "logs")
WORLD = "world:"  # in front of a world's name: the backbone that is trained on it
FOCUS = "hero"  # whose claims the suites examine


def origin(backbone: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of a backbone that say what is fetched, without those on how it is scored."""
    return {key: backbone[key] for key in ("path", "revision", "sha256") if key in backbone}


def check_origin(backbone: Mapping[str, Any], where: str) -> None:
    """Refuse a source of another form, and a hash or a revision that nothing is held against.

    Raises:
        ValueError: The source of the backbone is one.
    """
    path = str(backbone["path"])
    for prefix, (form, example) in FORMS.items():
        if path.startswith(prefix) and not form.fullmatch(path.removeprefix(prefix)):
            raise ValueError(f"{where}: '{path}' must be {example}")
    for key, sources in (("sha256", ("pypi:", "gguf:")), ("revision", ("hub:",))):
        if key in backbone and not path.startswith(sources):
            raise ValueError(f"{where}: {key} is only for {' and '.join(sources)}")


def check_repository(source: str, where: str) -> None:
    """Refuse a source of the hub that names no repository.

    Raises:
        ValueError: It is one.
    """
    if source.count("/") not in (1, 2):
        raise ValueError(f"{where}: {source} must be hub:OWNER/NAME or hub:OWNER/NAME/CONFIG")


def check_end(part: str, spec: Mapping[str, Any]) -> None:
    """Some texts have no end, and ``rows`` must say how many: what a model writes itself, and what
    a world draws for training and calibration.

    Raises:
        ValueError: It does not.
    """
    if "rows" in spec:
        return
    if spec["source"] == FROM_BACKBONE:
        raise ValueError(f"data.{part}: rows must say how many texts the backbone writes")
    if spec["source"] in PRESETS and part in ("training", "calibration"):
        raise ValueError(f"data.{part}: rows must say how many texts of world '{spec['source']}'")


def check_retain(
    config: dict[str, Any], entries: Sequence[TaskEntry], table: Mapping[str, Any]
) -> None:
    """Tasks of Retain and of the measures, and the reference row, must be in the suite.

    Perplexity never counts.
    """
    tasks = [entry.task for entry in entries if not entry.is_perplexity]
    if not tasks:
        raise ValueError("suite config, tasks: Retain needs a task beside perplexity")
    config.setdefault("retain_tasks", tasks)
    for key in ("retain_tasks", "measure_tasks"):
        for task in config.get(key, []):
            if task not in tasks:
                raise ValueError(
                    f"suite config, {key}: '{task}' is not scored (tasks: {', '.join(tasks)})"
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


def check_first(config: Mapping[str, Any], trained: Mapping[str, bool]) -> None:
    """Rows of key ``first`` must exist and train, though an overlay may have left them out.

    Args:
        config: The suite's.
        trained: Row, of the suite or of the project -> whether it trains.

    Raises:
        ValueError: There is no such row, or it trains nothing.
    """
    for row in config["first"]:
        if row not in trained:
            raise ValueError(f"suite config, first: there is no row '{row}'")
        if not trained[row]:
            raise ValueError(
                f"suite config, first: row '{row}' trains nothing, and such rows come first anyway"
            )


def check_timing(config: Mapping[str, Any]) -> None:
    """Rows are timed on texts of the suite.

    Raises:
        ValueError: The suite has no texts.
    """
    data = config["data"]
    texts = data.get("probe", data.get("validation", {})).get("source", "")
    if "timing" in config and (not texts or texts.endswith(".npy")):
        raise ValueError("suite config, timing: it needs texts, data.probe or data.validation")


def check_probe(config: Mapping[str, Any], entries: Sequence[TaskEntry]) -> None:
    """A probe of the suite's tasks is made once, with the chat template of one backbone.

    Raises:
        ValueError: There are several backbones, and a task of the probe has a chat template.
    """
    made_of_tasks = config["data"].get("probe", {}).get("source") == FROM_TASKS
    chats = [entry.task for entry in entries if entry.probe and entry.chat_template]
    if made_of_tasks and chats and len(config["backbones"]) > 1:
        raise ValueError(
            f"suite config, data.probe: source '{FROM_TASKS}' takes the chat template of one "
            f"backbone for {', '.join(chats)}, and this suite has several "
            f"({', '.join(config['backbones'])})"
        )


def check_fidelity(config: Mapping[str, Any]) -> None:
    """Rows are compared with the dense model on texts that no other part of the data holds.

    Raises:
        ValueError: The part of the data is no text, or another part may have its texts.
    """
    data = config["data"]
    if "fidelity" not in data:
        return
    own = data["fidelity"]
    source = own["source"]
    if source.endswith(".npy"):
        raise ValueError(f"suite config, data.fidelity: {source} holds ids, and it needs texts")
    # The backbone writes other texts for each part, a world others for training and calibration.
    made = {FROM_BACKBONE: (), **dict.fromkeys(PRESETS, ("validation", "probe"))}
    for part in set(made.get(source, data)) & set(data) - {"fidelity"}:
        if _same_texts(_of_items(part, data[part]), own):
            raise ValueError(
                f"suite config, data.fidelity: data.{part} takes texts of {source} too; give both "
                "the same seed, and skip and rows of texts that lie apart"
            )


def _of_items(part: str, spec: Mapping[str, Any]) -> Mapping[str, Any]:
    """A part of the data with a range of items; a world's probe counts texts, several per item."""
    if part != "probe" or spec["source"] not in PRESETS or "rows" not in spec:
        return spec
    return {**spec, "skip": 0, "rows": spec.get("skip", 0) + spec["rows"]}


def _same_texts(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two parts of the data may hold one text."""
    one, other = _without_hub_keys(one), _without_hub_keys(other)
    if _origin(one) != _origin(other):
        return False
    revisions = {spec["revision"] for spec in (one, other) if "revision" in spec}
    if len(revisions) == 2:
        return False
    if one.get("split", "train") != other.get("split", "train"):
        # Two parts of one split, such as train[:100] and train.
        return True
    first, last = sorted((one, other), key=lambda spec: spec.get("skip", 0))
    end = first.get("skip", 0) + first.get("rows", math.inf)
    return first.get("seed") != last.get("seed") or end > last.get("skip", 0)


def _without_hub_keys(spec: Mapping[str, Any]) -> Mapping[str, Any]:
    """A part of the data as it is read: only a source of the hub has splits and columns.

    An overlay that names a file in its place leaves those of the base.
    """
    hub = spec["source"].startswith("hub:")
    return {key: value for key, value in spec.items() if hub or key not in HUB_KEYS}


def _origin(spec: Mapping[str, Any]) -> tuple[str, str, str]:
    """Where texts come from; equal for two ways to write one place."""
    source = spec["source"]
    place = source if source.startswith("hub:") else os.path.realpath(source)
    return place, spec.get("split", "train").partition("[")[0], spec.get("column", "text")


def check_paths(config: Mapping[str, Any], root: Path) -> None:
    """Folders, files and worlds must exist; the prepare rules check names of the hub."""
    if config["suite"] in OTHER_RESULTS:
        raise ValueError(f"suite config, suite: results/{config['suite']} holds other things")
    for place in (p for top in ("results", "reports") for p in (top, f"{top}/{config['suite']}")):
        if (root / place).exists() and not (root / place).is_dir():
            raise ValueError(f"{place} is a file, a folder is needed there")
    for name, backbone in config["backbones"].items():
        path = backbone["path"]
        if path.startswith(WORLD) and path.removeprefix(WORLD) not in PRESETS:
            worlds = ", ".join(f"{WORLD}{world}" for world in PRESETS)
            raise ValueError(f"suite config, backbones.{name}: {path} is unknown (known: {worlds})")
        check_origin(backbone, f"suite config, backbones.{name}")
        file = path.removeprefix("gguf:")
        if path != file and not (root / file).is_file():
            raise ValueError(f"suite config, backbones.{name}: file {file} does not exist")
        if is_local(path) and not (root / path / "config.json").is_file():
            problem = "does not exist" if not (root / path).is_dir() else "has no config.json"
            raise ValueError(f"suite config, backbones.{name}: folder {path} {problem}")
    for part, spec in config["data"].items():
        source = spec["source"]
        check_end(part, spec)
        if source.startswith("hub:"):
            check_repository(source, f"suite config, data.{part}")
        if source.endswith(".npy") and part != "calibration":
            raise ValueError(
                f"suite config, data.{part}: {source} holds ids, which only calibration takes"
            )
        for key in ("skip", "rows") if source.endswith(".npy") else ():
            if key in spec:
                raise ValueError(
                    f"suite config, data.{part}: {source} holds ids, which are taken as they are; "
                    f"'{key}' chooses among texts"
                )
        if source == FROM_BACKBONE and len(config["backbones"]) > 1:
            raise ValueError(
                f"suite config, data.{part}: texts of source '{FROM_BACKBONE}' are one backbone's "
                f"own, and this suite has several ({', '.join(config['backbones'])})"
            )
        if part == "probe" and source == FROM_TASKS and spec.get("skip"):
            raise ValueError(
                f"suite config, data.probe: skip is for texts, and source '{FROM_TASKS}' draws "
                "items (allowed: 0)"
            )
        if source == FROM_BACKBONE and spec.get("skip"):
            raise ValueError(
                f"suite config, data.{part}: 'skip' chooses among existing texts, but source "
                f"'{FROM_BACKBONE}' writes new ones (allowed: 0)"
            )
        if is_file(part, source) and not (root / source).is_file():
            worlds = ", ".join(PRESETS)
            raise ValueError(
                f"suite config, data.{part}: file {source} does not exist "
                f"(worlds: {worlds}; the backbone's own texts: {FROM_BACKBONE})"
            )
        if is_file(part, source) and Path(source).suffix not in TEXT_FILES:
            raise ValueError(
                f"suite config, data.{part}: file {source} must end in {', '.join(TEXT_FILES)}"
            )


def is_file(part: str, source: str) -> bool:
    """Whether a part of the data is a local file: no world, not of the hub, not made of tasks or
    written by the backbone.
    """
    elsewhere = source in (*PRESETS, FROM_BACKBONE) or source.startswith("hub:")
    return not elsewhere and (part, source) != ("probe", FROM_TASKS)


def is_local(path: str) -> bool:
    """Whether a backbone's path is a folder, and not one that a prepare rule makes first."""
    return not path.startswith((*FORMS, WORLD))
