"""The commands that make a record again."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from methods.core.jsonfile import read_json
from workflows.records.archive import ARCHIVE
from workflows.report.places import suite_files
from workflows.report.results import Results
from workflows.runtime.errors import sentence
from workflows.suite import commands
from workflows.suite.job import Job
from workflows.suite.jobs import Suite, read_suite


@dataclass(frozen=True)
class RepeatCommands:
    """Commands that make the runs of a results folder again.

    Args:
        suites: Those that made the folder and can be read here, each with its file; the last first.
        results: Of the folder.
        reason: Why no suite, or one of them, cannot be read.
    """

    suites: Sequence[tuple[Suite, Path]]
    results: Results
    reason: str

    @classmethod
    def of(cls, results: Results) -> RepeatCommands:
        """For the suites that made a folder."""
        suites, reason = [], "its own is not there"
        for file in reversed(suite_files(results.folder)):
            try:
                suites.append((read_suite(read_json(file)), file))
            except (ValueError, KeyError) as error:
                reason = sentence(error)
        return cls(suites, results, reason)

    def of_file(self, file: Path) -> dict[str, str]:
        """The command that scores the model of a record, if the suite keeps it, and the one that
        fits and scores it.

        Without a suite, one entry that says why.
        """
        *_, backbone, row, label, seed, _ = file.parts
        for suite, config in self.suites:
            try:
                job = suite.find(backbone, row, label, seed)
            except KeyError:
                continue
            kept = {"command": _score(suite, job)} if suite.keeps(suite.groups[job.row]) else {}
            return {**kept, "command, fit": self._fit(suite, job, config)}
        reason = f"{self.results.place} has no suite with it" if self.suites else self.reason
        return {"command": f"no suite here makes this run ({reason}); see its record"}

    def _fit(self, suite: Suite, job: Job, config: Path) -> str:
        """The command that fits and scores; of packed results the suite is taken out first."""
        place, folder, first = Path(self.results.place), Path("results", suite.name), ""
        member = config.relative_to(self.results.folder)
        if place != self.results.folder:
            archive = place / ARCHIVE if place.is_dir() else place
            words = ["tar", "-xJf", str(archive), "-C", str(folder), str(member)]
            first = f"mkdir -p {folder} && {shlex.join(words)} && "
        words = ["snakemake", "--cores", "1", "--configfile", str(folder / member)]
        words += ["--forcerun", f"{job.folder}/model", "--", f"{job.folder}/record.json"]
        return first + shlex.join(words)


def _score(suite: Suite, job: Job) -> str:
    """The command of the score rule."""
    return (
        f"python -m workflows.steps.score --model {job.folder}/model --tasks "
        f"{shlex.quote(suite.tasks_json)} {commands.score(suite, job)} "
        f"--task-data results/{suite.name}/tasks --device {suite.device} --threads 1 "
        f"--out {job.folder}/record.json"
    )
