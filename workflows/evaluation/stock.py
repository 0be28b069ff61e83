"""Names of the installed lm-eval, read from its task files; nothing of it is imported."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from workflows.evaluation.taskfiles import TAG, index_of, listed, member_name

# Tasks that run or eval what a model writes; lm-eval marks only some of them.
UNGUARDED = re.compile(
    r"humaneval.*|mbpp.*|cruxeval.*|longproc(_countdown.*|_pseudo_to_code.*)?"
    r"|.*robustness_math.*|score_robustness"
)


class _Plain(yaml.SafeLoader):
    """Reads a task file without the functions that it names."""


_Plain.add_multi_constructor("!", lambda loader, suffix, node: None)


class Stock(NamedTuple):
    """A task or group of lm-eval: the folder of its file, and a group's content (empty: a task)."""

    folder: Path
    group: Mapping[str, Any]


@cache
def stock_names(wanted: tuple[str, ...]) -> dict[str, Stock]:
    """Those of ``wanted``, tasks or groups, that lm-eval knows; of equal names the first file."""
    if not wanted:
        return {}
    line = re.compile(
        rf"""^["']?(task|group)["']?:[ \t]*["']?({_any(wanted)})["']?[ \t]*(?:\#.*)?$""".encode(),
        re.M,
    )
    found: dict[str, Stock] = {}
    for file, text in _files():
        for kind, name in line.findall(text):
            group = yaml.load(text, _Plain) if kind == b"group" else {}
            found.setdefault(name.decode(), Stock(file.parent, group))
        if len(found) == len(set(wanted)):
            break
    return found


def tagged(tag: str) -> list[str]:
    """Names of lm-eval's tasks that carry a tag, also by a file that they include, sorted."""
    quoted = rf"""["']?{re.escape(tag)}["']?[ \t]*(?:\#.*)?$"""
    name = re.compile(rf"""^(?:["']?tag["']?:|[ \t]*-)[ \t]+{quoted}""".encode(), re.M)
    texts = dict(_files(templates=True))
    more = {str(file) for file, text in texts.items() if name.search(text)}
    carry = set(more)
    while more:
        more = {
            str(f) for f, text in texts.items() if more.intersection(_included(f, text))
        } - carry
        carry |= more
    index = index_of(file for file in texts if str(file) in carry and file.suffix == ".yaml")
    return sorted(index[tag].told["task"]) if tag in index and index[tag].kind == TAG else []


def _included(file: Path, text: bytes) -> Iterator[str]:
    """Files that a text may include: all that stands behind the key or in a list."""
    for name in re.findall(
        rb"""^(?:["']?include["']?:|[ \t]*-)[ \t]+["']?([^\s"']+)""", text, re.M
    ):
        yield os.path.normpath(file.parent / os.fsdecode(name))


def check_group(name: str, told: Mapping[str, Any]) -> None:
    """A group is scored where its metrics are means over the items of all its tasks.

    Args:
        name: Of the group.
        told: Content of its file.

    Raises:
        ValueError: It has no metric, or one that weighs small tasks as much as large ones.
    """
    metrics = listed(told.get("aggregate_metric_list"))
    means = [isinstance(metric, dict) and metric.get("weight_by_size", True) for metric in metrics]
    if not metrics or not all(means):
        members = ", ".join(map(member_name, listed(told.get("task"))))
        raise ValueError(
            f"group '{name}' has no metric that is a mean over the items of all its tasks; name "
            f"what it holds instead ({members})"
        )


def _files(templates: bool = False) -> Iterator[tuple[Path, bytes]]:
    """Each task file of lm-eval with its content, in lm-eval's order; none without it.

    Args:
        templates: Also what they include, files without an ending.
    """
    spec = find_spec("lm_eval")
    if spec is not None and spec.origin is not None:
        folder = Path(spec.origin).parent / "tasks"
        for file in sorted(folder.rglob("*" if templates else "*.yaml"), key=Path.as_posix):
            if file.suffix == ".yaml" or (not file.suffix and file.is_file()):
                yield file, file.read_bytes()


def _any(names: Sequence[str]) -> str:
    return "|".join(map(re.escape, names))
