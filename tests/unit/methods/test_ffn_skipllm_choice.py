"""FFN-SkipLLM's choice of a setting: what is tried, on which documents, and what wins."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from methods import ffn_skipllm, load_method
from methods.base import Request
from methods.core.model.backbone import ffn, layers
from methods.core.routing.routed import router_of
from methods.core.seeds import generator
from methods.ffn_skipllm import Setting, Study, Trial
from tests.toys.models import make_model, wrap
from tests.unit.methods.test_ffn_skipllm import data, fit


@pytest.mark.parametrize("match", ["pooled", "split"])
def test_settings_are_compared_on_a_random_sample(
    match: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ffn_skipllm, "SAMPLE", 3)
    given = data()
    trial = Trial.of(given, Request(0.2, 7, Path(), match))
    parts = []
    for texts in (given.probe(), given.validation()):
        order = torch.randperm(len(texts), generator=generator(0, "documents to compare on"))
        parts.append([texts[n] for n in order[:3].tolist()])
    assert trial.validation == parts[1] != given.validation()[:3]
    assert trial.probe.documents == sorted(parts[0], key=lambda one: len(one.ids))
    # The two answer tokens of a text end one token before it.
    spans = [one.answers[0] if match == "split" else (0, len(one.ids)) for one in parts[0]]
    places = [place for span in spans for place in range(*span)]
    late = sum(place >= 8 for place in places)
    assert trial.share_from(8) == pytest.approx(late / len(places))
    assert 0 < late < len(places)


VALUES = {"run_length": [8, 4, 2], "first": [2, 1], "last": [1, 0]}
# Setting -> skip rate, share of right answers, loss.
RESULTS = {
    Setting(2, 1, 8): (0.20, 0.5, 1.0),
    Setting(2, 1, 4): (0.195, 0.6, 2.0),
    # The most right answers, but off the budget.
    Setting(2, 1, 2): (0.18, 0.9, 0.5),
    # As many right answers, at a lower loss.
    Setting(1, 1, 4): (0.20, 0.6, 1.5),
    Setting(1, 0, 4): (0.20, 0.55, 0.1),
}


def test_fields_are_chosen_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    def look_up(self: Study, setting: Setting, trial: Trial) -> None:
        result = dict(zip(("skip", "right", "loss"), RESULTS[setting], strict=True))
        self.results[setting] = result

    monkeypatch.setattr(Study, "_try", look_up)
    study = Study(load_method("ffn-skipllm"), wrap(make_model()), [], 1)
    trial = Trial.of(data(), Request(0.2, 0, Path()))
    assert study.choose(Setting(2, 1, 8), VALUES, trial) == Setting(1, 1, 4)
    assert study.results.keys() == RESULTS.keys()


@pytest.mark.parametrize("match", ["pooled", "split"])
def test_the_setting_with_the_most_right_answers_meets_the_budget(match: str) -> None:
    fitted = fit(0.2, match)
    choice, chosen = fitted.decisions["choice"], fitted.structure
    assert len(choice) > 3
    # Documents are few: comparisons see what the calibration sees.
    meeting = [one for one in choice if abs(one["skip"] - 0.2) < 0.01]
    assert meeting
    best = max(meeting, key=lambda one: (one["right"], -one["loss"]))
    assert chosen["region"] == [best["first"], 6 - best["last"]]
    assert chosen["run_length"] == best["run_length"]
    assert chosen["tau"] == fitted.decisions["tau"] == router_of(fitted.model).tau
    trace = fitted.decisions["calibration"]
    assert min(abs(one["skip"] - 0.2) for one in trace) < 0.02
    assert len({one["run_length"] for one in choice}) > 1
    assert len({one["first"] for one in choice}) > 1


def test_a_run_length_that_cannot_reach_the_budget_is_not_tried() -> None:
    """Of five FFNs runs of two leave two: 30.8 % at most, 28.0 % less the warm-up."""
    tried = {one["run_length"] for one in fit(0.28).decisions["choice"] if one["first"] == 1}
    assert tried == {8, 4}


def test_a_budget_that_only_all_fields_together_reach_takes_the_widest_setting() -> None:
    model = make_model(num_hidden_layers=12)
    backbone = wrap(model)
    one = sum(p.numel() for p in ffn(layers(model)[0]).parameters()) / backbone.parameters
    reason = load_method("ffn-skipllm").skip_reason
    assert reason(backbone, Request(8.9 * one, 0, Path())) is None
    fitted = fit(8.9 * one, model=model)
    assert fitted.decisions["choice"] == []
    assert (fitted.structure["region"], fitted.structure["run_length"]) == ([1, 12], 8)
