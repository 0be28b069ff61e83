"""Building the tasks of an entry, and why that may fail on a machine where others are scored."""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from jinja2 import StrictUndefined, TemplateError
from jinja2.sandbox import SandboxedEnvironment

from methods.core.jsonfile import cut, read_json
from workflows.evaluation.stock import UNGUARDED
from workflows.evaluation.tasklist import PROGRAM_TASKS, TaskEntry, own_task_names

if TYPE_CHECKING:
    from lm_eval.api.group import Group
    from lm_eval.tasks import TaskManager

# Packages with which metrics of lm-eval fetch code or word lists.
FETCHING = ("evaluate", "nltk")


class CannotRun(ValueError):
    """A task cannot be scored here; the message says why, after "it was not run:"."""


def load(entry: TaskEntry, manager: TaskManager) -> Group:
    """The tasks of an entry in a group of their own, their data loaded.

    Raises:
        CannotRun: A package, a metric or a data set cannot be had, or the task would run what a
            model writes without a sandbox.
    """
    confine_templates()
    with explained(entry.task):
        group = _built(entry, manager)
    guarded = own_task_names([PROGRAM_TASKS])
    for task in group.get_all_tasks():
        name = task.task_name
        if name not in guarded and (
            UNGUARDED.fullmatch(name) or getattr(task, "UNSAFE_CODE", False)
        ):
            raise CannotRun(f"'{name}' of lm-eval runs what a model writes without a sandbox")
        if getattr(task, "MULTIMODAL", False):
            raise CannotRun(f"'{name}' has images or sound, and models here read text")
    return group


def confine_templates() -> None:
    """Let templates of tasks read their documents alone: lm-eval's would reach all of Python."""
    from lm_eval import utils

    confined = SandboxedEnvironment(undefined=StrictUndefined, keep_trailing_newline=True)
    confined.filters.update(utils.env.filters)
    utils.env = confined


def _built(entry: TaskEntry, manager: TaskManager) -> Group:
    if entry.task not in manager.all_groups:
        return next(iter(manager.load([entry.lm_eval_spec])["groups"].values()))
    # A group inside another takes its members for overrides, so it is built as lm-eval builds it
    # by name.
    index = manager.task_index
    built = manager._factory.build(index[entry.task], overrides=entry.overrides, registry=index)
    return cast("Group", built)


@contextmanager
def explained(task: str) -> Iterator[None]:
    """Turn what a task lacks on this machine, or says wrongly, into one sentence.

    Args:
        task: Its name.

    Raises:
        CannotRun: A Python package is not installed, a metric's own files cannot be fetched, or a
            data set is a program.
        ValueError: lm-eval cannot make or score the task that its file describes.
    """
    from datasets.exceptions import DatasetGenerationError

    try:
        yield
    except CannotRun:
        raise
    except ModuleNotFoundError as error:
        missing = str(error.name or error).split(".")[0]
        raise CannotRun(f"it needs the Python package '{missing}', not installed here") from error
    except (ImportError, LookupError, OSError) as error:
        package = _fetching(error)
        if package is None and isinstance(error, OSError):
            raise
        if package is None:
            raise _wrong(task, error) from error
        raise CannotRun(
            f"its metric fetches files of its own with the package '{package}', not here yet"
        ) from error
    except RuntimeError as error:
        if "Dataset scripts are no longer supported" not in str(error):
            raise
        raise CannotRun(
            f"its data set is a program ({str(error).split()[-1]}), which the library datasets no "
            "longer runs; point dataset_path of its config to a copy in plain files"
        ) from error
    except (
        ArithmeticError, AssertionError, AttributeError, DatasetGenerationError, SyntaxError,
        TemplateError, TypeError, ValueError,
    ) as error:  # fmt: skip
        raise _wrong(task, error) from error


def _wrong(task: str, error: Exception) -> ValueError:
    if isinstance(error, KeyError):
        return ValueError(f"the data of task '{task}' lack {error}")
    told = " ".join(str(error).split())
    return ValueError(f"task '{task}' cannot be scored: {type(error).__name__}: {cut(told)}")


def _fetching(error: BaseException) -> str | None:
    """The package of ``FETCHING`` in which an error arose."""
    passed = {
        str(frame.f_globals.get("__name__")).split(".")[0]
        for frame, _ in traceback.walk_tb(error.__traceback__)
    }
    return next((package for package in FETCHING if package in passed), None)


def known_reasons(folder: Path | None, entries: Sequence[TaskEntry]) -> dict[str, str]:
    """Task -> why its data could not be prepared, as the prepare stage told.

    Args:
        folder: Its files by task; None: there was no such stage.
        entries: Whose files are read.
    """
    told = {entry.task: prepared(folder, entry) for entry in entries}
    return {task: facts["not_run"] for task, facts in told.items() if "not_run" in facts}


def prepared(folder: Path | None, entry: TaskEntry) -> dict[str, Any]:
    """What the prepare stage told of an entry's data; empty where it told nothing."""
    file = None if folder is None else folder / f"{entry.task}.json"
    return {} if file is None or not file.is_file() else read_json(file)
