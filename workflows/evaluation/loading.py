"""Building the tasks of an entry with lm-eval.

A task that lacks something on this machine (a package, a data set, a sandbox) is reported as not
run, with the reason; all other tasks are scored.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from jinja2 import StrictUndefined, TemplateError
from jinja2.sandbox import SandboxedEnvironment

from methods.core.jsonfile import read_json
from workflows.evaluation.faults import (
    fetching,
    own_frames,
    refuse_neighbour,
    unknown_metric,
    wrong_task,
)  # fmt: skip
from workflows.evaluation.stock import UNGUARDED, stock_names
from workflows.evaluation.taskfiles import check_files, read_index
from workflows.evaluation.tasklist import TaskEntry
from workflows.evaluation.tasknames import OWN_TASKS, PROGRAM_TASKS, names_outside, own_task_names

if TYPE_CHECKING:
    from lm_eval.api.group import Group
    from lm_eval.tasks import TaskManager


class CannotRun(ValueError):
    """A task cannot be scored here. The message says why; "it was not run:" stands before it."""


def task_manager(entries: Sequence[TaskEntry], task_folders: Sequence[Path]) -> TaskManager:
    """lm-eval's index of tasks, with own tasks and as few of lm-eval's folders as possible.

    It takes many seconds to index all of lm-eval's tasks. That is necessary only for a group, whose
    members may be in any folder, and for a tag that an own group lists.
    """
    from lm_eval.tasks import TaskManager

    folders = [OWN_TASKS, *task_folders]
    for folder in folders:
        check_files(folder)
    others = names_outside(entries, read_index(folders))
    stock = stock_names(tuple(others))
    tag = any(name not in stock and not is_defined for name, is_defined in others.items())
    every = tag or any(task.group for task in stock.values())
    more = set() if every else {task.folder for task in stock.values()}
    return TaskManager(
        include_path=[str(folder) for folder in (*sorted(more), *folders)],
        include_defaults=every,
    )


def load(entry: TaskEntry, manager: TaskManager) -> Group:
    """A group with the tasks of an entry, with their data.

    Raises:
        CannotRun: A package, a metric or a data set is missing and cannot be fetched, or the task
            would run what a model writes without a sandbox.
        ValueError: No task of it has the entry's metric, as far as that is known before it scores.
    """
    confine_templates()
    with explained(entry.task):
        group = _build(entry, manager)
    sandboxed = own_task_names([PROGRAM_TASKS])
    tasks = group.get_all_tasks()
    for task in tasks:
        name = task.task_name
        if name not in sandboxed and (
            UNGUARDED.fullmatch(name) or getattr(task, "UNSAFE_CODE", False)
        ):
            raise CannotRun(f"'{name}' of lm-eval runs what a model writes without a sandbox")
        if getattr(task, "MULTIMODAL", False):
            raise CannotRun(f"'{name}' has images or sound, and models here read text")
        _check_functions(entry.task, task)
    listed = listed_metrics(tasks)
    if listed is not None:
        check_metric(entry, listed)
    return group


def _check_functions(name: str, task: Any) -> None:
    """Refuse metrics and aggregations that lm-eval did not find, which it tells after it scored."""
    from lm_eval.api.registry import AGGREGATION_REGISTRY
    from lm_eval.api.task import ConfigurableTask

    if not isinstance(task, ConfigurableTask):
        return
    for metric, aggregation in task.aggregation().items():
        if not callable(aggregation):
            raise ValueError(
                f"task '{name}': the aggregation of metric '{metric}' is none of lm-eval's "
                f"({', '.join(sorted(AGGREGATION_REGISTRY))})"
            )
    for metric, function in task._metric_fn_list.items():
        # Choices are scored by lm-eval itself, whatever the metric's own function is.
        generates = task.OUTPUT_TYPE == "generate_until"
        if function is None and generates and task.config.process_results is None:
            raise unknown_metric(name, metric)


def listed_metrics(tasks: Collection[Any]) -> set[str] | None:
    """Names of metrics that the files of tasks give; None if a task's own code may name others."""
    if all(map(_names_its_metrics, tasks)):
        return {name for task in tasks for name in task.aggregation()}
    return None


def _names_its_metrics(task: Any) -> bool:
    from lm_eval.api.task import ConfigurableTask

    if not isinstance(task, ConfigurableTask):
        return False
    listed = task.config.metric_list
    if not listed:
        return task.config.process_results is None
    return not any(callable(metric["metric"]) for metric in listed)


def check_metric(entry: TaskEntry, metrics: Iterable[str]) -> None:
    """Refuse a headline metric that is none of these.

    Raises:
        ValueError: The message names those that there are.
    """
    names = sorted(set(metrics))
    if entry.metric is not None and entry.metric not in names:
        raise ValueError(
            f"task '{entry.task}' has no metric '{entry.metric}' (it has: {', '.join(names)})"
        )


def confine_templates() -> None:
    """Let templates of tasks read only their documents; those of lm-eval reach all of Python."""
    from lm_eval import utils

    sandbox = SandboxedEnvironment(undefined=StrictUndefined, keep_trailing_newline=True)
    sandbox.filters.update(utils.env.filters)
    utils.env = sandbox


def _build(entry: TaskEntry, manager: TaskManager) -> Group:
    if entry.task not in manager.all_groups:
        return next(iter(manager.load([entry.lm_eval_spec])["groups"].values()))
    # If a group is put into another group, lm-eval takes its list of tasks for an override. So it
    # is built in the way in which lm-eval builds a group by its name.
    index = manager.task_index
    group = manager._factory.build(index[entry.task], overrides=entry.overrides, registry=index)
    return cast("Group", group)


@contextmanager
def explained(task: str) -> Iterator[None]:
    """Turn an error of a task into one sentence.

    Args:
        task: Its name.

    Raises:
        CannotRun: The machine lacks something: a Python package is not installed, a metric's own
            files cannot be fetched, or a data set is a program.
        ValueError: The task's file is wrong: lm-eval cannot build or score the task.
    """
    from datasets.exceptions import DatasetGenerationError

    try:
        yield
    except CannotRun:
        raise
    except ModuleNotFoundError as error:
        missing = str(error.name or error).split(".")[0]
        refuse_neighbour(task, missing, error)
        raise CannotRun(f"it needs the Python package '{missing}', not installed here") from error
    except (ImportError, LookupError, OSError) as error:
        package = fetching(error)
        if package is None and isinstance(error, OSError):
            raise
        if package is None:
            raise wrong_task(task, error) from error
        raise CannotRun(
            f"its metric fetches files of its own with the package '{package}', not here yet"
        ) from error
    except RuntimeError as error:
        if "Dataset scripts are no longer supported" in str(error):
            raise CannotRun(
                f"its data set is a program ({str(error).split()[-1]}), which the library datasets "
                "no longer runs; point dataset_path of its config to a copy in plain files"
            ) from error
        if type(error).__name__ == "OutOfMemoryError" or not own_frames(error):
            raise
        raise wrong_task(task, error) from error
    except (
        ArithmeticError, AssertionError, AttributeError, DatasetGenerationError, StopIteration,
        SyntaxError, TemplateError, TypeError, ValueError, re.error,
    ) as error:  # fmt: skip
        raise wrong_task(task, error) from error


def reasons_not_to_run(folder: Path | None, entries: Sequence[TaskEntry]) -> dict[str, str]:
    """Task -> why the prepare stage could not prepare its data.

    Args:
        folder: With a file per task from the prepare stage; None: there was no such stage.
        entries: Tasks to look up.
    """
    facts = {entry.task: data_facts(folder, entry) for entry in entries}
    return {task: known["not_run"] for task, known in facts.items() if "not_run" in known}


def data_facts(folder: Path | None, entry: TaskEntry) -> dict[str, Any]:
    """What the prepare stage wrote about an entry's data; empty if it wrote nothing."""
    file = None if folder is None else folder / f"{entry.task}.json"
    return {} if file is None or not file.is_file() else read_json(file)
