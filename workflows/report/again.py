"""The commands that make a record again."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path

from workflows.report.places import read_suite_file
from workflows.runtime.errors import sentence
from workflows.suite import commands
from workflows.suite.jobs import Suite, read_suite


@dataclass(frozen=True)
class Again:
    """Commands that make the runs of a results folder again.

    Args:
        suite: The suite of the folder; None where it cannot be read here.
        reason: Why it cannot.
    """

    suite: Suite | None
    reason: str = ""

    @classmethod
    def of(cls, folder: Path) -> Again:
        """For the suite of a folder, from its suite.json."""
        try:
            return cls(read_suite(read_suite_file(folder)))
        except (ValueError, KeyError) as error:
            return cls(None, sentence(error))

    def of_file(self, file: Path) -> dict[str, str]:
        """The command that scores the model of a record, and the one that fits and scores it."""
        *_, backbone, row, label, seed, _ = file.parts
        if self.suite is None:
            return self._none(self.reason)
        try:
            job = self.suite.find(backbone, row, label, seed)
        except (ValueError, KeyError) as error:
            return self._none(sentence(error))
        record, model = f"{job.folder}/record.json", f"{job.folder}/model"
        config = f"results/{self.suite.name}/suite.json"
        again = ["snakemake", "--cores", "1", "--configfile", config, "--forcerun", model]
        score = (
            f"python -m workflows.steps.score --model {model} --tasks "
            f"{shlex.quote(self.suite.tasks_json)} {commands.score(self.suite, job)} "
            f"--out {record}"
        )
        return {
            "command": score,
            "command, fit": shlex.join([*again, "--", record]),
        }

    def _none(self, reason: str) -> dict[str, str]:
        return {"command": f"no suite here makes this run ({reason}); see its record"}
