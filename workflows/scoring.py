"""A suite's key ``scoring``: on which splits of ARC its Retain stands.

The paper's dense Llama-3.1-8B and its ablations fit ARC's validation splits, its other rows the
test splits (``reports/reference/paper``). ``standard`` scores the test splits, all rows.
``paper-literal`` scores the validation splits beside them and takes those into the Retain, so that
each printed score has one of ours on its own split. Both splits never enter one Retain. Prompts and
templates are the same under both.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

LITERAL = "paper-literal"
VALIDATION = {name: f"{name}_validation" for name in ("arc_easy", "arc_challenge")}


def with_scoring(config: Mapping[str, Any]) -> dict[str, Any]:
    """The config with the tasks that its ``scoring`` adds, and the Retain that it means.

    Args:
        config: Complete; one that went through here before stays as it is.

    Raises:
        ValueError: It has no task of ARC to score by the letter of the paper.
    """
    if config["scoring"] != LITERAL:
        return dict(config)
    entries = {entry["task"]: entry for entry in map(_as_mapping, config["tasks"])}
    added = {VALIDATION[name]: entry for name, entry in entries.items() if name in VALIDATION}
    if not added:
        raise ValueError(
            f"suite config, scoring: {LITERAL} needs {' or '.join(VALIDATION)} among the tasks"
        )
    tasks = [entry | {"task": name} for name, entry in added.items() if name not in entries]
    scored = [name for name in entries if not name.startswith("perplexity")]
    kept = [VALIDATION.get(name, name) for name in config.get("retain_tasks", scored)]
    return dict(config) | {
        "tasks": [*config["tasks"], *tasks],
        "retain_tasks": list(dict.fromkeys(kept)),
    }


def check_one_split(retain_tasks: Iterable[str]) -> None:
    """A Retain takes ARC from one split.

    Raises:
        ValueError: Tasks of the test and of the validation splits are among its tasks.
    """
    names = list(retain_tasks)
    test = [name for name in names if name in VALIDATION]
    validation = [name for name in names if name in VALIDATION.values()]
    if test and validation:
        raise ValueError(
            f"retain_tasks: {test[0]} is of ARC's test split, {validation[0]} of the validation "
            "split; a Retain takes one of them"
        )


def of_one_split(tasks: Iterable[str]) -> list[str]:
    """The tasks without those of a validation split that the test split stands beside."""
    names = list(tasks)
    return [name for name in names if not (set(names) & set(VALIDATION)) or not _added(name)]


def without_added(entries: Iterable[Any]) -> list[Any]:
    """The entries of a suite as they are under ``standard``."""
    return [entry for entry in entries if not _added(_as_mapping(entry)["task"])]


def _added(name: str) -> bool:
    return name in VALIDATION.values()


def _as_mapping(entry: Any) -> dict[str, Any]:
    return {"task": entry} if isinstance(entry, str) else dict(entry)
