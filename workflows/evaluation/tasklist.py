"""What to score: entries of a suite or of the command line, checked before any model is loaded."""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from workflows.evaluation.stock import UNGUARDED, Stock, check_group, stock_names, tagged
from workflows.evaluation.taskfiles import (
    GROUP,
    TAG,
    TASK,
    Own,
    check_files,
    listed,
    local_files,
    member_name,
    read_index,
    task_files,
)

OWN_TASKS = Path(__file__).resolve().parent / "tasks"
# Tasks that run what a model wrote, in the sandbox.
PROGRAM_TASKS = OWN_TASKS / "code"
KEYS: dict[str, type] = {
    "task": str,
    "metric": str,
    "num_fewshot": int,
    "limit": int,
    "chat_template": bool,
    "split": str,
    "config": dict,
    "probe": bool,
    "file": str,
}
PERPLEXITY = "perplexity"


@dataclass(frozen=True)
class TaskEntry:
    """One thing to score.

    Args:
        task: Name of an lm-eval task or group, or ``perplexity`` or ``perplexity:NAME``.
        metric: The headline metric; None: the first of the task's own list.
        num_fewshot: Demonstrations; None: the task's own number.
        limit: First items only, of each task of a group; None: all.
        chat_template: Whether prompts go through the tokenizer's chat template.
        split: ``"test"`` scores the split the task scores, ``"validation"`` its validation split.
        config: Keys of the lm-eval task to replace, such as its ``dataset_path``.
        probe: Whether a probe that is made of the tasks has documents of this one.
        file: Text file of a perplexity entry.
    """

    task: str
    metric: str | None = None
    num_fewshot: int | None = None
    limit: int | None = None
    chat_template: bool = False
    split: str = "test"
    config: Mapping[str, Any] = field(default_factory=dict)
    probe: bool = True
    file: str | None = None

    @property
    def is_perplexity(self) -> bool:
        """Whether this is a text file to predict instead of a task."""
        return self.task.split(":")[0] == PERPLEXITY

    @property
    def runs_programs(self) -> bool:
        """Whether what the model writes is run, in the sandbox."""
        return self.task in own_task_names([PROGRAM_TASKS])

    @property
    def is_local(self) -> bool:
        """Whether its data are files that the entry names, so that nothing is to be fetched."""
        return "data_files" in self.config.get("dataset_kwargs", {})

    @property
    def overrides(self) -> dict[str, Any]:
        """Keys of the lm-eval task, or of each of a group, with the values that go over its own."""
        spec: dict[str, Any] = dict(self.config)
        if self.num_fewshot is not None:
            spec["num_fewshot"] = self.num_fewshot
        if self.split == "validation":
            spec["test_split"] = None
        return spec

    @property
    def lm_eval_spec(self) -> dict[str, Any]:
        """A task for lm-eval: a group of one, the form in which overrides are merged."""
        return {"group": f"entry_{self.task}", "task": [{"task": self.task, **self.overrides}]}


def add_task_folder(parser: argparse.ArgumentParser) -> None:
    """``--task-dir``, which :func:`task_folders` reads."""
    parser.add_argument(
        "--task-dir", type=Path, metavar="DIR", help="folder of own lm-eval tasks; default: none"
    )


def add_task_arguments(parser: argparse.ArgumentParser) -> None:
    """``--task-dir`` and ``--task-data``."""
    add_task_folder(parser)
    parser.add_argument(
        "--task-data", type=Path, metavar="DIR",
        help="what the prepare stage left of each task; default: none",
    )  # fmt: skip


def task_folders(args: argparse.Namespace) -> list[Path]:
    """The folder of ``--task-dir``, if one was given.

    Raises:
        ValueError: It is no folder.
    """
    if args.task_dir is not None and not args.task_dir.is_dir():
        raise ValueError(f"--task-dir {args.task_dir} is no folder")
    return [] if args.task_dir is None else [args.task_dir]


def parse_tasks(text: str) -> list[TaskEntry]:
    """Entries from ``a,b``, from ``perplexity:FILE`` or from a JSON list.

    A text is named after its file; texts of one such name bear their whole paths.

    Raises:
        ValueError: Not JSON, an entry is malformed, or two share a name.
    """
    if not text.lstrip().startswith("["):
        words = [word.strip() for word in text.split(",") if word.strip()]
        stems = [_label(word) for word in words]
        entries = [
            _from_word(word, word if stems.count(stem) > 1 else stem)
            for word, stem in zip(words, stems, strict=True)
        ]
        _check_names_apart(entries)
        return entries
    # A job list comes without what fits models share.
    from methods.core.jsonfile import parse_json

    return read_entries(parse_json(text, "--tasks"))


def read_entries(raw: Sequence[Any]) -> list[TaskEntry]:
    """Entries from a suite's list of names and mappings.

    Raises:
        ValueError: An entry has an unknown key or no task, or two entries share a name.
    """
    entries = []
    for item in raw:
        entry = _entry(item)
        if entry.is_perplexity and not entry.file:
            raise ValueError(f"task entry {item!r}: a perplexity needs a text file")
        if entry.split not in ("test", "validation"):
            raise ValueError(f"task entry {item!r}: split is test or validation")
        entries.append(entry)
    _check_names_apart(entries)
    return entries


def _check_names_apart(entries: Sequence[TaskEntry]) -> None:
    names = [entry.task for entry in entries]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"task '{name}' is listed twice; perplexities are told apart by :NAME")


def entry_files(entry: TaskEntry, folders: Sequence[Path]) -> list[Path]:
    """Files here, named by a path, that the score of an entry follows from.

    Args:
        entry: What is scored.
        folders: Of own tasks, beside this project's.

    Returns:
        Its text, or what describes its task in the folders and the data that are no data set of
        the hub.
    """
    if entry.is_perplexity:
        return [Path(str(entry.file))]
    found: list[Path] = []
    described: list[dict[str, Any]] = []
    for folder in folders:
        files, keys = task_files(entry.task, folder)
        found, described = found + files, described + keys
    for keys_of_one in described or [{}]:
        found += local_files(keys_of_one | dict(entry.config))
    return list(dict.fromkeys(found))


def _entry(item: Any) -> TaskEntry:
    """One entry, its keys and the types of its values checked."""
    given: Any = {"task": item} if isinstance(item, str) else item
    if not isinstance(given, Mapping) or set(given) - set(KEYS) or "task" not in given:
        raise ValueError(f"task entry {item!r}: keys are {', '.join(KEYS)}; task is required")
    for key, value in given.items():
        kind = KEYS[key]
        if not isinstance(value, kind) or (kind is int and (value is True or value is False)):
            raise ValueError(f"task entry {item!r}: {key} must be of type {kind.__name__}")
    if given.get("limit", 1) < 1 or given.get("num_fewshot", 0) < 0:
        raise ValueError(f"task entry {item!r}: limit is at least 1, num_fewshot at least 0")
    return TaskEntry(**given)


def _label(word: str) -> str:
    kind, colon, file = word.partition(":")
    return f"{kind}:{Path(file).stem}" if colon and kind == PERPLEXITY else word


def _from_word(word: str, name: str) -> TaskEntry:
    kind, colon, file = word.partition(":")
    return TaskEntry(name, file=file if colon and kind == PERPLEXITY else None)


def own_task_names(folders: Sequence[Path] = (OWN_TASKS,)) -> set[str]:
    """Names of the tasks and groups defined in YAML files below the folders."""
    return {name for name, own in read_index(folders).items() if own.kind != TAG}


def foreign(entries: Sequence[TaskEntry], own: Mapping[str, Own]) -> dict[str, bool]:
    """Names that are lm-eval's if anybody's, of entries and of what their own groups hold.

    Args:
        entries: In whose order the names go; texts have none.
        own: Tasks, groups and tags of the folders.

    Returns:
        Name -> whether a group defines a task by it if lm-eval has none.
    """
    waiting = [(entry.task, False) for entry in entries if not entry.is_perplexity]
    found: dict[str, bool] = {}
    opened = set()
    for name, defined in waiting:
        if name not in own:
            found[name] = found.get(name, True) and defined
        elif own[name].kind == GROUP and name not in opened:
            opened.add(name)
            waiting += _members(own[name].told)
    return found


def _members(group: Mapping[str, Any]) -> list[tuple[str, bool]]:
    """Names that a group lists, each with whether it comes with a content."""
    found = []
    for member in listed(group.get("task")):
        found.append((member_name(member), isinstance(member, dict)))
        if isinstance(member, dict) and isinstance(member.get("task"), list):
            found += _members(member)
    return found


def fetched_task_names(folders: Sequence[Path] = (OWN_TASKS,)) -> set[str]:
    """Those of the tasks below the folders that may load a data set of the hub.

    Its file names one, or says in Python or by other tasks what it loads.
    """
    data = re.compile(r"[\w.-]+/[\w.-]+")
    return {
        name
        for name, own in read_index(folders).items()
        if own.kind == GROUP
        or (own.kind == TASK and "class" in own.told)
        or data.fullmatch(str(own.told.get("dataset_path")))
    }


def check_names(entries: Sequence[TaskEntry], folders: Sequence[Path] = (OWN_TASKS,)) -> None:
    """Refuse names that cannot be scored on any machine, and text files that do not exist.

    Raises:
        ValueError: The first name, also in an own group, that neither this suite nor lm-eval
            knows, with the suite's own names; a tag, or a group without a mean over its items, with
            what it holds; or a task that runs what a model writes without a sandbox.
    """
    for entry in entries:
        if entry.is_perplexity and not Path(str(entry.file)).is_file():
            raise ValueError(f"text file {entry.file} of task '{entry.task}' does not exist")
    for folder in folders:
        check_files(folder)
    own = read_index(folders)
    others = foreign(entries, own)
    for name in filter(UNGUARDED.fullmatch, others):
        guarded = ", ".join(sorted(own_task_names([PROGRAM_TASKS])))
        raise ValueError(
            f"task '{name}' of lm-eval runs what a model writes without a sandbox; "
            f"those that run in one are {guarded}"
        )
    stock = stock_names(tuple(others))
    asked = [entry.task for entry in entries]
    _check_scored(asked, own, stock)
    unknown = sorted(name for name in others if name not in stock and not others[name])
    for name, members in ((name, tagged(name)) for name in unknown):
        if members and name in asked:
            _refuse_tag(name, members)
        if not members:
            raise ValueError(
                f"unknown task '{name}' (tasks here: {', '.join(sorted(own_task_names(folders)))}; "
                "any task of lm-eval and perplexity:FILE are allowed too)"
            )


def _check_scored(asked: Sequence[str], own: Mapping[str, Own], stock: Mapping[str, Stock]) -> None:
    """Refuse own tags, and groups without a score."""
    groups = {name: found.group for name, found in stock.items() if found.group}
    for name in asked:
        held = own.get(name)
        if held is not None and held.kind == TAG:
            _refuse_tag(name, held.told["task"])
        if name in groups:
            check_group(name, groups[name])
        if held is not None and held.kind == GROUP:
            check_group(name, held.told)


def _refuse_tag(name: str, members: Sequence[str]) -> None:
    raise ValueError(
        f"'{name}' is a tag, without a score of its own; name its tasks instead "
        f"({', '.join(members)})"
    )
