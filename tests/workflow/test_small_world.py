"""From the training of the small backbone to a record of HeRo, each step with very little work."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from tests import steps
from workflows import ROOT
from workflows.suite.jobs import read_suite


@pytest.fixture(scope="module")
def backbone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One update."""
    folder = tmp_path_factory.mktemp("trained") / "small"
    fixed = ["--world", "small", "--tokens", 1, "--device", "cpu"]
    steps.call("train_backbone", *fixed, "--out", folder)
    return folder


@pytest.mark.long
def test_hero_runs_on_the_small_world(backbone: Path, tmp_path: Path) -> None:
    suite = read_suite(yaml.safe_load((ROOT / "workflows/suites/small.yaml").read_text()))
    facts = json.loads((backbone / "training.json").read_text())
    assert (facts["world"], facts["steps"], facts["device"]) == ("small", 1, "cpu")
    data = []
    for part, flag in (("training", "train"), ("validation", "validation"), ("probe", "probe")):
        source = json.loads(suite.data_source(part)) | {"rows": 40}
        file = tmp_path / f"{part}.jsonl"
        steps.call("data", "--part", part, "--source", json.dumps(source), "--out", file)
        data += [f"--{flag}", file]
    job = suite.find("small", "hero", "b25", "s43")
    params = json.dumps({**job.params, "updates": 2, "batch_tokens": 512})
    given = ["--params", params, "--budget", job.budget, "--seed", job.seed, "--max-length", 256]
    model = steps.fit("hero", backbone, tmp_path / "model", *given, *data)
    out = tmp_path / "record.json"
    tasks = "small_two_hop,small_program"
    steps.call("score", "--model", model, "--tasks", tasks, "--limit", 2, "--out", out)
    record = json.loads(out.read_text())
    assert [score["n"] for score in record["scores"] if score["primary"]] == [2, 2]
    assert [unit["layer"] for unit in record["units"]] == list(range(8, 16))
    # What the suite's ranks are matched to.
    assert record["fit"]["trained_parameters"] == 273_786
