"""From a routed model to its budget: what corrects the steering, and what a fit tells."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from methods.base import Request
from methods.core.data import Document
from methods.core.routing.routed import route
from methods.core.routing.steering import Steering, squared_use
from methods.core.training import fit
from methods.core.training.loop import KINDS
from methods.core.training.params import TrainingParams
from tests import toy
from tests.training_toys import ByNumber, trainer_for

# Unit 0 (a tenth of the parameters) is skipped by odd ids, unit 1 (two tenths) by those below 4.
SIZES = torch.tensor([0.1, 0.2], dtype=torch.float64)
TEXTS = [
    Document([1, 4, 2, 6, 50], 3, "a", [(2, 4)]),
    Document([4, 1, 50], 1, "b", [(0, 2)]),
]


class Threshold(ByNumber):
    """It has a threshold, which moves nothing."""

    threshold = 0.5


class Data:
    def training(self) -> list[Document]:
        return TEXTS

    def probe(self) -> list[Document]:
        return TEXTS


def fitted(
    match: str, workdir: Path, budget: float | None, updates: int = 120
) -> dict[str, Steering]:
    model = toy.make_model().requires_grad_(False)
    route(model, Threshold(model))
    made = {kind: Steering(SIZES, budget, 0.0) for kind in KINDS[match]}
    params = TrainingParams(updates=updates, batch_tokens=8, row_length=0, learning_rate=1e-9)
    request = Request(budget, 1, workdir, match)
    penalties = dict.fromkeys(made, squared_use)
    fit.train_routed(model, params, Data(), request, {}, made, penalties)
    return made


@pytest.mark.parametrize(
    ("match", "trained", "seen"),
    [
        # Closing tokens predict nothing and decide nothing; the harness feeds them all the same.
        ("pooled", {"pooled": (0.3 + 0 + 0.2 + 0 + 0 + 0.3) / 6}, {"pooled": 0.8 / 8}),
        (
            "each",
            {"prompt": (0.3 + 0) / 2, "deciding": (0.2 / 2 + 0.3 / 2) / 2},
            {"prompt": (0.3 + 0) / 2, "deciding": (0.2 / 2 + 0.3 / 2) / 2},
        ),
    ],
)
def test_steering_is_corrected_by_what_inference_skips(
    match: str, trained: dict[str, float], seen: dict[str, float], tmp_path: Path
) -> None:
    for kind, steering in fitted(match, tmp_path, 0.25).items():
        assert steering.memory["smoothed"] == pytest.approx(trained[kind], abs=1e-4)
        assert steering.correction == pytest.approx(seen[kind] - trained[kind], abs=1e-4)


def test_nothing_is_asked_where_nothing_is_steered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fit, "bypass_rates", None)
    (steering,) = fitted("pooled", tmp_path, None).values()
    assert steering.correction == 0.0


def test_the_target_gives_way_to_the_correction(tmp_path: Path) -> None:
    seen = {"pooled": 0.9}
    asked: list[int] = []
    trainer = trainer_for("hero", tmp_path, budget=0.2, updates=20)

    def survey() -> dict[str, float]:
        asked.append(len(trainer.log))
        return seen

    trainer.survey = survey
    trainer.run()
    assert asked == [7, 10, 12, 14, 16]
    steering = trainer.steering["pooled"]
    smoothed = 0.9 - steering.correction
    # The correction is of the last time; what it leaves of the budget is the target.
    steering.observe(smoothed, smoothed, 1.0)
    before = steering.memory["smoothed"]
    assert steering.memory["error"] == pytest.approx(0.2 - steering.correction - before)
    again = trainer_for("hero", tmp_path, budget=0.2, updates=20)
    again.survey = None
    again._resume()
    assert again.steering["pooled"].correction == steering.correction
