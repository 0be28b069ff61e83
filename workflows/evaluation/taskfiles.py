"""What task files may name: functions and files of their own folder, nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml


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
    waiting, seen = sorted(folder.rglob("*.yaml")), set[Path]()
    while waiting:
        file = waiting.pop()
        if file in seen:
            continue
        seen.add(file)
        told = _read(file)
        for value in _values(told):
            if isinstance(value, _Function):
                _check_function(value, file, folder)
        for metric in listed(told.get("metric_list")):
            _check_metric(metric, file)
        waiting += [_included(name, file, folder) for name in listed(told.get("include"))]


def _read(file: Path) -> dict[str, Any]:
    try:
        told = yaml.load(file.read_bytes(), _Reader)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ValueError(f"task file {file} is not valid YAML: {error}") from error
    if not isinstance(told, dict):
        raise ValueError(f"task file {file} is no mapping of keys")
    return told


def listed(value: Any) -> list[Any]:
    """A list as it is, anything else as a list of one, nothing as an empty one."""
    if value is None:
        return []
    return value if isinstance(value, list) else [value]


def _values(value: Any) -> Iterator[Any]:
    """Everything inside a value."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        for part in value:
            yield from _values(part)
    else:
        yield value


def _check_function(name: str, file: Path, folder: Path) -> None:
    module, _, function = name.rpartition(".")
    code = (file.parent / f"{module.replace('.', '/')}.py").resolve()
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
