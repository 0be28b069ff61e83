"""A small suite in a copy of the checkout: started, ended, held against an undisturbed run."""

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
    # A snapshot every second: a kill within training continues from one.
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
# The records; tables follow from them alone.
COMMAND = (*RUNS, *SUITE_FILE)
# Seconds that anything may take, and tries to reach the end.
LIMIT, TRIES = 3600, 4


class World:
    """A copy of the checkout with the suite, and what the undisturbed run left.

    Args:
        folder: The copy, made here.
        dice: Draws all moments and victims.
    """

    def __init__(self, folder: Path, dice: random.Random) -> None:
        self.folder, self.dice = copy_checkout(folder), dice
        self.started: list[psutil.Process] = []
        self.write_suite({})
        self.prepared, self.reference = folder.parent / "prepared", folder.parent / "reference"
        self.must("prepare", *SUITE_FILE)
        shutil.copytree(self.results, self.prepared)
        began = time.monotonic()
        self.must(*COMMAND)
        self.seconds = time.monotonic() - began
        shutil.copytree(folder / "results", self.reference / "results")

    @property
    def results(self) -> Path:
        """Of the suite."""
        return self.folder / "results" / "chaos"

    def must(self, *arguments: str) -> None:
        """Snakemake without a fault."""
        status, said = snakemake(self.folder, *arguments, timeout=LIMIT)
        assert status == 0, said[-4000:]

    def write_suite(self, changes: dict[str, object]) -> None:
        """The suite, as it is or edited."""
        (self.folder / "chaos.yaml").write_text(yaml.safe_dump(SUITE | changes), encoding="utf-8")

    def reset(self) -> None:
        """Back to prepared data and nothing else."""
        self.end()
        shutil.rmtree(self.results, ignore_errors=True)
        shutil.copytree(self.prepared, self.results)
        self.write_suite({})

    def start(self, *before: str) -> subprocess.Popen[bytes]:
        """Unlock, then run the suite, as `make demo` does; ``before`` goes in front."""
        snakemake(self.folder, "--unlock", *COMMAND)
        running = subprocess.Popen(
            [*before, sys.executable, "-m", "snakemake", *COMMAND],
            cwd=self.folder, env=environment(), start_new_session=True,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        self.started.append(psutil.Process(running.pid))
        return running

    def tree(self, running: subprocess.Popen[bytes]) -> list[psutil.Process]:
        """Snakemake and all below it; remembered, since the children of a dead one are nobody's."""
        with suppress(psutil.NoSuchProcess):
            above = psutil.Process(running.pid)
            found = [above, *above.children(recursive=True)]
            self.started += [one for one in found if one not in self.started]
            return found
        return []

    def steps(self, running: subprocess.Popen[bytes]) -> list[psutil.Process]:
        """The steps that run now."""
        found = []
        for one in self.tree(running):
            with suppress(psutil.Error):
                words = one.cmdline()
                if len(words) > 2 and words[1] == "-m" and words[2].startswith("workflows.steps."):
                    found.append(one)
        return found

    def a_moment(self) -> None:
        """Wait up to a quarter of what the undisturbed run took."""
        time.sleep(self.dice.uniform(0.3, self.seconds / 4))

    def a_step(self, running: subprocess.Popen[bytes]) -> psutil.Process | None:
        """A step, as soon as one runs; None where the run ended before."""
        while running.poll() is None:
            if found := self.steps(running):
                return self.dice.choice(found)
            time.sleep(0.05)
        return None

    def end(self) -> None:
        """Wait for what still runs of earlier starts, then end it."""
        _, alive = psutil.wait_procs(self.started, timeout=120)
        for one in alive:
            with suppress(psutil.NoSuchProcess):
                one.kill()
        self.started = []

    def finish(self) -> tuple[int, str]:
        """Run until nothing is left to do: how many starts that took, and what differs then."""
        for tries in range(1, TRIES + 1):
            snakemake(self.folder, "--unlock", *COMMAND)
            status, said = snakemake(self.folder, *COMMAND, timeout=LIMIT)
            if status == 0:
                return tries, self.differs(self.folder)
        return TRIES, "does not end: " + " ".join(said.split())[-300:]

    def differs(self, folder: Path) -> str:
        """What of a finished folder is not as the undisturbed run left it; empty if all is."""
        found, wanted = records(folder, "chaos"), records(self.reference, "chaos")
        wrong = [name for name in sorted(found | wanted) if found.get(name) != wanted.get(name)]
        for name in wanted:
            for end in (".items.parquet", ".decisions.json"):
                here, there = ((f / name).with_suffix(end) for f in (folder, self.reference))
                if there.is_file() and not _equal(here, there):
                    wrong.append(str(here.relative_to(folder)))
        left = [f for end in ("part", "status") for f in (folder / "results").rglob(f"*.{end}")]
        return ", ".join([*wrong, *(f"left over: {f.relative_to(folder)}" for f in left)])


def _equal(here: Path, there: Path) -> bool:
    if not here.is_file():
        return False
    if here.suffix == ".parquet":
        return bool(pd.read_parquet(here).equals(pd.read_parquet(there)))
    return here.read_bytes() == there.read_bytes()
