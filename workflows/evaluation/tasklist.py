"""What to score: task entries of a suite or a command line, checked before a model is loaded."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from workflows.evaluation.taskfiles import check_keys, local_files, task_files

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
    "chance": float,
}
PERPLEXITY = "perplexity"
# A name stands in commands and in names of files.
NAME = re.compile(r"[\w.:+@-]+")
# Keys of a task that make it another one, or take its prompt from elsewhere.
NOT_REPLACED = ("task", "group", "include", "class", "use_prompt")
# Keys that say nothing of a text.
OF_TASKS = ("metric", "num_fewshot", "chat_template", "split", "config", "chance")


@dataclass(frozen=True)
class TaskEntry:
    """One thing to score.

    Args:
        task: Name of an lm-eval task or group, or ``perplexity`` or ``perplexity:NAME``.
        metric: The headline metric; None: the first of the task's own list.
        num_fewshot: Demonstrations; None: the task's own number.
        limit: First items only, of each task of a group; None: all.
        chat_template: Whether prompts go through the tokenizer's chat template.
        split: ``"test"``: the split that the task itself scores; ``"validation"``: its validation
            split.
        config: Keys that replace those of the lm-eval task, such as ``dataset_path``.
        probe: Whether probe texts are made of this task.
        file: Text file of a perplexity entry.
        chance: Score of a guess; None: from the number of choices.
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
    chance: float | None = None

    @property
    def is_perplexity(self) -> bool:
        """Whether this is a text file whose tokens are predicted, not a task."""
        return self.task.split(":")[0] == PERPLEXITY

    @property
    def is_local(self) -> bool:
        """Whether its data are local files that the entry names, so nothing is fetched."""
        return "data_files" in self.config.get("dataset_kwargs", {})

    @property
    def overrides(self) -> dict[str, Any]:
        """Keys and values that replace those of the lm-eval task, or of each task of a group."""
        spec: dict[str, Any] = dict(self.config)
        if self.num_fewshot is not None:
            spec["num_fewshot"] = self.num_fewshot
        if self.split == "validation":
            spec["test_split"] = None
        return spec

    @property
    def lm_eval_spec(self) -> dict[str, Any]:
        """The task for lm-eval: as a group of one, because only a group merges overrides."""
        return {"group": f"entry_{self.task}", "task": [{"task": self.task, **self.overrides}]}


def add_task_folder(parser: argparse.ArgumentParser) -> None:
    """Add ``--task-dir``, which :func:`task_folders` reads."""
    parser.add_argument(
        "--task-dir", type=Path, metavar="DIR", help="folder of own lm-eval tasks; default: none"
    )


def add_task_arguments(parser: argparse.ArgumentParser) -> None:
    """Add ``--task-dir`` and ``--task-data``."""
    add_task_folder(parser)
    parser.add_argument(
        "--task-data", type=Path, metavar="DIR",
        help="what the prepare stage left of each task; default: none",
    )  # fmt: skip


def add_limit_argument(parser: argparse.ArgumentParser) -> None:
    """Add ``--limit``, which :func:`limited` takes."""
    parser.add_argument(
        "--limit", type=int, metavar="N",
        help="first N items of each task, an entry may have fewer; default: all",
    )  # fmt: skip


def limited(entries: Iterable[TaskEntry], limit: int | None) -> list[TaskEntry]:
    """The entries with at most so many items each, fewer where an entry's own limit is lower.

    None: as they are.
    """
    if limit is None:
        return list(entries)
    return [replace(entry, limit=min(entry.limit or limit, limit)) for entry in entries]


def task_folders(args: argparse.Namespace) -> list[Path]:
    """The folder of ``--task-dir``; empty without that option.

    Raises:
        ValueError: It is no folder.
    """
    if args.task_dir is not None and not args.task_dir.is_dir():
        raise ValueError(f"--task-dir {args.task_dir} is no folder")
    return [] if args.task_dir is None else [args.task_dir]


def parse_tasks(text: str) -> list[TaskEntry]:
    """Entries from ``a,b``, from ``perplexity:FILE`` or from a JSON list.

    A perplexity is named after its file; if two files have the same name, after their paths.

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
    # Imported here, because jobs are listed without methods/core.
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
        if entry.file and not entry.is_perplexity:
            raise ValueError(f"task entry {item!r}: file is only for a perplexity")
        idle = [key for key in OF_TASKS if not isinstance(item, str) and key in item]
        if idle and entry.is_perplexity:
            raise ValueError(f"task entry {item!r}: {', '.join(idle)} is not for a perplexity")
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
    """Local files on which the score of an entry depends.

    Args:
        entry: What is scored.
        folders: Of own tasks, in addition to this project's.

    Returns:
        For a perplexity its text. For a task the files that define it in the folders, and its data
        if they are local.
    """
    if entry.is_perplexity:
        return [Path(str(entry.file))]
    files: list[Path] = []
    tasks: list[dict[str, Any]] = []
    for folder in folders:
        more_files, more_tasks = task_files(entry.task, folder)
        files, tasks = files + more_files, tasks + more_tasks
    for keys in tasks or [{}]:
        files += local_files(keys | dict(entry.config))
    return list(dict.fromkeys(files))


def _entry(item: Any) -> TaskEntry:
    """One entry, after a check of its keys and the types of their values."""
    keys: Any = {"task": item} if isinstance(item, str) else item
    if not isinstance(keys, Mapping) or set(keys) - set(KEYS) or "task" not in keys:
        raise ValueError(f"task entry {item!r}: keys are {', '.join(KEYS)}; task is required")
    for key, value in keys.items():
        kind = KEYS[key]
        allowed = (int, float) if kind is float else kind
        if not isinstance(value, allowed) or (kind is not bool and isinstance(value, bool)):
            raise ValueError(f"task entry {item!r}: {key} must be of type {kind.__name__}")
    if not NAME.fullmatch(keys["task"]):
        raise ValueError(
            f"task entry {item!r}: a name is made of letters, digits and _ . : + @ - alone"
        )
    if keys.get("limit", 1) < 1 or keys.get("num_fewshot", 0) < 0:
        raise ValueError(f"task entry {item!r}: limit is at least 1, num_fewshot at least 0")
    config = keys.get("config", {})
    if not isinstance(config.get("dataset_kwargs", {}), Mapping):
        raise ValueError(f"task entry {item!r}: dataset_kwargs must be of type dict")
    if kept := [key for key in NOT_REPLACED if key in config]:
        raise ValueError(
            f"task entry {item!r}: config replaces keys of a task, but not {', '.join(kept)}"
        )
    check_keys(config, f"task entry {item!r}")
    if not 0 <= keys.get("chance", 0) < 1:
        raise ValueError(f"task entry {item!r}: chance is at least 0 and below 1")
    return TaskEntry(**keys)


def _label(word: str) -> str:
    kind, colon, file = word.partition(":")
    return f"{kind}:{Path(file).stem}" if colon and kind == PERPLEXITY else word


def _from_word(word: str, name: str) -> TaskEntry:
    kind, colon, file = word.partition(":")
    if kind == PERPLEXITY and not file:
        raise ValueError(f"--tasks {word} needs a text file: {PERPLEXITY}:FILE")
    return TaskEntry(name, file=file if colon and kind == PERPLEXITY else None)
