"""From a routed model to its budget: what corrects the steering, and what a fit tells."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from methods import load_method
from methods.base import Request
from methods.core.data import Document
from methods.core.routing.routed import route
from methods.core.routing.steering import Controller, FixedWeight, Target, Term, Weight
from methods.core.training import fit
from methods.core.training.loop import Trainer
from methods.core.training.objective import MATCH_KINDS, Routing
from methods.core.training.params import TrainingParams
from tests.toys.models import make_model, wrap
from tests.toys.training import ByNumber, hero_penalty, trainer_for

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
) -> tuple[dict[str, Weight], dict[str, Any]]:
    """The weights of the penalties after a fit, and what the fit tells."""
    model = make_model().requires_grad_(False)
    route(model, Threshold(model))
    weights = {
        kind: FixedWeight(0.0) if budget is None else Controller(Target(budget), 0.0)
        for kind in MATCH_KINDS[match]
    }
    routing = Routing(SIZES, {kind: Term(weight, hero_penalty) for kind, weight in weights.items()})
    params = TrainingParams(updates=updates, batch_tokens=8, row_length=0, learning_rate=1e-9)
    request = Request(budget, 1, workdir, match)
    return weights, fit.train_routed(model, params, Data(), request, routing)


@pytest.mark.parametrize("part", ["training", "probe"])
@pytest.mark.parametrize(
    ("text", "missing"),
    [(Document([4, 1, 50], 1, "b", [(0, 2)]), "prompts"), (Document([4, 1, 50], 0), "answers")],
)
def test_split_is_refused_before_training_where_a_kind_has_no_token(
    part: str, text: Document, missing: str, tmp_path: Path
) -> None:
    class Lacking(Data):
        pass

    setattr(Lacking, part, lambda self: [text])
    method = load_method("hero", {"updates": 1})
    request = Request(0.2, 1, tmp_path, "split")
    words = f"match 'split' needs {part} documents with {missing}"
    with pytest.raises(ValueError, match=words):
        method.fit(wrap(make_model()), Lacking(), request)


@pytest.mark.parametrize(
    ("match", "trained", "seen"),
    [
        # Closing tokens predict nothing and decide nothing; the harness feeds them all the same.
        ("pooled", {"pooled": (0.3 + 0 + 0.2 + 0 + 0 + 0.3) / 6}, {"pooled": 0.8 / 8}),
        (
            "split",
            {"prompt": (0.3 + 0) / 2, "answer": (0.2 / 2 + 0.3 / 2) / 2},
            {"prompt": (0.3 + 0) / 2, "answer": (0.2 / 2 + 0.3 / 2) / 2},
        ),
    ],
)
def test_a_target_is_corrected_by_what_inference_skips(
    match: str, trained: dict[str, float], seen: dict[str, float], tmp_path: Path
) -> None:
    weights, _ = fitted(match, tmp_path, 0.25)
    for kind, weight in weights.items():
        assert weight.target.rate == pytest.approx(trained[kind], abs=1e-4)
        assert weight.target.correction == pytest.approx(seen[kind] - trained[kind], abs=1e-4)


def test_nothing_is_asked_where_there_is_no_target(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fit, "skip_rates", None)
    weights, _ = fitted("pooled", tmp_path, None)
    assert weights == {"pooled": FixedWeight(0.0)}


def test_the_skip_rate_that_training_ended_at_is_that_of_its_last_tenth(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = [{"update": n, "skip": n / 100} for n in range(30)]
    monkeypatch.setattr(Trainer, "run", lambda self: log)
    _, told = fitted("pooled", tmp_path, None)
    assert told["trained_skip"] == {"pooled": pytest.approx((0.27 + 0.28 + 0.29) / 3)}
    # An update without answer tokens tells nothing of them.
    log = [{"skip_prompt": n / 100} | ({"skip_answer": n / 50} if n % 2 else {}) for n in range(20)]
    _, told = fitted("split", tmp_path, None)
    assert told["trained_skip"] == {
        "prompt": pytest.approx((0.18 + 0.19) / 2), "answer": pytest.approx((0.34 + 0.38) / 2),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("match", "updates"),
    [("pooled", [7, 10, 12, 14, 16]), ("split", [7, 10, 12, 14, 16, 17, 18, 19])],
)
def test_two_kinds_are_corrected_up_to_the_end(
    match: str, updates: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def correct(trainer: Trainer, skips: Mapping[str, float]) -> None:
        assert set(skips) == set(MATCH_KINDS[match])
        asked.append(len(trainer.log))

    monkeypatch.setattr(Trainer, "_correct", correct)
    fitted(match, tmp_path, 0.25, updates=20)
    assert asked == updates


def test_the_target_gives_way_to_the_correction(tmp_path: Path) -> None:
    seen = {"pooled": 0.9}
    asked: list[int] = []
    trainer = trainer_for("hero", tmp_path, budget=0.2, updates=20)

    def survey() -> dict[str, float]:
        asked.append(len(trainer.log))
        return seen

    surveys = fit.SURVEYS["pooled"]
    trainer.routing = replace(trainer.routing, survey=survey, surveys=surveys)
    trainer.run()
    assert asked == [7, 10, 12, 14, 16]
    weight = trainer.routing.terms["pooled"].weight
    seen_last = 0.9 - weight.target.correction
    # The correction is of the last time; what it leaves of the budget is the target.
    weight.observe(seen_last, seen_last, 1.0)
    value = 0.2 - weight.target.correction
    assert weight.error == pytest.approx(value - weight.target.rate)
    again = trainer_for("hero", tmp_path, budget=0.2, updates=20)
    again._resume()
    correction = again.routing.terms["pooled"].weight.target.correction
    assert correction == weight.target.correction
