"""Training under autocast to bfloat16, as on a GPU, here on the CPU."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.toys.routed import VARIANTS, fit
from tests.toys.training import same_bits, trainer_for


def forced(monkeypatch: pytest.MonkeyPatch) -> None:
    """The trainer's autocast, on although its device is a CPU."""
    real = torch.autocast

    def autocast(device: str, dtype: torch.dtype | None = None, enabled: bool = True) -> Any:
        # Only the trainer names a dtype; routers switch autocast off around their decisions.
        return real(device, dtype=dtype, enabled=enabled or dtype is not None)

    monkeypatch.setattr(torch, "autocast", autocast)


def first_update(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "training.jsonl").read_text("utf-8").splitlines()[0])


@pytest.mark.parametrize("variant", [*VARIANTS, "hero", "lora"])
def test_every_row_trains_in_mixed_precision(
    variant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def train(folder: Path) -> dict[str, Any]:
        if variant in VARIANTS:
            fit(variant, folder, updates=2)
        else:
            trainer_for(variant, folder, updates=2).run()
        return first_update(folder)

    exact = train(tmp_path / "float32")
    forced(monkeypatch)
    mixed = train(tmp_path / "mixed")
    assert mixed != exact, "nothing was cast"
    assert mixed["loss"] == pytest.approx(exact["loss"], rel=0.02)
    assert mixed["norm"] == pytest.approx(exact["norm"], rel=0.2)
    assert mixed.get("skip", 0) == pytest.approx(exact.get("skip", 0), abs=0.02)


def test_trained_weights_stay_in_float32(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    forced(monkeypatch)
    trainer = trainer_for("hero", tmp_path, updates=2)
    trainer.run()
    assert {p.dtype for p in trainer.parameters.values()} == {torch.float32}
    assert all(bool(torch.isfinite(p).all()) for p in trainer.parameters.values())
    again = trainer_for("hero", tmp_path / "again", updates=2)
    again.run()
    same_bits(trainer.parameters, again.parameters)
