"""The faults: each disturbs a suite that runs, and returns what it did."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from tests.chaos.world import COMMAND, LIMIT, World
from tests.workflow.conftest import copy_checkout, snakemake

# Bytes of addresses; a fit needs 1.1 GB.
TOO_LITTLE = 600_000_000
KILLS = [
    (target, signal.Signals(number))
    for target in ("step", "snakemake", "tree")
    for number in (signal.SIGTERM, signal.SIGKILL)
]


def kill(world: World, target: str, number: signal.Signals, count: int) -> tuple[int, str]:
    """Kill ``count`` times; a run that ends before is compared, and another one starts.

    Returns how often it killed, and what differed.
    """
    done, running = 0, world.start()
    while done < count:
        world.a_moment()
        step = world.a_step(running) if target == "step" else None
        if running.poll() is not None or (target == "step" and step is None):
            at_its_end = running.returncode == 0
            if at_its_end and (wrong := world.differs(world.folder)):
                return done, wrong
            if at_its_end:
                world.reset()
            running = world.start()
            continue
        victims = [step] if step else world.tree(running)[: None if target == "tree" else 1]
        for victim in victims:
            with suppress(psutil.NoSuchProcess):
                victim.send_signal(number)
        done += 1
        if target != "step":
            running.wait(timeout=LIMIT)
            running = world.start()
    running.wait(timeout=LIMIT)
    return done, ""


def read_only(world: World) -> str:
    """Folders become read-only during the run, for root too."""
    drop = "--bounding-set=-dac_override,-dac_read_search,-fowner"
    running = world.start(*(["setpriv", drop] if os.getuid() == 0 else []))
    world.a_moment()
    with _modes(world.results):
        running.wait(timeout=LIMIT)
    return f"folders at mode 0555, exit status {running.returncode}"


@contextmanager
def _modes(folder: Path) -> Iterator[None]:
    folders = [folder, *(f for f in folder.rglob("*") if f.is_dir())]
    for one in folders:
        one.chmod(0o555)
    try:
        yield
    finally:
        for one in folders:
            if one.exists():
                one.chmod(0o755)


def full(world: World) -> str:
    """No file may grow beyond 50 kB, which models exceed; later runs have no limit."""
    running = world.start("prlimit", "--fsize=50000")
    running.wait(timeout=LIMIT)
    return f"prlimit --fsize=50000, exit status {running.returncode}"


def out_of_memory(world: World) -> str:
    """No step gets the memory that torch alone needs; later runs have no limit.

    The limit is set per step, since Snakemake itself needs more.
    """
    running = world.start()
    while running.poll() is None:
        for step in world.steps(running):
            with suppress(psutil.Error):
                step.rlimit(psutil.RLIMIT_AS, (TOO_LITTLE, TOO_LITTLE))
        time.sleep(0.1)
    return f"{TOO_LITTLE / 1e6:.0f} MB of addresses a step, exit status {running.returncode}"


def future(world: World) -> str:
    """All files get the date of tomorrow, as after a clock that was set back.

    Snakemake must say so and do nothing until the files have the date of today
    (workflows/README.md).
    """
    running = world.start()
    world.a_step(running)
    world.a_moment()
    ahead = time.time() + 86400
    files = [*world.results.rglob("*"), *(world.folder / "methods").rglob("*.py")]
    _date(files, ahead)
    running.wait(timeout=LIMIT)
    snakemake(world.folder, "--unlock", *COMMAND)
    status, said = snakemake(world.folder, *COMMAND, timeout=LIMIT)
    if status == 0 or "clock skew" not in said:
        raise AssertionError(f"exit status {status} without a word about the clock")
    _date(files, time.time())
    return f"files touched a day ahead; exit status {status} names the clock; touched again"


def _date(files: Iterable[Path], moment: float) -> None:
    for file in files:
        with suppress(OSError):
            os.utime(file, (moment, moment))


def twice(world: World) -> str:
    """A second call while the first one runs, without unlocking."""
    running = world.start()
    world.a_step(running)
    status, _ = snakemake(world.folder, *COMMAND, timeout=LIMIT)
    running.wait(timeout=LIMIT)
    return f"exit status {running.returncode} of the first, {status} of the second"


def edit_suite(world: World) -> str:
    """The suite gets other rows, seeds and tasks while it runs, then the old ones."""
    running = world.start()
    world.a_step(running)
    world.a_moment()
    world.write_suite({"rows": ["dense", "sleb"], "seeds": [7], "tasks": ["demo_recall"]})
    running.wait(timeout=LIMIT)
    world.write_suite({})
    return f"exit status {running.returncode}"


def freeze(world: World) -> str:
    """A step is stopped for 20 seconds, then continued."""
    running = world.start()
    world.a_moment()
    if step := world.a_step(running):
        step.suspend()
        time.sleep(20)
        step.resume()
    running.wait(timeout=LIMIT)
    return f"20 s, exit status {running.returncode}"


def move(world: World) -> str:
    """Another checkout gets the results of a killed run and continues from them."""
    kill(world, "tree", signal.SIGKILL, 1)
    world.end()
    other = copy_checkout(world.folder.parent / "other")
    shutil.rmtree(other / "results", ignore_errors=True)
    shutil.copytree(world.folder / "results", other / "results")
    shutil.copy2(world.folder / "chaos.yaml", other)
    status, said = snakemake(other, *COMMAND, timeout=LIMIT)
    wrong = " ".join(said.split())[-300:] if status else world.differs(other)
    shutil.rmtree(other)
    if wrong:
        raise AssertionError(wrong)
    return "killed, copied to another folder, ended there"


FAULTS: dict[str, Callable[[World], str]] = {
    "results folder made read-only and back": read_only,
    "no file over 50 kB, as on a full disk": full,
    "memory limited so that fits die": out_of_memory,
    "clock set back": future,
    "two calls at once": twice,
    "suite edited while it runs": edit_suite,
    "step frozen and continued": freeze,
    "results copied elsewhere": move,
}
