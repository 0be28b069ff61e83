"""Own task files: the tasks, groups and tags of a folder, and what its files name.

They are found as lm-eval's index finds them, without importing it: to list jobs needs no torch.
Files may name functions and files of their own folder, nothing else; and data.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from glob import glob
from pathlib import Path
from typing import Any, NamedTuple

import yaml

# Folders in which lm-eval looks for no task.
IGNORED = {"__pycache__", ".ipynb_checkpoints"}
TASK, GROUP, TAG = "task", "group", "tag"


class Own(NamedTuple):
    """A task, group or tag of a folder.

    Args:
        kind: ``TASK``, ``GROUP`` or ``TAG``.
        told: Its file with what that includes; of a tag ``task``, the names of its tasks.
        files: These; none of a tag.
    """

    kind: str
    told: Mapping[str, Any]
    files: Sequence[Path] = ()


class _Function(str):
    """What stands behind ``!function``."""


class _Reader(yaml.SafeLoader):
    """Reads a task file; a function stays its name."""


_Reader.add_constructor(
    "!function",
    lambda loader, node: _Function(loader.construct_scalar(node)),  # type: ignore[arg-type]
)


def check_files(folder: Path) -> None:
    """Hold a folder of task files against the rule that nothing outside it is run or read.

    A task file that names a function is code: lm-eval imports the file that holds it. It would
    also import any installed module, and include any file.

    Args:
        folder: Of lm-eval tasks.

    Raises:
        ValueError: A file is no YAML mapping, ``!function`` names no function of a Python file
            beside it, ``include`` a file outside the folder, or a metric a file.
    """
    waiting, seen = list(_files(folder)), set[Path]()
    while waiting:
        file = waiting.pop()
        if file in seen:
            continue
        seen.add(file)
        told = _read(file)
        for value in _values(told):
            if isinstance(value, _Function):
                _check_function(value, file, folder)
        for part in _mappings(told):
            for metric in listed(part.get("metric_list")):
                _check_metric(metric, file)
        waiting += [_included(name, file, folder) for name in listed(told.get("include"))]


def task_files(name: str, folder: Path) -> tuple[list[Path], list[dict[str, Any]]]:
    """Files of a folder that describe a task or a group, and the keys that they give.

    Args:
        name: Of the task or group.
        folder: Of lm-eval tasks.

    Returns:
        Task file, files that it includes, Python files of the functions that they name, and those
        of a group's members; the keys of each task. Nothing where the name is of another folder.
    """
    index, files = read_index([folder]), dict[Path, Path]()
    keys: list[dict[str, Any]] = []
    waiting: list[Any] = [name]
    opened = set[str]()
    for member in waiting:
        called = member_name(member)
        if isinstance(member, dict):
            keys.append(member)
            waiting += member["task"] if isinstance(member.get("task"), list) else []
        if called in index and called not in opened:
            opened.add(called)
            own = index[called]
            keys += [] if own.kind == TAG else [dict(own.told)]
            waiting += [] if own.kind == TASK else listed(own.told.get("task"))
            for file in own.files:
                _collect(file, folder, files)
    return list(files.values()), keys


def _collect(file: Path, folder: Path, files: dict[Path, Path]) -> None:
    """A task file joins ``files`` with the Python files of the functions that it names."""
    files[file.resolve()] = file
    for value in _values(_read(file)):
        if isinstance(value, _Function):
            _collect_code(_code(value, file), folder, files)


def _collect_code(file: Path, folder: Path, files: dict[Path, Path]) -> None:
    """A Python file joins ``files``, and so do those of the folder that it imports, by name."""
    if file.resolve() in files or not file.is_file():
        return
    files[file.resolve()] = file
    lines = re.findall(r"^\s*(?:from|import)\s.*", file.read_text("utf-8"), re.M)
    words = set(re.findall(r"\w+", " ".join(lines)))
    for other in sorted(folder.rglob("*.py")):
        if other.stem in words:
            _collect_code(other, folder, files)


def local_files(keys: Mapping[str, Any]) -> list[Path]:
    """Files here that a task reads, by its keys: its data, and a prompt of its own.

    Names are patterns below ``data_dir`` and below a data set that is a folder, as the library
    datasets takes them.
    """
    told = keys.get("dataset_kwargs") or {}
    within, source = str(told.get("data_dir") or ""), str(keys.get("dataset_path") or "")
    names = [str(name) for name in _values(told.get("data_files")) if name]
    places = [within] if names or within else []
    places += [os.path.join(source, within)] if source else []
    patterns = [os.path.join(place, name) for place in places for name in names or ["**/*"]]
    patterns.append(str(keys.get("use_prompt") or "").split(":")[0])
    found = {Path(name) for pattern in patterns for name in glob(pattern, recursive=True)}
    return sorted(file for file in found if file.is_file())


def read_index(folders: Sequence[Path]) -> dict[str, Own]:
    """Name -> task, group or tag of the folders, of equal names that of the last folder."""
    found: dict[str, Own] = {}
    for folder in folders:
        found |= index_of(_files(folder))
    return found


def index_of(files: Iterable[Path]) -> dict[str, Own]:
    """Name -> what the files define, of equal names the first; what lm-eval cannot read is none."""
    found: dict[str, Own] = {}
    for file in files:
        read: dict[Path, Path] = {}
        try:
            _enter(found, _whole(file, read), list(read.values()))
        except (OSError, TypeError, ValueError):
            continue
    return found


def _files(folder: Path) -> Iterator[Path]:
    """The task files of a folder, in lm-eval's order."""
    for file in sorted(folder.rglob("*.yaml"), key=Path.as_posix):
        if not IGNORED & set(file.parts):
            yield file


def _whole(file: Path, read: dict[Path, Path]) -> dict[str, Any]:
    """A file over what it includes.

    Args:
        file: As it is named.
        read: File without links -> as it is named; grows.

    Raises:
        ValueError: It is no mapping in YAML, or a file is included twice.
    """
    place = file.resolve()
    if place in read:
        raise ValueError(f"task file {file} is included twice")
    read[place] = file
    told = dict(_read(file))
    names = told.pop("include", [])
    merged: dict[str, Any] = {}
    for name in names if isinstance(names, list) else [names]:
        # As lm-eval: beside the file that a link leads to, though mostly there is none.
        near, inner = file.parent / name, place.parent / name
        merged |= _whole(near if near.resolve() == inner.resolve() else inner, read)
    return merged | told


def _enter(found: dict[str, Own], told: dict[str, Any], files: Sequence[Path]) -> None:
    """Put what a file defines into an index; a template defines nothing."""
    kind = GROUP if "group" in told and "class" not in told else TASK
    name = told.get(kind)
    if not isinstance(name, str) or name in found:
        return
    found[name] = Own(kind, told, files)
    for tag in listed(told.get("tag")) if kind == TASK else []:
        entry = found.setdefault(tag, Own(TAG, {"task": []}))
        if entry.kind == TAG:
            entry.told["task"].append(name)


def _read(file: Path) -> dict[str, Any]:
    try:
        told = _parse(file.read_bytes())
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ValueError(f"task file {file} is not valid YAML: {error}") from error
    if not isinstance(told, dict):
        raise ValueError(f"task file {file} is no mapping of keys")
    return told


@cache
def _parse(text: bytes) -> Any:
    """What a file says, read once however often it is asked for; nobody changes it."""
    return yaml.load(text, _Reader)


def listed(value: Any) -> list[Any]:
    """A list as it is, anything else as a list of one, nothing as an empty one."""
    if value is None:
        return []
    return value if isinstance(value, list) else [value]


def member_name(member: Any) -> str:
    """What a group calls one of its members: by name alone, or in front of more keys."""
    return str(member.get("group", member.get("task")) if isinstance(member, dict) else member)


def _values(value: Any) -> Iterator[Any]:
    """Everything inside a value."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        for part in value:
            yield from _values(part)
    else:
        yield value


def _code(name: str, file: Path) -> Path:
    """The Python file of a function that a task file names."""
    return file.parent / f"{name.rpartition('.')[0].replace('.', '/')}.py"


def _mappings(value: Any) -> Iterator[dict[str, Any]]:
    """Every mapping inside a value, itself among them: a group defines tasks in its list."""
    if isinstance(value, dict):
        yield value
        value = list(value.values())
    for part in value if isinstance(value, list) else []:
        yield from _mappings(part)


def _check_function(name: str, file: Path, folder: Path) -> None:
    function = name.rpartition(".")[2]
    code = _code(name, file).resolve()
    if not (function.isidentifier() and code.is_relative_to(folder.resolve()) and code.is_file()):
        raise ValueError(
            f"task file {file}: !function {name} must name a function of a Python file in {folder}"
        )


def _check_metric(metric: Any, file: Path) -> None:
    """A metric is looked up by its name; from a path, the library evaluate would import it."""
    name = metric.get("metric") if isinstance(metric, dict) else metric
    plain = isinstance(name, str) and not set(name) & set("/\\")
    if not plain and not isinstance(name, _Function):
        raise ValueError(f"task file {file}: metric {name!r} must be a name")


def _included(name: Any, file: Path, folder: Path) -> Path:
    found = (file.parent / str(name)).resolve()
    if not found.is_relative_to(folder.resolve()) or not found.is_file():
        raise ValueError(f"task file {file}: include {name!r} must be a file in {folder}")
    return found
