"""Files that a suite names by their paths, as what its rules wait for; no torch here.

Paths are those of the suite, below the folder in which Snakemake and the steps run.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from workflows.evaluation.tasklist import TaskEntry, entry_files, read_entries
from workflows.runtime.contents import SETTINGS, TOKENIZER, WEIGHTS, model_files
from workflows.suite.config import is_file, is_local
from workflows.suite.job import Job
from workflows.suite.jobs import Suite

# In a folder that a rule made: when it did.
STAMP = ".snakemake_timestamp"


def scored(suite: Suite) -> list[str]:
    """What scores follow from beside the model: texts, files of own tasks, data that are here."""
    return _of_entries(suite, suite.entries)


def probed(suite: Suite) -> list[str]:
    """What a probe that is made of the tasks follows from: their files, data, a chat template."""
    tasks = [entry for entry in read_entries(suite.probed) if not entry.is_perplexity]
    first = next(iter(suite.config["backbones"]))
    return [*_of_entries(suite, tasks), *tokenizer(suite, first)]


def task(suite: Suite, name: str) -> list[str]:
    """What says which data of a task are fetched."""
    return _of_entries(suite, [entry for entry in suite.entries if entry.task == name])


def source(suite: Suite, part: str) -> list[str]:
    """The file that a part of the data is prepared from, if it is one."""
    told = str(suite.config["data"][part]["source"])
    return [told] if is_file(part, told) else []


def fitted(suite: Suite, job: Job) -> list[str]:
    """What a fit follows from: its backbone, and ids that are given to it as they are."""
    ids = [file for file in suite.data_files(job).values() if file.endswith(".npy")]
    return [*backbone(suite, job.backbone), *ids]


def backbone(suite: Suite, name: str) -> list[str]:
    """The files of a local backbone, the folder of a prepared one."""
    return _of_model(suite, name, *SETTINGS, *TOKENIZER, *WEIGHTS)


def origin(suite: Suite, name: str) -> list[str]:
    """The file here that a backbone is converted from, if it is one."""
    path = str(suite.config["backbones"][name]["path"])
    return [path.removeprefix("gguf:")] if path.startswith("gguf:") else []


def tokenizer(suite: Suite, name: str) -> list[str]:
    """The same without weights: what makes tokens of texts."""
    return _of_model(suite, name, *SETTINGS, *TOKENIZER)


def renew_models(suite: Suite) -> None:
    """Let fitted models that were changed by hand, such as healed ones, be scored again.

    Snakemake takes the time of a folder that it made from a file in it, which an edit leaves alone.
    """
    for folder in (Path(job.model) for job in suite.jobs):
        stamp = folder / STAMP
        if stamp.is_file():
            made = stamp.stat().st_mtime_ns
            files = model_files(folder, *SETTINGS, *TOKENIZER, *WEIGHTS)
            if any(file.stat().st_mtime_ns > made for file in files):
                stamp.touch()


def _of_model(suite: Suite, name: str, *patterns: str) -> list[str]:
    folder = suite.backbone_folder(name)
    if not is_local(str(suite.config["backbones"][name]["path"])):
        return [folder]
    return [str(file) for file in model_files(Path(folder), *patterns)]


def _of_entries(suite: Suite, entries: Iterable[TaskEntry]) -> list[str]:
    own = [Path(suite.config["task_folder"])] if "task_folder" in suite.config else []
    found = [str(file) for entry in entries for file in entry_files(entry, own)]
    return list(dict.fromkeys(found))
