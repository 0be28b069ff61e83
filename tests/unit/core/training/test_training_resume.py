"""Interrupted, repeated, damaged and diverging training runs."""

from __future__ import annotations

import json
import math
import os
import signal
from array import array
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from methods.core.data import Document
from methods.core.routing.steering import Gates
from methods.core.training.interruption import SIGNALS, Interrupted
from methods.core.training.loop import DivergedError, Trainer
from methods.core.training.packing import document_batches
from methods.core.training.params import TrainingParams
from methods.core.training.snapshots import NAME, digest, earlier_seconds
from tests.steps import fit
from tests.toys.texts import documents, make_data
from tests.toys.training import (
    SHORT,
    hero_penalty,
    interrupt_and_follow,
    same_bits,
    signal_in,
    slow_clock,
    trainer_for,
    values,
)


@pytest.mark.parametrize("row", ["hero", "lora"])
def test_killed_and_resumed_equals_undisturbed(
    row: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow_clock(monkeypatch)
    whole = trainer_for(row, tmp_path / "whole", snapshot_minutes=3)
    start = values(whole)
    whole.run()

    killed = trainer_for(row, tmp_path / "parts", snapshot_minutes=3)
    updates = interrupt_and_follow(monkeypatch, 4, killed.run)
    resumed = trainer_for(row, tmp_path / "parts", snapshot_minutes=3)
    resumed.run()
    assert updates == [3, 4, 5]
    assert resumed.log == whole.log
    same_bits(values(whole), values(resumed))
    # Seconds of all parts, which the costs of a fit count.
    assert earlier_seconds(tmp_path / "whole") == 0
    assert earlier_seconds(tmp_path / "parts") == resumed.earlier > 0
    assert any(not torch.equal(start[name], value) for name, value in values(whole).items())
    lines = (tmp_path / "parts/training.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line) for line in lines] == whole.log
    if row == "hero":
        weight = resumed.routing.terms["pooled"].weight
        assert weight.state() == whole.routing.terms["pooled"].weight.state()
        assert weight.alpha not in (0.02, whole.log[3]["alpha"])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_run_behind_the_update_at_hand(
    number: signal.Signals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = trainer_for("hero", tmp_path / "whole").run()
    before = [signal.getsignal(which) for which in SIGNALS]
    with monkeypatch.context() as patch:
        signal_in(patch, 3, number)
        stopped = trainer_for("hero", tmp_path / "parts")
        with pytest.raises(Interrupted, match="snapshot after update 4 continues") as told:
            stopped.run()
    assert told.value.status == 128 + number
    assert stopped.log == whole[:4]
    assert [signal.getsignal(which) for which in SIGNALS] == before
    assert trainer_for("hero", tmp_path / "parts")._resume() == 4
    assert trainer_for("hero", tmp_path / "parts").run() == whole


def test_a_step_that_is_told_to_stop_continues(
    llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    files = make_data(tmp_path / "data")
    given = [
        "--train",
        files["training"],
        "--params",
        json.dumps({"updates": 4, "batch_tokens": 60}),
    ]
    whole = fit("lora", llama, tmp_path / "whole", *given)
    with monkeypatch.context() as patch:
        signal_in(patch, 1, signal.SIGTERM)
        with pytest.raises(SystemExit) as ended:
            fit("lora", llama, tmp_path / "made", *given)
    assert ended.value.code == 143
    assert "interrupted; the snapshot after update 2 continues" in capfd.readouterr().err
    assert not (tmp_path / "made").exists()
    assert list((tmp_path / "made.checkpoints").glob(f"*/{NAME}"))
    made = fit("lora", llama, tmp_path / "made", *given)
    for file in ("decisions.json", "trained.safetensors"):
        assert (made / file).read_bytes() == (whole / file).read_bytes()


def test_a_signal_behind_the_last_update_ends_the_run_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = trainer_for("lora", tmp_path / "whole").run()
    stopped = trainer_for("lora", tmp_path / "parts")
    snapshot = Trainer._snapshot

    def write(self: Trainer, done: int) -> None:
        snapshot(self, done)
        os.kill(os.getpid(), signal.SIGTERM)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_snapshot", write)
        with pytest.raises(Interrupted, match=f"snapshot after update {len(whole)} continues"):
            stopped.run()
    assert trainer_for("lora", tmp_path / "parts").run() == whole


def test_seconds_of_a_run_that_was_interrupted_behind_its_training_are_kept(tmp_path: Path) -> None:
    first = trainer_for("lora", tmp_path)
    first.run()
    assert earlier_seconds(tmp_path) == 0
    again = trainer_for("lora", tmp_path)
    assert again.run() == first.log
    assert earlier_seconds(tmp_path) == again.earlier > 0


def test_the_identity_of_a_run_does_not_hang_on_the_order_of_sums() -> None:
    weight = torch.randn(64, 96) * 0.02
    shuffled = weight.flatten()[torch.randperm(weight.numel())]
    for dtype in (torch.float32, torch.bfloat16):
        assert digest("", [], [weight.to(dtype)]) == digest("", [], [shuffled.to(dtype)])
        assert digest("", [], [weight.to(dtype)]) != digest("", [], [(weight * 1.01).to(dtype)])


def test_a_run_goes_on_with_another_time_between_snapshots(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow_clock(monkeypatch)
    killed = trainer_for("lora", tmp_path, snapshot_minutes=3)
    updates = interrupt_and_follow(monkeypatch, 4, killed.run)
    trainer_for("lora", tmp_path, snapshot_minutes=5).run()
    assert updates == [3, 4, 5]


def test_an_update_in_which_nothing_is_predicted_is_no_divergence(tmp_path: Path) -> None:
    trainer = trainer_for("lora", tmp_path, prompt_weight=0.0)
    entry = trainer._update(0, [Document(array("i", [3, 4, 5]), 3)])
    assert entry["loss"] == 0


@pytest.mark.parametrize("part", ["train", "probe", "code"])
def test_a_fit_on_edited_data_or_by_edited_code_begins_anew(
    part: str, llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The survey of the probe texts steers what training goes on with."""
    files = make_data(tmp_path / "data")
    params = {"updates": 8, "batch_tokens": 60, "learning_rate": 0.05, "initial_bias": 0.0}
    given = ["--params", json.dumps(params), "--budget", 0.25, "--validation", files["validation"]]
    given += ["--train", files["training"], "--probe", files["probe"]]
    with monkeypatch.context() as patch:
        signal_in(patch, 6, signal.SIGTERM)
        with pytest.raises(SystemExit):
            fit("hero", llama, tmp_path / "made", *given)
    assert list((tmp_path / "made.checkpoints").glob(f"*/{NAME}"))
    if part == "code":
        monkeypatch.setattr("methods.core.training.loop.learning_rate", lambda *_: 0.01)
        monkeypatch.setattr(
            "workflows.steps.fit.code_hashes", lambda parts: dict.fromkeys(parts, "edited")
        )
    else:
        file = files["training" if part == "train" else part]
        file.write_text("".join(file.read_text().splitlines(keepends=True)[::2]))
    made = fit("hero", llama, tmp_path / "made", *given)
    whole = fit("hero", llama, tmp_path / "whole", *given)
    for name in ("decisions.json", "trained.safetensors"):
        assert (made / name).read_bytes() == (whole / name).read_bytes()


def test_snapshots_tell_documents_apart() -> None:
    texts = documents(3)
    first, second, third = texts
    assert digest("", [first._replace(ids=array("i", first.ids)), second, third], []) == digest(
        "", texts, []
    )
    others = [
        [second, first, third],
        [first._replace(ids=[*first.ids, 1]), second._replace(ids=second.ids[1:]), third],
        [first._replace(prompt=9), second, third],
        [first._replace(task="a"), second, third],
        [first._replace(answers=[(0, 1)]), second, third],
        [first, second],
    ]
    assert digest("", texts, []) not in {digest("", other, []) for other in others}


def test_a_finished_run_is_not_trained_again(tmp_path: Path) -> None:
    first = trainer_for("hero", tmp_path)
    log = list(first.run())
    again = trainer_for("hero", tmp_path)
    again._update = None
    assert again.run() == log
    same_bits(values(first), values(again))


@pytest.mark.parametrize("other", ["row", "rate", "data", "budget"])
def test_a_snapshot_of_another_run_is_left_alone(other: str, tmp_path: Path) -> None:
    trainer_for("hero", tmp_path / "used", updates=2).run()
    row = "lora" if other == "row" else "hero"
    changes: dict[str, Any] = {"updates": 2}
    changes |= {
        "row": {},
        "rate": {"learning_rate": 1e-3},
        "data": {"texts": documents(41)},
        "budget": {"budget": 0.3},
    }[other]
    again = trainer_for(row, tmp_path / "used", **changes)
    anew = trainer_for(row, tmp_path / "new", **changes)
    assert again.run() == anew.run()
    same_bits(values(again), values(anew))


def test_a_damaged_snapshot_is_refused(tmp_path: Path) -> None:
    trainer_for("hero", tmp_path, updates=1).run()
    (tmp_path / NAME).write_bytes((tmp_path / NAME).read_bytes()[:1000])
    with pytest.raises(ValueError, match="is damaged"):
        trainer_for("hero", tmp_path, updates=1).run()


def test_a_loss_that_is_not_finite_stops_and_keeps_the_last_good_snapshot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow_clock(monkeypatch)
    trainer = trainer_for("hero", tmp_path, snapshot_minutes=2)
    calls: list[int] = []

    def breaking(gates: Gates) -> Tensor:
        calls.append(1)
        factor = math.inf if len(calls) > 3 else 1.0
        return hero_penalty(gates) * factor

    terms = trainer.routing.terms
    terms["pooled"] = terms["pooled"]._replace(penalty=breaking)
    with pytest.raises(DivergedError, match="penalty of update 3 is inf.*rate"):
        trainer.run()
    assert all(bool(torch.isfinite(value).all()) for value in values(trainer).values())
    good = trainer_for("hero", tmp_path / "good", updates=6)
    good.params = TrainingParams(**SHORT)
    reread = trainer_for("hero", tmp_path, snapshot_minutes=2)
    assert reread._resume() == 2
    good.documents = trainer.documents
    lengths = [len(d.ids) for d in good.documents]
    for number, batch in enumerate(islice(document_batches(lengths, 60, 5), 2)):
        good._update(number, [good.documents[n] for n in batch])
    same_bits(values(good), values(reread))
