"""A small suite in a copy of the checkout, and its comparison with an undisturbed run."""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pandas as pd
import psutil
import yaml

from tests.workflow.conftest import copy_checkout, environment, records, snakemake

SUITE = {
    "suite": "chaos",
    "backbones": {"demo": {"path": "workflows/demo/backbone"}},
    "rows": ["dense", "shortgpt", "hero"],
    "budgets": [0.25],
    "seeds": [42],
    "tasks": [{"task": "demo_recall", "limit": 24}, {"task": "demo_arithmetic", "limit": 12}],
    "max_length": 256,
    # A snapshot every second, so that a killed training continues from one.
    "training": {"updates": 60, "batch_tokens": 512, "row_length": 64, "snapshot_minutes": 0.02},
    "data": {
        part: {"source": "demo", "rows": rows}
        for part, rows in {
            "training": 2000,
            "validation": 64,
            "probe": 64,
            "calibration": 32,
        }.items()
    },
}
RUNS = [
    f"results/chaos/demo/{run}/s42/record.json" for run in ("dense/b0", "shortgpt/b25", "hero/b25")
]
SUITE_FILE = ("--cores", "2", "--configfile", "chaos.yaml")
# Only the records: tables follow from them.
COMMAND = (*RUNS, *SUITE_FILE)
# Seconds for a run, and tries to reach the end.
LIMIT, TRIES = 3600, 4


class World:
    """A copy of the checkout with the suite, and the results of an undisturbed run.

    Args:
        folder: Where the copy is made.
        dice: Chooses moments and victims.
    """

    def __init__(self, folder: Path, dice: random.Random) -> None:
        self.folder, self.dice = copy_checkout(folder), dice
        self.processes: list[psutil.Process] = []
        self.write_suite({})
        self.start_state, self.reference = folder.parent / "prepared", folder.parent / "reference"
        self.must("prepare", *SUITE_FILE)
        shutil.copytree(self.results, self.start_state)
        start = time.monotonic()
        self.must(*COMMAND)
        self.seconds = time.monotonic() - start
        shutil.copytree(folder / "results", self.reference / "results")

    @property
    def results(self) -> Path:
        """The folder of the suite's results."""
        return self.folder / "results" / "chaos"

    def must(self, *arguments: str) -> None:
        """Run Snakemake, which must succeed."""
        status, said = snakemake(self.folder, *arguments, timeout=LIMIT)
        assert status == 0, said[-4000:]

    def write_suite(self, changes: dict[str, object]) -> None:
        """Write the suite's file with ``changes``."""
        (self.folder / "chaos.yaml").write_text(yaml.safe_dump(SUITE | changes), encoding="utf-8")

    def reset(self) -> None:
        """Go back to the state with prepared data only."""
        self.end()
        shutil.rmtree(self.results, ignore_errors=True)
        shutil.copytree(self.start_state, self.results)
        self.write_suite({})

    def start(self, *before: str) -> subprocess.Popen[bytes]:
        """Unlock, then run the suite, as `make demo` does; ``before`` precedes the command."""
        snakemake(self.folder, "--unlock", *COMMAND)
        running = subprocess.Popen(
            [*before, sys.executable, "-m", "snakemake", *COMMAND],
            cwd=self.folder, env=environment(), start_new_session=True,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        self.processes.append(psutil.Process(running.pid))
        return running

    def tree(self, running: subprocess.Popen[bytes]) -> list[psutil.Process]:
        """Snakemake and all its children, which ``end`` waits for even if Snakemake died."""
        with suppress(psutil.NoSuchProcess):
            parent = psutil.Process(running.pid)
            tree = [parent, *parent.children(recursive=True)]
            self.processes += [one for one in tree if one not in self.processes]
            return tree
        return []

    def steps(self, running: subprocess.Popen[bytes]) -> list[psutil.Process]:
        """The steps that run now."""
        steps = []
        for one in self.tree(running):
            with suppress(psutil.Error):
                words = one.cmdline()
                if len(words) > 2 and words[1] == "-m" and words[2].startswith("workflows.steps."):
                    steps.append(one)
        return steps

    def a_moment(self) -> None:
        """Wait, at most a quarter of the time of the undisturbed run."""
        time.sleep(self.dice.uniform(0.3, self.seconds / 4))

    def a_step(self, running: subprocess.Popen[bytes]) -> psutil.Process | None:
        """A step, as soon as one runs; None if the run ended before."""
        while running.poll() is None:
            if steps := self.steps(running):
                return self.dice.choice(steps)
            time.sleep(0.05)
        return None

    def end(self) -> None:
        """Wait for processes of earlier runs, and kill those that do not end."""
        _, alive = psutil.wait_procs(self.processes, timeout=120)
        for one in alive:
            with suppress(psutil.NoSuchProcess):
                one.kill()
        self.processes = []

    def finish(self) -> tuple[int, str]:
        """Run until all is done; returns how many runs that took, and what differs then."""
        for tries in range(1, TRIES + 1):
            snakemake(self.folder, "--unlock", *COMMAND)
            status, said = snakemake(self.folder, *COMMAND, timeout=LIMIT)
            if status == 0:
                return tries, self.differs(self.folder)
        return TRIES, "does not end: " + " ".join(said.split())[-300:]

    def differs(self, folder: Path) -> str:
        """What of a finished folder differs from the undisturbed run; empty if nothing does."""
        own, expected = records(folder, "chaos"), records(self.reference, "chaos")
        wrong = [name for name in sorted(own | expected) if own.get(name) != expected.get(name)]
        for name in expected:
            for end in (".items.parquet", ".decisions.json"):
                here, there = ((f / name).with_suffix(end) for f in (folder, self.reference))
                if there.is_file() and not _equal(here, there):
                    wrong.append(str(here.relative_to(folder)))
        extra = [f for end in ("part", "status") for f in (folder / "results").rglob(f"*.{end}")]
        return ", ".join([*wrong, *(f"left over: {f.relative_to(folder)}" for f in extra)])


def _equal(here: Path, there: Path) -> bool:
    if not here.is_file():
        return False
    if here.suffix == ".parquet":
        return bool(pd.read_parquet(here).equals(pd.read_parquet(there)))
    return here.read_bytes() == there.read_bytes()
