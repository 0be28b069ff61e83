"""Scores of single tasks on disk, and what else is kept by content.

An interrupted evaluation continues with the next task, and a task that is added to a suite is
scored alone. Stored scores are read only if nothing that they depend on has changed: the model, the
batch size, the code, the task's entry, its files and its data.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple
from urllib.parse import quote

import numpy as np
import pandas as pd

from methods.core.jsonfile import read_json
from methods.core.model.ledger import Ledger, Tally
from workflows.evaluation.loading import data_facts
from workflows.evaluation.tasklist import TaskEntry, entry_files
from workflows.runtime.contents import Contents
from workflows.runtime.files import whole_file, write_json

# A file beside the scores: hashes of large files, which need not be read again.
HASHES_FILE = ".contents.json"
# Another one: the distance from the dense model.
FIDELITY_FILE = ".fidelity.json"


def stored_value(
    file: Path, identity: Mapping[str, Any], make: Callable[[], dict[str, Any]]
) -> dict[str, Any]:
    """The value in a file if it was made from the same ``identity``; else made and written there.

    Args:
        file: JSON file: the value, and ``identity`` with it.
        identity: JSON value of everything on which the value depends.
        make: Makes the value.
    """
    # As it is read back: tuples become lists.
    now = json.loads(json.dumps(identity))
    value = read_json(file) if file.is_file() else {}
    if value.get("identity") != now:
        value = {"identity": now, **make()}
        write_json(file, value)
    return value


class TaskScores(NamedTuple):
    """Result of one task.

    Args:
        scores: One mapping per metric.
        items: One row per item and metric.
        tallies: Counted tokens per kind.
    """

    scores: list[dict[str, Any]]
    items: pd.DataFrame
    tallies: dict[str, Tally]


@dataclass(frozen=True)
class ScoreStore:
    """A folder with a JSON file and a Parquet file of items per scored task.

    Args:
        folder: Made with the first task.
        ledger: Of the model.
        identity: JSON value of what every score depends on: model, batch size, code.
        task_folders: Folders of own tasks. Scores depend on what their files and data contain.
        data_folder: What the prepare stage wrote of each task; None: there was no such stage.
        contents: Hashes of files.
    """

    folder: Path
    ledger: Ledger
    identity: Mapping[str, Any]
    task_folders: Sequence[Path] = ()
    data_folder: Path | None = None
    contents: Contents = field(default_factory=Contents)
    # Task -> digest when its scores were looked for, and when that was.
    _digests: dict[str, str] = field(default_factory=dict, init=False)
    _began: dict[str, float] = field(default_factory=dict, init=False)
    # Task -> seconds that an earlier evaluation took for its scores.
    earlier: dict[str, float] = field(default_factory=dict, init=False)

    def read(self, entry: TaskEntry) -> TaskScores | None:
        """The stored scores of an entry; None if there are none or anything has changed."""
        digest = self._digests[entry.task] = self._digest(entry)
        self._began[entry.task] = perf_counter()
        file, frame = self._files(entry)
        if not file.is_file() or not frame.is_file():
            return None
        stored = read_json(file)
        if stored["identity"] != digest:
            return None
        self.earlier[entry.task] = stored["seconds"]
        tallies = {
            kind: Tally(self.ledger, sums["tokens"], np.array(sums["executed"]), sums["squares"])
            for kind, sums in stored["tallies"].items()
        }
        return TaskScores(stored["scores"], pd.read_parquet(frame), tallies)

    def write(self, entry: TaskEntry, result: TaskScores) -> None:
        """Store the scores of an entry.

        Raises:
            ValueError: A file that they depend on has changed since :meth:`read`.
        """
        digest = self._digest(entry)
        if self._digests.get(entry.task, digest) != digest:
            raise ValueError(f"a file of task '{entry.task}' changed while it was scored")
        file, frame = self._files(entry)
        file.unlink(missing_ok=True)
        with whole_file(frame) as temporary:
            result.items.to_parquet(temporary, index=False)
        tallies = {
            kind: {"tokens": t.tokens, "executed": t.executed.tolist(), "squares": t.saved_squares}
            for kind, t in result.tallies.items()
        }
        now = perf_counter()
        seconds = now - self._began.get(entry.task, now)
        # Written last: this file says that the frame beside it is complete.
        value = {"identity": digest, "scores": result.scores, "tallies": tallies}
        write_json(file, value | {"seconds": seconds})
        self.contents.save()

    def _files(self, entry: TaskEntry) -> tuple[Path, Path]:
        name = quote(entry.task, safe=":+ ")
        return self.folder / f"{name}.json", self.folder / f"{name}.parquet"

    def _digest(self, entry: TaskEntry) -> str:
        """Hash over everything that the scores of an entry depend on."""
        local = self.contents.of(entry_files(entry, self.task_folders))
        remote = data_facts(self.data_folder, entry).get("files", [])
        # Whether a task is in the probe changes none of its scores.
        facts = {name: value for name, value in asdict(entry).items() if name != "probe"}
        text = json.dumps([self.identity, facts, local, remote], sort_keys=True, default=dict)
        return hashlib.sha256(text.encode()).hexdigest()
