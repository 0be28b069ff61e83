"""Two gloo processes train to the losses of one."""

from __future__ import annotations

import sys
from datetime import timedelta
from itertools import islice
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from methods.core.data import Document
from methods.core.packing import plan
from tests.training_toys import (
    documents,
    same_bits,
    trainer_for,
    values,
)

# Documents of 50 tokens fill a batch alone, so one of two processes gets nothing.
UNEVEN = [*documents(25), *(Document(list(range(n, n + 50)), 0) for n in range(4))]
SHARED = {"batch_tokens": 50, "row_length": 50, "updates": 8}


def worker(rank: int, folder: Path) -> None:
    """One of two processes; they meet in a file, so no port can be taken."""
    torch.set_num_threads(1)
    meeting = f"file://{folder}/meeting"
    dist.init_process_group(
        "gloo", timeout=timedelta(minutes=2), init_method=meeting, rank=rank, world_size=2
    )
    try:
        trainer = trainer_for("hero", folder / "work", UNEVEN, **SHARED)
        torch.save((trainer.run(), values(trainer)), folder / f"rank{rank}.pt")
    finally:
        dist.destroy_process_group()


def test_two_processes_train_to_the_losses_of_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if sys.platform == "linux":
        monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    sizes = [len(b) for b in islice(plan([len(d.ids) for d in UNEVEN], 50, 5), 8)]
    assert 1 in sizes
    assert any(size % 2 and size > 1 for size in sizes)
    alone = trainer_for("hero", tmp_path / "alone", UNEVEN, **SHARED)
    start = values(alone)
    log = alone.run()
    other = torch.multiprocessing.get_context("spawn").Process(target=worker, args=(1, tmp_path))
    other.start()
    try:
        worker(0, tmp_path)
    finally:
        other.join(60)
    assert other.exitcode == 0
    ranks = [torch.load(tmp_path / f"rank{rank}.pt") for rank in range(2)]
    same_bits(ranks[0][1], ranks[1][1])
    assert ranks[0][0] == ranks[1][0]
    for one, both in zip(log, ranks[0][0], strict=True):
        for key in ("loss", "penalty", "alpha"):
            assert both[key] == pytest.approx(one[key], rel=1e-5, abs=1e-8), (key, one["update"])
        assert both["skip"] == pytest.approx(one["skip"], rel=1e-9)
    moved = max(float((value - start[name]).abs().max()) for name, value in values(alone).items())
    apart = max(
        float((value - ranks[0][1][name]).abs().max()) for name, value in values(alone).items()
    )
    assert apart < 0.01 * moved
