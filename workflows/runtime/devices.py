"""One device per step: Snakemake counts GPUs but does not say which one is free."""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import cycle
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
    folder = Path(tempfile.gettempdir()) / f"skipbench-gpus-{os.getuid()}"
    folder.mkdir(exist_ok=True)
    for number in cycle(range(count)):
        with (folder / f"{number}.lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                sleep(1)
                continue
            torch.cuda.set_device(number)
            yield f"cuda:{number}"
            return
