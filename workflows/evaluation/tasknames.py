"""Names of tasks: which the project and a folder define, and which can be scored at all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from workflows.evaluation.stock import UNGUARDED, Stock, check_group, stock_names, tasks_of_tag
from workflows.evaluation.taskfiles import (
    GROUP,
    TAG,
    TASK,
    Definition,
    as_list,
    check_files,
    member_name,
    names_files,
    read_index,
)  # fmt: skip
from workflows.evaluation.tasklist import TaskEntry

OWN_TASKS = Path(__file__).resolve().parent / "tasks"
# Tasks that run what a model writes, in the sandbox.
PROGRAM_TASKS = OWN_TASKS / "code"


def runs_programs(entry: TaskEntry) -> bool:
    """Whether what the model writes is run, in the sandbox."""
    return entry.task in own_task_names([PROGRAM_TASKS])


def own_task_names(folders: Sequence[Path] = (OWN_TASKS,)) -> set[str]:
    """Names of the tasks and groups that the YAML files of the folders define."""
    return {name for name, task in read_index(folders).items() if task.kind != TAG}


def names_outside(entries: Sequence[TaskEntry], own: Mapping[str, Definition]) -> dict[str, bool]:
    """Names that the folders do not define: of entries, and of members of their own groups.

    Args:
        entries: What is scored; texts have no such name.
        own: Tasks, groups and tags of the folders.

    Returns:
        Name -> whether the group that lists it defines it. If not, it must be a name of lm-eval.
    """
    waiting = [(entry.task, False) for entry in entries if not entry.is_perplexity]
    names: dict[str, bool] = {}
    groups = set()
    for name, is_defined in waiting:
        if name not in own:
            names[name] = names.get(name, True) and is_defined
        elif own[name].kind == GROUP and name not in groups:
            groups.add(name)
            waiting += _members(own[name].content)
    return names


def _members(group: Mapping[str, Any]) -> list[tuple[str, bool]]:
    """Names that a group lists, each with whether the group defines it there."""
    members = []
    for member in as_list(group.get("task")):
        members.append((member_name(member), isinstance(member, dict)))
        if isinstance(member, dict) and isinstance(member.get("task"), list):
            members += _members(member)
    return members


def hub_task_names(folders: Sequence[Path] = (OWN_TASKS,)) -> set[str]:
    """Names of the folders' tasks and groups that may load a data set of the hub.

    A task does if its file names a data set, and no files and no folder here. A group, and a task
    in Python, may do so.
    """
    return {
        name
        for name, task in read_index(folders).items()
        if task.kind == GROUP
        or (task.kind == TASK and "class" in task.content)
        or _of_hub(task.content)
    }


def _of_hub(task: Mapping[str, Any]) -> bool:
    data = task.get("dataset_path")
    here = names_files(task.get("dataset_kwargs"))
    return isinstance(data, str) and not here and not Path(data).exists()


def check_names(entries: Sequence[TaskEntry], folders: Sequence[Path] = (OWN_TASKS,)) -> None:
    """Refuse names that cannot be scored on any machine, and text files that do not exist.

    Raises:
        ValueError: A name, of an entry or in an own group, is unknown here and to lm-eval; it is a
            tag, or a group without a mean over its items; or it runs what a model writes without a
            sandbox. The message lists the names that are possible instead.
    """
    for entry in entries:
        if entry.is_perplexity and not Path(str(entry.file)).is_file():
            raise ValueError(f"text file {entry.file} of task '{entry.task}' does not exist")
    for folder in folders:
        check_files(folder)
    own = read_index(folders)
    others = names_outside(entries, own)
    for name in filter(UNGUARDED.fullmatch, others):
        sandboxed = ", ".join(sorted(own_task_names([PROGRAM_TASKS])))
        raise ValueError(
            f"task '{name}' of lm-eval runs what a model writes without a sandbox; "
            f"those that run in one are {sandboxed}"
        )
    stock = stock_names(tuple(others))
    tasks = [entry.task for entry in entries]
    _check_tags_and_groups(tasks, own, stock)
    unknown = sorted(name for name in others if name not in stock and not others[name])
    for name, members in ((name, tasks_of_tag(name)) for name in unknown):
        if members and name in tasks:
            _refuse_tag(name, members)
        if not members:
            raise ValueError(
                f"unknown task '{name}' (tasks here: {', '.join(sorted(own_task_names(folders)))}; "
                "any task of lm-eval and perplexity:FILE are allowed too)"
            )


def _check_tags_and_groups(
    tasks: Sequence[str], own: Mapping[str, Definition], stock: Mapping[str, Stock]
) -> None:
    """Refuse own tags, and groups without a score of their own."""
    groups = {name: task.group for name, task in stock.items() if task.group}
    for name in tasks:
        definition = own.get(name)
        if definition is not None and definition.kind == TAG:
            _refuse_tag(name, definition.content["task"])
        if name in groups:
            check_group(name, groups[name])
        if definition is not None and definition.kind == GROUP:
            check_group(name, definition.content)


def _refuse_tag(name: str, members: Sequence[str]) -> None:
    raise ValueError(
        f"'{name}' is a tag, without a score of its own; name its tasks instead "
        f"({', '.join(members)})"
    )
