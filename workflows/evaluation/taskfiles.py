"""Own task files: the tasks, groups and tags that the YAML files of a folder define.

They are indexed in the same way as by lm-eval, without importing it, because the jobs of a suite
are listed without torch. A task file may name functions and files of its own folder, and data;
nothing else.
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

# Folders that lm-eval skips when it looks for tasks.
IGNORED = {"__pycache__", ".ipynb_checkpoints"}
TASK, GROUP, TAG = "task", "group", "tag"


class Definition(NamedTuple):
    """A task, group or tag of a folder.

    Args:
        kind: ``TASK``, ``GROUP`` or ``TAG``.
        content: Keys of its file and of the files that it includes. A tag has one key, ``task``:
            the names of its tasks.
        files: These files; a tag has none.
    """

    kind: str
    content: Mapping[str, Any]
    files: Sequence[Path] = ()


class _Function(str):
    """A value after ``!function``."""


class _Reader(yaml.SafeLoader):
    """Reads a task file; of a function it reads the name only.

    ``functions`` are all of the file, also those that the content no longer holds, such as the
    first value of a key that stands there twice: lm-eval imports these too.
    """

    def __init__(self, text: bytes) -> None:
        super().__init__(text)
        self.functions: list[_Function] = []

    def function(self, node: yaml.ScalarNode) -> _Function:
        """The name of a function; it is added to ``functions``."""
        name = _Function(self.construct_scalar(node))
        self.functions.append(name)
        return name


_Reader.add_constructor("!function", _Reader.function)


def check_files(folder: Path) -> None:
    """Refuse a folder of task files that runs or reads anything outside itself.

    lm-eval imports the Python file of each function that a task file names. Without this check it
    would also import any installed module and include any file.

    Args:
        folder: Of lm-eval tasks.

    Raises:
        ValueError: A file is no YAML mapping, ``!function`` does not name a function of a Python
            file of the folder, ``include`` names a file outside the folder, a metric is a file, or
            data are pickles.
    """
    waiting, seen = list(_files(folder)), set[Path]()
    while waiting:
        file = waiting.pop()
        if file in seen:
            continue
        seen.add(file)
        content = _read(file)
        for function in _functions(file):
            _check_function(function, file, folder)
        check_keys(content, f"task file {file}")
        waiting += [_include_path(name, file, folder) for name in as_list(content.get("include"))]


def task_files(name: str, folder: Path) -> tuple[list[Path], list[dict[str, Any]]]:
    """Files of a folder that define a task or a group, and the keys of its tasks.

    Args:
        name: Of the task or group.
        folder: Of lm-eval tasks.

    Returns:
        Files: the task file, the files that it includes, the Python files of the functions that
        these name with the data that they may open, and the same for each member of a group. Keys:
        one mapping per task. Both are empty if the folder does not define the name.
    """
    index, files = read_index([folder]), dict[Path, Path]()
    keys: list[dict[str, Any]] = []
    waiting: list[Any] = [name]
    seen = set[str]()
    for member in waiting:
        label = member_name(member)
        if isinstance(member, dict):
            keys.append(member)
            waiting += member["task"] if isinstance(member.get("task"), list) else []
        if label in index and label not in seen:
            seen.add(label)
            definition = index[label]
            keys += [] if definition.kind == TAG else [dict(definition.content)]
            waiting += [] if definition.kind == TASK else as_list(definition.content.get("task"))
            for file in definition.files:
                _collect(file, folder, files)
    return list(files.values()), keys


def _collect(file: Path, folder: Path, files: dict[Path, Path]) -> None:
    """Add a task file and the Python files of its functions to ``files``."""
    files[file.resolve()] = file
    for function in _functions(file):
        _collect_code(_code(function, file), folder, files)


def _collect_code(file: Path, folder: Path, files: dict[Path, Path]) -> None:
    """Add a Python file to ``files``, what it imports of the folder, and data that it may open.

    Only names in its import statements are compared, and of data beside it, or in a folder beside
    it, the ending (``.jsonl``) with what the code spells, so a file too many may be added.
    """
    if file.resolve() in files or not file.is_file():
        return
    files[file.resolve()] = file
    text = file.read_text("utf-8")
    endings = {*re.findall(r"\.\w+", text)} - {".py"}
    for other in sorted(other for level in ("*", "*/*") for other in file.parent.glob(level)):
        if other.suffix in endings and other.is_file():
            files.setdefault(other.resolve(), other)
    lines = re.findall(r"^\s*(?:from|import)\s.*", text, re.M)
    words = set(re.findall(r"\w+", " ".join(lines)))
    for other in sorted(folder.rglob("*.py")):
        if other.stem in words:
            _collect_code(other, folder, files)


def local_files(keys: Mapping[str, Any]) -> list[Path]:
    """Local files that a task reads: its data, and its prompt if that is in a file.

    As in the library datasets, ``data_files`` are patterns. They are tried below ``data_dir``, and
    below ``dataset_path`` in case that is a folder.
    """
    options = keys.get("dataset_kwargs") or {}
    subfolder, source = str(options.get("data_dir") or ""), str(keys.get("dataset_path") or "")
    names = [str(name) for name in _values(options.get("data_files")) if name]
    places = [subfolder] if names or subfolder else []
    places += [os.path.join(source, subfolder)] if source else []
    patterns = [os.path.join(place, name) for place in places for name in names or ["**/*"]]
    patterns.append(str(keys.get("use_prompt") or "").split(":")[0])
    paths = {Path(name) for pattern in patterns for name in glob(pattern, recursive=True)}
    return sorted(path for path in paths if path.is_file())


def names_files(dataset_kwargs: Mapping[str, Any] | None) -> bool:
    """Whether a task's data are files or a folder here, and no data set of the hub."""
    return bool({"data_files", "data_dir"} & {*(dataset_kwargs or {})})


def read_index(folders: Sequence[Path]) -> dict[str, Definition]:
    """Name -> task, group or tag of the folders; the last folder wins if names are equal."""
    index: dict[str, Definition] = {}
    for folder in folders:
        index |= index_of(_files(folder))
    return index


def index_of(files: Iterable[Path]) -> dict[str, Definition]:
    """Name -> definition in the files; the first one wins if names are equal.

    Files that lm-eval cannot read define nothing, as in lm-eval.
    """
    index: dict[str, Definition] = {}
    for file in files:
        sources: dict[Path, Path] = {}
        try:
            _add(index, _merge_includes(file, sources), list(sources.values()))
        except (OSError, TypeError, ValueError):
            continue
    return index


def _files(folder: Path) -> Iterator[Path]:
    """The task files of a folder, in lm-eval's order."""
    for file in sorted(folder.rglob("*.yaml"), key=Path.as_posix):
        if not IGNORED & set(file.parts):
            yield file


def _merge_includes(file: Path, sources: dict[Path, Path]) -> dict[str, Any]:
    """Keys of a file, and keys of the files that it includes; its own have priority.

    Args:
        file: A task file, perhaps a link.
        sources: Path without links -> path, of the files that were read; this adds to it.

    Raises:
        ValueError: It is no mapping in YAML, or a file is included twice.
    """
    place = file.resolve()
    if place in sources:
        raise ValueError(f"task file {file} is included twice")
    sources[place] = file
    content = dict(_read(file))
    names = content.pop("include", [])
    merged: dict[str, Any] = {}
    for name in names if isinstance(names, list) else [names]:
        # As in lm-eval, names are relative to the target of a link, not to the link.
        near, inner = file.parent / name, place.parent / name
        merged |= _merge_includes(near if near.resolve() == inner.resolve() else inner, sources)
    return merged | content


def _add(index: dict[str, Definition], content: dict[str, Any], files: Sequence[Path]) -> None:
    """Add the task or group of a file, and its tags, to an index; a template has no name."""
    kind = GROUP if "group" in content and "class" not in content else TASK
    name = content.get(kind)
    if not isinstance(name, str) or name in index:
        return
    index[name] = Definition(kind, content, files)
    for tag in as_list(content.get("tag")) if kind == TASK else []:
        entry = index.setdefault(tag, Definition(TAG, {"task": []}))
        if entry.kind == TAG:
            entry.content["task"].append(name)


def _read(file: Path) -> dict[str, Any]:
    try:
        content = parse(file.read_bytes())
    except RecursionError as error:
        raise ValueError(f"task file {file}: a value lies in itself, or too deep") from error
    except (yaml.YAMLError, ValueError) as error:
        raise ValueError(f"task file {file} is not valid YAML: {error}") from error
    if not isinstance(content, dict):
        raise ValueError(f"task file {file} is no mapping of keys")
    return content


def parse(text: bytes) -> Any:
    """Content of a task file; cached, so callers must not change it."""
    return _parse(text)[0]


def _functions(file: Path) -> list[_Function]:
    """Names of all functions of a task file."""
    return _parse(file.read_bytes())[1]


@cache
def _parse(text: bytes) -> tuple[Any, list[_Function]]:
    """Content of a task file, and all its functions; a value in itself is a RecursionError."""
    reader = _Reader(text)
    content = reader.get_single_data()
    for _ in _values(content):
        pass
    return content, reader.functions


def as_list(value: Any) -> list[Any]:
    """A list as it is, None as an empty list, any other value as a list of one."""
    if value is None:
        return []
    return value if isinstance(value, list) else [value]


def member_name(member: Any) -> str:
    """Name of a member of a group, which is a name or a mapping with a name and more keys."""
    return str(member.get("group", member.get("task")) if isinstance(member, dict) else member)


def _values(value: Any) -> Iterator[Any]:
    """Every value inside nested mappings and lists."""
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
    """Every mapping inside a value, and the value itself; a group's list may define tasks."""
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


def check_keys(content: Any, where: str) -> None:
    """Refuse keys of a task whose value makes a library run a program.

    Args:
        content: Of a task file, or key ``config`` of a task entry.
        where: Words for the message.

    Raises:
        ValueError: A metric is a file or a repository of the hub, which the library evaluate would
            import, or the data are pickles.
    """
    for part in _mappings(content):
        for metric in as_list(part.get("metric_list")):
            name = metric.get("metric") if isinstance(metric, dict) else metric
            is_name = isinstance(name, str) and not set(name) & set("/\\")
            if not is_name and not isinstance(name, _Function):
                raise ValueError(f"{where}: metric {name!r} must be a name")
        if part.get("dataset_path") == "pandas":
            raise ValueError(
                f"{where}: dataset_path 'pandas' reads pickles, which may run any program; "
                "json, csv and parquet are allowed"
            )


def _include_path(name: Any, file: Path, folder: Path) -> Path:
    path = (file.parent / str(name)).resolve()
    if not path.is_relative_to(folder.resolve()) or not path.is_file():
        raise ValueError(f"task file {file}: include {name!r} must be a file in {folder}")
    return path
