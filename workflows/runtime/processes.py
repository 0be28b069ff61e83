"""Several processes for one fit, as torchrun starts them; with one process nothing changes."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from workflows.runtime.devices import claim_device
from workflows.runtime.files import whole_folder


@contextmanager
def process_group(device: str, out: Path) -> Iterator[tuple[str, Path]]:
    """Device and folder of this process.

    Started by torchrun, every process joins the group, takes the GPU of its local rank (or the
    CPU) and only the first writes ``out``; the others get a folder that vanishes.
    """
    import torch
    import torch.distributed as dist

    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        with claim_device(device) as own, whole_folder(out) as folder:
            yield own, folder
        return
    gpu = torch.cuda.is_available() and device != "cpu"
    dist.init_process_group("nccl" if gpu else "gloo")
    wish = f"cuda:{os.environ['LOCAL_RANK']}" if gpu else "cpu"
    target = whole_folder(out) if dist.get_rank() == 0 else tempfile.TemporaryDirectory()
    try:
        with claim_device(wish) as own, target as folder:
            yield own, Path(folder)
    finally:
        dist.destroy_process_group()
