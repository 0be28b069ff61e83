"""One device per step: Snakemake counts GPUs but does not say which one is free."""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import islice
from pathlib import Path
from time import sleep


@contextmanager
def claim_device(wish: str) -> Iterator[str]:
    """A torch device for the length of the block.

    A GPU becomes torch's current device, which clocks and memory counters read. ``auto`` takes the
    first GPU whose lock file is free and waits for one while all are claimed, the CPU where there
    is no GPU; steps of one user on one machine see each other's locks. A named device is taken as
    it is.

    Raises:
        ValueError: The device does not exist.
    """
    import torch

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if wish == "auto" and count == 0:
        yield "cpu"
        return
    if wish != "auto":
        if wish != "cpu" and wish not in {"cuda", *(f"cuda:{n}" for n in range(count))}:
            raise ValueError(f"device '{wish}' is unknown (allowed: auto, cpu, cuda, cuda:N)")
        if wish.startswith("cuda") and count == 0:
            raise ValueError(f"device '{wish}' was asked for, but torch sees no GPU")
        if wish.startswith("cuda:"):
            torch.cuda.set_device(wish)
        yield wish
        return
    with claim_gpus(1) as (number,):
        torch.cuda.set_device(number)
        yield f"cuda:{number}"


@contextmanager
def claim_gpus(count: int) -> Iterator[list[int]]:
    """The numbers of so many free GPUs, for the length of the block; waits for all of them at once.

    Lock files bear the device's own identity: its number depends on what a job is shown.

    Raises:
        ValueError: The machine has fewer.
    """
    import torch

    there = torch.cuda.device_count()
    if there < count:
        raise ValueError(f"{count} GPUs are asked for, torch sees {there}")
    folder = Path(tempfile.gettempdir()) / f"skipbench-gpus-{os.getuid()}"
    folder.mkdir(exist_ok=True)
    names = [str(torch.cuda.get_device_properties(number).uuid) for number in range(there)]
    while True:
        with ExitStack() as locks:
            free = (n for n, name in enumerate(names) if _locked(folder / f"{name}.lock", locks))
            held = list(islice(free, count))
            if len(held) == count:
                yield held
                return
        sleep(1)


def _locked(file: Path, locks: ExitStack) -> bool:
    """Whether a lock file was free; it is held until ``locks`` closes."""
    lock = locks.enter_context(file.open("w"))
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
