"""Several processes for one fit, under torchrun; one process runs without it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

from workflows.runtime.devices import check_device, claim_device, claim_gpus
from workflows.runtime.files import whole_folder


def start_processes(count: int, device: str, step: str) -> int:
    """Run a step in ``count`` processes under torchrun, each with its own GPU or on the CPU.

    This process locks the GPUs until the last of those processes has ended. It passes SIGTERM on. A
    terminal sends SIGINT and SIGHUP to all of them, so this process only waits.

    Args:
        count: Number of processes.
        device: The option ``--device`` of the step.
        step: Module of the step; it gets the arguments of this process.

    Returns:
        The exit status.
    """
    import torch

    check_device(device)
    if ":" in device:
        raise ValueError(f"device '{device}' is one; {count} processes take auto, gpu, cpu or cuda")
    gpu = torch.cuda.is_available() and device != "cpu"
    words = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={count}"]
    # Seconds: enough to finish the current update and write its snapshot.
    words += ["--shutdown-timeout=300"]
    with claim_gpus(count) if gpu else nullcontext(None) as numbers:
        visible = {"CUDA_VISIBLE_DEVICES": ",".join(map(_name, numbers))} if numbers else {}
        group = subprocess.Popen(
            [sys.executable, *words, "-m", step, *sys.argv[1:]], env=os.environ | visible
        )
        before = {
            signal.SIGTERM: signal.signal(signal.SIGTERM, lambda *_: group.terminate()),
            signal.SIGINT: signal.signal(signal.SIGINT, lambda *_: None),
            signal.SIGHUP: signal.signal(signal.SIGHUP, lambda *_: None),
        }
        try:
            return group.wait()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def _name(number: int) -> str:
    """Name of a GPU in CUDA_VISIBLE_DEVICES, from its number in torch."""
    import torch

    return f"GPU-{torch.cuda.get_device_properties(number).uuid}"


@contextmanager
def process_group(device: str, out: Path) -> Iterator[tuple[str, Path]]:
    """Device and output folder of this process, for the length of the block.

    Under torchrun every process joins the group and takes the GPU of its local rank, or the CPU.
    Only the first process writes ``out``; the others get a temporary folder.
    """
    import torch
    import torch.distributed as dist

    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        with claim_device(device) as own, whole_folder(out) as folder:
            print(f"device {own}", flush=True)
            yield own, folder
        return
    check_device(device)
    gpu = torch.cuda.is_available() and device != "cpu"
    dist.init_process_group("nccl" if gpu else "gloo")
    wish = f"cuda:{os.environ['LOCAL_RANK']}" if gpu else "cpu"
    target = whole_folder(out) if dist.get_rank() == 0 else tempfile.TemporaryDirectory()
    try:
        with claim_device(wish) as own, target as folder:
            print(f"device {own} of process {dist.get_rank()}", flush=True)
            yield own, Path(folder)
    finally:
        dist.destroy_process_group()
