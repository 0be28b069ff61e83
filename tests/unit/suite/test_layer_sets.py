"""Which sets of layers the tune step tries."""

from __future__ import annotations

from argparse import Namespace

import pytest

from tests.workflow.test_tune import CONFIG
from workflows.steps.tune import jobs_to_tune, layer_sets
from workflows.suite.jobs import read_suite


def test_sets_with_the_same_layers_are_tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of six layers the later three quarters and all but the first are the same five."""
    shallow = Namespace(layer_count=6)
    monkeypatch.setattr("workflows.steps.tune.empty_backbone_of", lambda *_: shallow)
    monkeypatch.setattr("workflows.steps.tune.why_not", lambda *_, **__: None)
    suite = read_suite({**CONFIG, "budgets": [0.25]})
    (job,) = jobs_to_tune(suite, ["hero"])
    assert layer_sets(suite, job) == ["later-three-quarters"]
