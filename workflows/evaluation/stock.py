"""Names of lm-eval's tasks, read from the task files of its package, without importing it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from workflows.evaluation.taskfiles import TAG, as_list, index_of, member_name, parse

# Tasks that run or eval what a model writes, without a sandbox. lm-eval marks only some of them.
UNGUARDED = re.compile(
    r"humaneval.*|mbpp.*|cruxeval.*|longproc(_countdown.*|_pseudo_to_code.*)?"
    r"|.*robustness_math.*|score_robustness"
)


class Stock(NamedTuple):
    """A task or group of lm-eval.

    Args:
        folder: Of its file.
        group: Content of a group's file; empty for a task.
    """

    folder: Path
    group: Mapping[str, Any]


@cache
def stock_names(names: tuple[str, ...]) -> dict[str, Stock]:
    """Those of the names that are tasks or groups of lm-eval; of equal names the first file."""
    if not names:
        return {}
    any_name = "|".join(map(re.escape, names))
    line = re.compile(
        rf"""^["']?(task|group)["']?:[ \t]*["']?({any_name})["']?[ \t]*(?:\#.*)?$""".encode(), re.M
    )
    stock: dict[str, Stock] = {}
    for file, text in _files():
        for kind, name in line.findall(text):
            group = parse(text) if kind == b"group" else {}
            stock.setdefault(name.decode(), Stock(file.parent, group))
        if len(stock) == len(set(names)):
            break
    return stock


def tasks_of_tag(tag: str) -> list[str]:
    """Sorted names of lm-eval's tasks with a tag, which their file or an included file gives."""
    quoted = rf"""["']?{re.escape(tag)}["']?[ \t]*(?:\#.*)?$"""
    name = re.compile(rf"""^(?:["']?tag["']?:|[ \t]*-)[ \t]+{quoted}""".encode(), re.M)
    texts = dict(_files(templates=True))
    more = {str(file) for file, text in texts.items() if name.search(text)}
    files = set(more)
    while more:
        more = {
            str(f) for f, text in texts.items() if more.intersection(_includes(f, text))
        } - files
        files |= more
    index = index_of(file for file in texts if str(file) in files and file.suffix == ".yaml")
    return sorted(index[tag].content["task"]) if tag in index and index[tag].kind == TAG else []


def _includes(file: Path, text: bytes) -> Iterator[str]:
    """Files that a task file may include: values of the key ``include``, and items of any list."""
    for name in re.findall(
        rb"""^(?:["']?include["']?:|[ \t]*-)[ \t]+["']?([^\s"']+)""", text, re.M
    ):
        yield os.path.normpath(file.parent / os.fsdecode(name))


def check_group(name: str, content: Mapping[str, Any]) -> None:
    """Refuse a group whose metrics are not means over the items of all its tasks.

    Args:
        name: Of the group.
        content: Of its file.

    Raises:
        ValueError: It has no metric, or one that gives small and large tasks the same weight.
    """
    metrics = as_list(content.get("aggregate_metric_list"))
    means = [isinstance(metric, dict) and metric.get("weight_by_size", True) for metric in metrics]
    if not metrics or not all(means):
        members = ", ".join(map(member_name, as_list(content.get("task"))))
        raise ValueError(
            f"group '{name}' has no metric that is a mean over the items of all its tasks; name "
            f"what it holds instead ({members})"
        )


def _files(templates: bool = False) -> Iterator[tuple[Path, bytes]]:
    """Task files of lm-eval with their texts, in lm-eval's order; nothing without lm-eval.

    Args:
        templates: Also files without an ending, which task files include.
    """
    spec = find_spec("lm_eval")
    if spec is not None and spec.origin is not None:
        folder = Path(spec.origin).parent / "tasks"
        for file in sorted(folder.rglob("*" if templates else "*.yaml"), key=Path.as_posix):
            if file.suffix == ".yaml" or (not file.suffix and file.is_file()):
                yield file, file.read_bytes()
