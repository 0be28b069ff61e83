"""Files that a suite names by their paths: inputs of its rules. No torch here.

Paths are relative to the folder in which Snakemake and the steps run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from methods.core.facts import read_fetched
from workflows.evaluation.tasklist import TaskEntry, entry_files, read_entries
from workflows.runtime.contents import SETTINGS_FILES, TOKENIZER_FILES, WEIGHTS_FILES, model_files
from workflows.runtime.files import write_json
from workflows.suite.checks import is_file, is_local, origin
from workflows.suite.job import Job
from workflows.suite.jobs import Suite

# Snakemake writes it into a folder that a rule made; its time is the time of the folder.
STAMP = ".snakemake_timestamp"


def score_files(suite: Suite) -> list[str]:
    """What scores depend on beside the model: texts, files of own tasks, local data."""
    return _of_entries(suite, suite.entries)


def probe_files(suite: Suite) -> list[str]:
    """What a probe made of the tasks depends on: their files, their data, a chat template."""
    tasks = [entry for entry in read_entries(suite.probe_tasks) if not entry.is_perplexity]
    first = next(iter(suite.config["backbones"]))
    return [*_of_entries(suite, tasks), *tokenizer_files(suite, first)]


def task_files(suite: Suite, name: str) -> list[str]:
    """The files that say which data of a task are fetched."""
    return _of_entries(suite, [entry for entry in suite.entries if entry.task == name])


def source_files(suite: Suite, part: str) -> list[str]:
    """The file that a part of the data is prepared from, if it is one."""
    source = str(suite.config["data"][part]["source"])
    return [source] if is_file(part, source) else []


def fit_files(suite: Suite, job: Job) -> list[str]:
    """What a fit depends on: its backbone, and data that the suite gives as token ids (.npy)."""
    ids = [file for file in suite.data_files(job).values() if file.endswith(".npy")]
    return [*backbone_files(suite, job.backbone), *ids]


def backbone_files(suite: Suite, name: str) -> list[str]:
    """The files of a local backbone; the folder of one that a rule prepares."""
    return _of_model(suite, name, *SETTINGS_FILES, *TOKENIZER_FILES, *WEIGHTS_FILES)


def tokenizer_files(suite: Suite, name: str) -> list[str]:
    """The same without weights: what turns texts into tokens."""
    return _of_model(suite, name, *SETTINGS_FILES, *TOKENIZER_FILES)


def origin_files(suite: Suite, name: str) -> list[str]:
    """The file here that a backbone is converted from, if it is one."""
    path = str(suite.config["backbones"][name]["path"])
    return [path.removeprefix("gguf:")] if path.startswith("gguf:") else []


def check_fetched(suite: Suite) -> None:
    """Refuse to fetch a backbone into the folder of another: models of other suites stand on it.

    Raises:
        ValueError: A folder of the suite's name for a backbone holds another one.
    """
    fetched = [
        name for name, spec in suite.config["backbones"].items() if not is_local(spec["path"])
    ]
    for name in fetched:
        asked, note = suite.origins[name], read_fetched(Path(suite.backbone_folder(name)))
        held = origin(note.get("source", asked))
        # Fetched by hand without a hash, it has that of what came.
        came = note.get("wheel", note.get("sha256"))
        if came is not None and asked.get("sha256") == came:
            held["sha256"] = came
        if held != asked:
            raise ValueError(
                f"suite config, backbones.{name}: {suite.backbone_folder(name)} holds "
                f"{_words(held)}, not {_words(asked)}; take another name, or remove the folder"
            )


def restore_check(suite: Suite, checked: Path) -> None:
    """Write a lost ``suite.json``, the file ``checked``, again where there are results.

    Snakemake would make it in a job, and run every job again that waits for that one.
    """
    if not checked.exists() and any(Path(job.folder).is_dir() for job in suite.jobs):
        write_json(checked, dict(suite.config))


def _words(source: Mapping[str, str]) -> str:
    return " ".join(source.values())


def renew_models(suite: Suite) -> None:
    """Make fitted models that were changed by hand, such as healed ones, be scored again.

    Snakemake takes the time of a folder from its stamp in it, which an edit does not touch.
    """
    for folder in (Path(job.model) for job in suite.jobs):
        stamp = folder / STAMP
        if stamp.is_file():
            made_at = stamp.stat().st_mtime_ns
            files = model_files(folder, *SETTINGS_FILES, *TOKENIZER_FILES, *WEIGHTS_FILES)
            if any(file.stat().st_mtime_ns > made_at for file in files):
                stamp.touch()


def _of_model(suite: Suite, name: str, *patterns: str) -> list[str]:
    folder = suite.backbone_folder(name)
    if not is_local(str(suite.config["backbones"][name]["path"])):
        return [folder]
    return [str(file) for file in model_files(Path(folder), *patterns)]


def _of_entries(suite: Suite, entries: Iterable[TaskEntry]) -> list[str]:
    folders = [Path(suite.config["task_folder"])] if "task_folder" in suite.config else []
    files = [str(file) for entry in entries for file in entry_files(entry, folders)]
    return list(dict.fromkeys(files))
