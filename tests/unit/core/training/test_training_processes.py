"""Two gloo processes train to the losses of one."""

from __future__ import annotations

import signal
import sys
from datetime import timedelta
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from methods import load_method, skipgpt
from methods.base import Request
from methods.core.data import Document
from methods.core.routing.gates import hashed_noise
from methods.core.routing.router import Context, Tokens
from methods.core.training.interruption import Interrupted
from methods.core.training.packing import document_batches, pack
from tests.toys.models import make_model, wrap
from tests.toys.texts import documents
from tests.toys.training import SHORT, same_bits, signal_in, trainer_for, values

# A document of 50 tokens fills a batch and its one row, so that one of two processes gets nothing.
UNEVEN = [*documents(25), *(Document(list(range(n, n + 50)), 0) for n in range(4))]
SHARED = {"batch_tokens": 50, "row_length": 20, "updates": 8}
# Log, trained values before, trained values after.
Run = tuple[list[dict[str, float]], dict[str, Tensor], dict[str, Tensor]]


def train_hero(workdir: Path) -> Run:
    trainer = trainer_for("hero", workdir, UNEVEN, **SHARED)
    start = values(trainer)
    return trainer.run(), start, values(trainer)


def train_split(workdir: Path) -> Run:
    """Updates of several passes, of which one process may have fewer."""
    trainer = trainer_for("hero", workdir, UNEVEN, micro_tokens=20, **SHARED)
    start = values(trainer)
    return trainer.run(), start, values(trainer)


def train_stopped(workdir: Path) -> Run:
    """Of two processes the second gets SIGTERM in its third update; then both continue."""
    start = values(trainer_for("hero", workdir, UNEVEN, **SHARED))
    if dist.is_initialized():
        with pytest.MonkeyPatch.context() as patch:
            if dist.get_rank():
                signal_in(patch, 2, signal.SIGTERM)
            with pytest.raises(Interrupted, match="snapshot after update 3 continues"):
                trainer_for("hero", workdir, UNEVEN, **SHARED).run()
    trainer = trainer_for("hero", workdir, UNEVEN, **SHARED)
    return trainer.run(), start, values(trainer)


class Texts:
    """The data of a fit."""

    def training(self) -> list[Document]:
        return UNEVEN


def noise(units: int, tokens: Tokens, at: Context) -> Tensor:
    """Training noise that depends on the token and not on its process."""
    seed = round(1000 * at.progress)
    return hashed_noise(seed, units, tokens)


def train_skipgpt(workdir: Path) -> Run:
    """About half of all modules start skipped, so that gates lie on both sides of 0.5."""
    params = {"sparsity": 0.5, "measure": "module"}
    method = load_method("skipgpt-rt", SHORT | SHARED | params)
    start = method.build(wrap(make_model()), {"seed": 5, "threshold": 0.5})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(skipgpt, "logistic_noise", noise)
        fitted = method.fit(wrap(make_model()), Texts(), Request(None, 5, workdir))
    before, after = (
        {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}
        for model in (start, fitted.model)
    )
    return fitted.decisions["training"], before, after


TRAIN: dict[str, Any] = {
    "hero": train_hero, "split": train_split, "stopped": train_stopped, "skipgpt-rt": train_skipgpt,
}  # fmt: skip


def worker(rank: int, threads: int, folder: Path) -> None:
    """One of two processes; they meet in files, so they need no port."""
    torch.set_num_threads(threads)
    for row, train in TRAIN.items():
        place = folder / row
        dist.init_process_group(
            "gloo", timeout=timedelta(minutes=2), init_method=f"file://{place}/meeting", rank=rank,
            world_size=2,
        )  # fmt: skip
        try:
            torch.save(train(place / "work"), place / f"rank{rank}.pt")
        finally:
            dist.destroy_process_group()


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Run]]:
    """Row -> the runs of both processes, which train one row after the other."""
    folder = tmp_path_factory.mktemp("two")
    for row in TRAIN:
        (folder / row).mkdir()
    shared = (torch.get_num_threads(), folder)
    with pytest.MonkeyPatch.context() as patch:
        if sys.platform == "linux":
            patch.setenv("GLOO_SOCKET_IFNAME", "lo")
        other = torch.multiprocessing.get_context("spawn").Process(target=worker, args=(1, *shared))
        other.start()
        try:
            worker(0, *shared)
        finally:
            other.join(60)
    assert other.exitcode == 0
    return {row: [torch.load(folder / row / f"rank{n}.pt") for n in range(2)] for row in TRAIN}


def test_the_batches_leave_one_process_with_less() -> None:
    batches = islice(document_batches([len(d.ids) for d in UNEVEN], 50, 5), 8)
    rows = [len(pack([UNEVEN[n] for n in batch], 20)) for batch in batches]
    assert 1 in rows
    assert any(number % 2 and number > 1 for number in rows)


@pytest.mark.parametrize("row", TRAIN)
def test_two_processes_train_to_the_losses_of_one(
    row: str, pairs: dict[str, list[Run]], tmp_path: Path
) -> None:
    log, start, alone = TRAIN[row](tmp_path)
    ranks = pairs[row]
    same_bits(ranks[0][2], ranks[1][2])
    assert ranks[0][0] == ranks[1][0]
    for one, both in zip(log, ranks[0][0], strict=True):
        for key in ("loss", "penalty", "alpha"):
            assert both[key] == pytest.approx(one[key], rel=1e-5, abs=1e-8), (key, one["update"])
        assert both["skip"] == pytest.approx(one["skip"], rel=1e-9)
    moved = max(float((value - start[name]).abs().max()) for name, value in alone.items())
    apart = max(float((value - ranks[0][2][name]).abs().max()) for name, value in alone.items())
    assert apart < 0.01 * moved
