"""Names of the installed lm-eval, read from its task files; nothing of it is imported."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from workflows.evaluation.taskfiles import listed

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
    group: dict[str, Any]


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
    """Names of lm-eval's tasks that carry a tag, sorted."""
    name = re.compile(
        rf"""^(?:["']?tag["']?:|[ \t]*-)[ \t]+["']?{re.escape(tag)}["']?[ \t]*$""".encode(), re.M
    )
    told = [yaml.load(text, _Plain) for _, text in _files() if name.search(text)]
    return sorted(str(task["task"]) for task in told if tag in listed(task.get("tag")))


def check_group(name: str, told: Mapping[str, Any]) -> None:
    """A group is scored where its metrics are means over the items of all its tasks.

    Args:
        name: Of the group.
        told: Content of its file.

    Raises:
        ValueError: It has no metric, or one that weighs small tasks as much as large ones.
    """
    metrics = listed(told.get("aggregate_metric_list"))
    if not metrics or not all(metric.get("weight_by_size", True) for metric in metrics):
        members = [m if isinstance(m, str) else next(iter(m.values())) for m in told["task"]]
        raise ValueError(
            f"group '{name}' of lm-eval has no metric that is a mean over the items of all its "
            f"tasks; name what it holds instead ({', '.join(map(str, members))})"
        )


def _files() -> Iterator[tuple[Path, bytes]]:
    """Each task file of lm-eval with its content, in lm-eval's order; none without it."""
    spec = find_spec("lm_eval")
    if spec is not None and spec.origin is not None:
        folder = Path(spec.origin).parent / "tasks"
        for file in sorted(folder.rglob("*.yaml"), key=Path.as_posix):
            yield file, file.read_bytes()


def _any(names: Sequence[str]) -> str:
    return "|".join(map(re.escape, names))
