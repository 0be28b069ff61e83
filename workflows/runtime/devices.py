"""One device per step: Snakemake counts GPUs but does not say which one is free."""

from __future__ import annotations

import fcntl
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import islice
from pathlib import Path
from time import sleep

# Variable of the environment: set, a suite's ``gpu`` is the CPU.
ON_CPU = "SKIPBENCH_CPU"


def device_name(wish: str) -> str:
    """The option ``--device``: a suite's ``gpu`` is the CPU where the environment says so."""
    return "cpu" if wish == "gpu" and os.environ.get(ON_CPU) else wish


@contextmanager
def claim_device(wish: str) -> Iterator[str]:
    """A torch device for the length of the block.

    ``gpu`` takes the first GPU whose lock file is free. If all are locked it waits. ``auto`` is
    ``gpu``, or the CPU of a machine without one. All steps of one user on one machine use the same
    locks. Any other device is taken without a lock. A GPU becomes torch's current device, because
    clocks and memory counters read that one.

    Raises:
        ValueError: The device does not exist.
    """
    import torch

    check_device(wish)
    if wish == "auto" and gpu_count() == 0:
        yield "cpu"
        return
    if wish not in ("auto", "gpu"):
        if wish.startswith("cuda"):
            torch.cuda.set_device(wish if ":" in wish else torch.cuda.current_device())
        yield wish
        return
    with claim_gpus(1) as (number,):
        torch.cuda.set_device(number)
        yield f"cuda:{number}"


def gpu_count() -> int:
    """How many GPUs torch sees."""
    import torch

    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def check_device(wish: str) -> None:
    """Refuse a device that is unknown or not here.

    Raises:
        ValueError: It is one.
    """
    import torch

    count = gpu_count()
    if wish not in {"auto", "gpu", "cpu", "cuda", *(f"cuda:{n}" for n in range(count))}:
        raise ValueError(f"device '{wish}' is unknown (allowed: auto, gpu, cpu, cuda, cuda:N)")
    if wish not in ("auto", "cpu") and count == 0:
        why = "" if torch.version.cuda else f" (torch {torch.__version__} is a build without CUDA)"
        other = f"; {ON_CPU}=1 runs it on the CPU" if wish == "gpu" else ""
        raise ValueError(f"device '{wish}' was asked for, but torch sees no GPU{why}{other}")


@contextmanager
def claim_gpus(count: int) -> Iterator[list[int]]:
    """Numbers of free GPUs, for the length of the block; waits until enough are free at once.

    A lock file is named after the GPU's UUID: its number depends on which GPUs a job can see.

    Raises:
        ValueError: The machine has fewer GPUs, or the folder of the locks is not the user's own.
    """
    import torch

    total = torch.cuda.device_count()
    if total < count:
        raise ValueError(f"{count} GPUs are asked for, torch sees {total}")
    folder = _own_folder(Path(tempfile.gettempdir()) / f"skipbench-gpus-{os.getuid()}")
    names = [str(torch.cuda.get_device_properties(number).uuid) for number in range(total)]
    while True:
        with ExitStack() as locks:
            free = (n for n, name in enumerate(names) if _lock(folder / f"{name}.lock", locks))
            numbers = list(islice(free, count))
            if len(numbers) == count:
                yield numbers
                return
        sleep(1)


def _own_folder(folder: Path) -> Path:
    """The folder, made if it is not there: others may have made it first in a shared place.

    Raises:
        ValueError: It is a link, a file, or of another user.
    """
    folder.mkdir(mode=0o700, exist_ok=True)
    facts = folder.lstat()
    if not stat.S_ISDIR(facts.st_mode) or facts.st_uid != os.getuid():
        raise ValueError(f"{folder}, for the locks of GPUs, must be a folder of this user's own")
    return folder


def _lock(file: Path, locks: ExitStack) -> bool:
    """Lock a file until ``locks`` closes; False if another process has locked it."""
    # A lock needs a file that can be written (NFS); it is neither followed nor emptied.
    lock = os.open(file, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    locks.callback(os.close, lock)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
