"""Scores of single tasks on disk, so that a cut evaluation goes on and a new task scores alone."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pandas as pd

from methods.core.jsonfile import read_json, write_json
from methods.core.model.ledger import Ledger, Tally
from workflows.evaluation.loading import prepared
from workflows.evaluation.tasklist import TaskEntry, entry_files
from workflows.runtime.contents import Contents
from workflows.runtime.files import whole_file

# Beside the scores: hashes of large files that need not be read again.
KNOWN = ".contents.json"


@dataclass(frozen=True)
class KeptTasks:
    """A folder with one JSON file and one frame of items per scored task.

    Args:
        folder: Made when the first task is kept.
        ledger: Of the model.
        identity: JSON value; what every score depends on: model, batch size, code.
        task_folders: Folders of own tasks; their files and data are known by what they hold.
        task_data: What the prepare stage left of each task; None: there was no such stage.
        contents: Hashes of files.
    """

    folder: Path
    ledger: Ledger
    identity: Mapping[str, Any]
    task_folders: Sequence[Path] = ()
    task_data: Path | None = None
    contents: Contents = field(default_factory=Contents)
    _asked: dict[str, str] = field(default_factory=dict, init=False)

    def read(
        self, entry: TaskEntry
    ) -> tuple[list[dict[str, Any]], pd.DataFrame, dict[str, Tally]] | None:
        """Scores, items and tallies of an entry; None unless they are of this very evaluation."""
        digest = self._asked[entry.task] = self._digest(entry)
        file, frame = self._files(entry)
        if not file.is_file() or not frame.is_file():
            return None
        held = read_json(file)
        if held["identity"] != digest:
            return None
        tallies = {
            kind: Tally(self.ledger, told["tokens"], np.array(told["executed"]), told["squares"])
            for kind, told in held["tallies"].items()
        }
        return held["scores"], pd.read_parquet(frame), tallies

    def write(
        self,
        entry: TaskEntry,
        scores: list[dict[str, Any]],
        items: pd.DataFrame,
        tallies: Mapping[str, Tally],
    ) -> None:
        """Keep an entry's scores; the file that :meth:`read` trusts appears last.

        Raises:
            ValueError: A file that they follow from is another than when :meth:`read` was asked.
        """
        digest = self._digest(entry)
        if self._asked.get(entry.task, digest) != digest:
            raise ValueError(f"a file of task '{entry.task}' changed while it was scored")
        file, frame = self._files(entry)
        with whole_file(frame) as temporary:
            items.to_parquet(temporary, index=False)
        told = {
            kind: {"tokens": t.tokens, "executed": t.executed.tolist(), "squares": t.saved_squares}
            for kind, t in tallies.items()
        }
        held = {"identity": digest, "scores": scores, "tallies": told}
        with whole_file(file) as temporary:
            write_json(temporary, held)
        self.contents.save()

    def _files(self, entry: TaskEntry) -> tuple[Path, Path]:
        name = quote(entry.task, safe=":+ ")
        return self.folder / f"{name}.json", self.folder / f"{name}.parquet"

    def _digest(self, entry: TaskEntry) -> str:
        here = self.contents.of(entry_files(entry, self.task_folders))
        fetched = prepared(self.task_data, entry).get("files", [])
        told = [self.identity, asdict(entry), here, fetched]
        text = json.dumps(told, sort_keys=True, default=dict)
        return hashlib.sha256(text.encode()).hexdigest()
