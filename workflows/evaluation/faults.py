"""Errors of a task's file, code and data as one sentence each, by where they arose."""

from __future__ import annotations

import re
import traceback
from pathlib import Path
from types import FrameType
from typing import Any

from methods.core.jsonfile import cut
from workflows.evaluation.answers import digits_read_as_places

# Packages that metrics of lm-eval use to fetch code or word lists.
FETCHING = ("evaluate", "nltk")


def wrong_task(task: str, error: BaseException) -> ValueError:
    """An error that lm-eval or a task's own code raised, as one sentence.

    Args:
        task: Its name.
        error: If the library datasets made it of another one, that one is told.
    """
    if type(error).__name__ == "DatasetGenerationError":
        error = error.__cause__ or error
    frame = _frames(error)[-1]
    module = _module(frame)
    builds = (module, frame.f_code.co_name) == ("lm_eval.api.task", "__init__")
    if builds and error.args == (None,):
        return unknown_metric(task, frame.f_locals.get("metric_name"))
    reads = module.startswith(("datasets.", "lm_eval.api.task")) and not builds
    if reads and isinstance(error, KeyError):
        return ValueError(f"the data of task '{task}' lack {error}")
    kind = "regular expression" if isinstance(error, re.error) else type(error).__name__
    said = f"{kind}: {cut(' '.join(str(error).split()))}"
    if builds and isinstance(error, IndexError):
        said = _wrong_place(frame.f_locals) or said
    elif isinstance(error, StopIteration) and module.startswith("datasets."):
        said = "a file of its data is empty"
    elif isinstance(error, KeyError) and module == "lm_eval.api.registry":
        said = " ".join(str(error.args[0]).split())
    file = _data_file(error)
    return ValueError(f"task '{task}' cannot be scored: {f'{file}: ' if file else ''}{said}")


def _wrong_place(names: dict[str, Any]) -> str:
    """What is wrong with the answer of the first item, if lm-eval raised an error for it.

    Args:
        names: Variables of lm-eval, which tries a task on its first item.
    """
    answer, choices = names.get("test_target"), names.get("test_choice")
    if not isinstance(answer, int) or not isinstance(choices, list):
        return ""
    return digits_read_as_places(names["self"], [([answer], choices)]) or (
        f"the answer of its first item is {answer}, and its {len(choices)} choices are counted "
        "from 0"
    )


def _data_file(error: BaseException) -> str:
    """The file that the library datasets read when an error arose; empty if it read none."""
    files = [
        str(frame.f_locals["file"])
        for frame in _frames(error)
        if _module(frame).startswith("datasets.packaged_modules.") and "file" in frame.f_locals
    ]
    return files[-1] if files else ""


def unknown_metric(task: str, metric: Any) -> ValueError:
    """What to say of a metric, a name or a function, of which lm-eval knows too little."""
    return ValueError(
        f"task '{task}': metric '{getattr(metric, '__name__', metric)}' is none of lm-eval's, and "
        "the package evaluate does not load it; one of your own needs process_results, "
        "aggregation and higher_is_better"
    )


def refuse_neighbour(task: str, missing: str, error: ModuleNotFoundError) -> None:
    """Refuse a task's Python file that imports one beside it.

    Raises:
        ValueError: The module that is missing lies there.
    """
    files = [Path(frame.f_code.co_filename) for frame in own_frames(error)]
    modules = (f"{missing}.py", f"{missing}/__init__.py")
    if files and any((files[-1].parent / name).is_file() for name in modules):
        raise ValueError(
            f"task '{task}': {files[-1]} imports '{missing}', which lies beside it, but lm-eval "
            "loads each Python file alone; put both into one"
        ) from error


def fetching(error: BaseException) -> str | None:
    """The package of ``FETCHING`` in which an error arose; None if it is none of them."""
    packages = {_module(frame).split(".")[0] for frame in _frames(error)}
    return next((package for package in FETCHING if package in packages), None)


def own_frames(error: BaseException) -> list[FrameType]:
    """Those of an own task's Python files, whose modules lm-eval names by their paths."""
    return [frame for frame in _frames(error) if "/" in _module(frame)]


def _frames(error: BaseException) -> list[FrameType]:
    """The functions through which an error came; it arose in the last one."""
    return [frame for frame, _ in traceback.walk_tb(error.__traceback__)]


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__"))
