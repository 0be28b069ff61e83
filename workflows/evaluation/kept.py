"""Scores of single tasks on disk, so that a cut evaluation goes on and a new task scores alone."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from methods.core.checkpoint import write_json
from methods.core.jsonfile import read_json
from methods.core.ledger import Ledger, Tally
from workflows.evaluation.tasklist import TaskEntry
from workflows.runtime.files import whole_file


@dataclass(frozen=True)
class KeptTasks:
    """A folder with one JSON file and one frame of items per scored task.

    Args:
        folder: Made when the first task is kept.
        ledger: Of the model.
        identity: JSON value; all beside its entry that a score depends on: model, batch size, code.
    """

    folder: Path
    ledger: Ledger
    identity: Mapping[str, Any]

    def read(
        self, entry: TaskEntry
    ) -> tuple[list[dict[str, Any]], pd.DataFrame, dict[str, Tally]] | None:
        """Scores, items and tallies of an entry; None unless they are of this very evaluation."""
        file, frame = self._files(entry)
        if not file.is_file() or not frame.is_file():
            return None
        held = read_json(file)
        if held["identity"] != self._digest(entry):
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
        """Keep an entry's scores; the file that :meth:`read` trusts appears last."""
        file, frame = self._files(entry)
        with whole_file(frame) as temporary:
            items.to_parquet(temporary, index=False)
        told = {
            kind: {"tokens": t.tokens, "executed": t.executed.tolist(), "squares": t.saved_squares}
            for kind, t in tallies.items()
        }
        held = {"identity": self._digest(entry), "scores": scores, "tallies": told}
        with whole_file(file) as temporary:
            write_json(temporary, held)

    def _files(self, entry: TaskEntry) -> tuple[Path, Path]:
        name = entry.task.replace("/", "_")
        return self.folder / f"{name}.json", self.folder / f"{name}.parquet"

    def _digest(self, entry: TaskEntry) -> str:
        told = json.dumps([self.identity, asdict(entry)], sort_keys=True, default=dict)
        return hashlib.sha256(told.encode()).hexdigest()
