"""A reduced demo through ``profiles/slurm`` on a cluster of this machine: ``make slurm``."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.workflow.conftest import copy_checkout, environment, records, wait_for

pytestmark = pytest.mark.slurm

CLUSTER = Path(__file__).parents[1] / "slurm" / "cluster.sh"
# Each kind of row; a job asks for an accelerator, which the cluster has in name only.
REDUCED = {
    "rows": ["dense", "random-skip", "shortgpt", "hero"],
    "tasks": [{"task": "demo_boolean", "limit": 8}, {"task": "demo_arithmetic", "limit": 4}],
    "noise_batch_sizes": [],
    "training": {"updates": 20},
    "data": {
        "training": {"rows": 600},
        "validation": {"rows": 40},
        "probe": {"rows": 40},
        "calibration": {"rows": 32},
    },
    "resources": {"gpu": 1},
}
SUITE = ("--configfile", "workflows/suites/demo.yaml", "reduced.yaml")
SLURM = ("--profile", "profiles/slurm", "--slurm-init-seconds-before-status-checks", "2")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of a cluster that runs; skips where none can be started."""
    if missing := [name for name in ("munged", "slurmctld", "slurmd") if not found(name)]:
        pytest.skip(f"{', '.join(missing)} not installed (Debian: slurm-wlm, munge)")
    folder = tmp_path_factory.mktemp("cluster")
    started = subprocess.run([CLUSTER, "up", folder], capture_output=True, text=True)
    if started.returncode:
        pytest.skip(started.stderr.strip())
    yield folder
    subprocess.run([CLUSTER, "down", folder], check=True)


def found(name: str) -> str | None:
    return shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin:/sbin")


def start(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    """Snakemake on the reduced demo in a copy of the checkout."""
    copy_checkout(folder)
    (folder / "reduced.yaml").write_text(yaml.safe_dump(REDUCED), encoding="utf-8")
    return subprocess.Popen(
        [sys.executable, "-m", "snakemake", *arguments, *SUITE],
        cwd=folder,
        env=environment() | {"SKIPBENCH_CPU": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def finish(process: subprocess.Popen[str]) -> None:
    said, _ = process.communicate(timeout=1200)
    assert process.returncode == 0, said[-4000:]


def jobs(state: str) -> dict[str, str]:
    """Job id -> its comment, which names rule and wildcards."""
    told = ["squeue", "--noheader", f"--states={state}", "--format=%i %k"]
    listed = subprocess.run(told, capture_output=True, text=True)
    lines = (line.partition(" ") for line in listed.stdout.splitlines())
    return {number: comment for number, _, comment in lines}


class Settled:
    """Whether a job runs and the controller's file holds all that it knows.

    It writes every few seconds; a job whose end is lost with it counts as running until SLURM looks
    for it again.
    """

    def __init__(self, cluster: Path) -> None:
        self.file, self.listed, self.since = cluster / "state/job_state", {}, time.time()

    def __call__(self) -> bool:
        listed = {state: jobs(state) for state in ("PD", "R", "CG", "CD", "CA")}
        if listed != self.listed:
            self.listed, self.since = listed, time.time()
        return bool(listed["R"]) and self.file.stat().st_mtime > self.since


def test_a_suite_ends_with_the_same_records_though_a_job_and_the_controller_are_killed(
    cluster: Path, tmp_path: Path
) -> None:
    finish(start(tmp_path / "here", "--cores", "2"))

    process = start(tmp_path / "there", *SLURM)
    running = wait_for(lambda: [j for j, of in jobs("R").items() if "hero" in of], process)
    subprocess.run(["scancel", running[0]], check=True)
    wait_for(lambda: running[0] in jobs("CA"), process)
    wait_for(Settled(cluster), process)
    os.kill(int((cluster / "run/slurmctld.pid").read_text()), signal.SIGKILL)
    time.sleep(5)
    subprocess.run([CLUSTER, "controller", cluster], check=True)
    finish(process)

    there = records(tmp_path / "there", "demo")
    assert there == records(tmp_path / "here", "demo")
    assert len(there) == len(REDUCED["rows"])
    assert (tmp_path / "there/reports/demo/index.html").is_file()

    told = subprocess.run(["scontrol", "show", "job", "-o"], capture_output=True, text=True)
    ended = [dict(w.partition("=")[::2] for w in j.split()) for j in told.stdout.splitlines()]
    assert {job["JobState"] for job in ended} <= {"COMPLETED", "CANCELLED"}
    assert {job["Partition"] for job in ended} == {"main"}
    asked = {job["Comment"].split("_")[1]: job.get("TresPerJob") for job in ended}
    assert asked["fit"] == asked["score"] == "gres:gpu:1"
    # What a job said lies where its rule says, what SLURM said beside Snakemake's own logs.
    logs = list((tmp_path / "there/results/demo/logs").rglob("fit.log"))
    assert len(logs) == len(REDUCED["rows"])
