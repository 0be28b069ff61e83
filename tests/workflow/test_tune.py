"""The tune step: what is tried, what wins, what is refused."""

from __future__ import annotations

import shutil
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
import yaml

from methods.base import Request
from tests import steps
from workflows import ROOT
from workflows.steps.tune import _identity, best_try, jobs_to_tune, try_rate
from workflows.suite.jobs import Suite, read_suite

TRAINING = {"updates": 2, "batch_tokens": 128, "row_length": 64}
CONFIG = {
    "suite": "tuning",
    "backbones": {"demo": {"path": "workflows/demo/backbone"}},
    "rows": ["dense", "shortgpt", "lora", "hero"],
    "derive": {
        "healed": {"from": "shortgpt", "then": "lora", "params": {"rank": 2}},
        "hero-no-history": {"from": "hero", "params": {"variant": "no-history"}},
    },
    "budgets": [0.25],
    "seeds": [42],
    "tasks": ["demo_facts"],
    "max_length": 256,
    "training": TRAINING,
    "data": {part: {"source": "demo", "rows": 40} for part in ("training", "validation", "probe")},
}


@pytest.fixture
def suite() -> Suite:
    return read_suite(CONFIG)


def test_trained_rows_and_healed_ones_are_tuned_but_no_variants(suite: Suite) -> None:
    assert [job.row for job in jobs_to_tune(suite, None)] == ["healed", "hero", "lora"]
    assert [job.row for job in jobs_to_tune(suite, ["hero-no-history"])] == ["hero-no-history"]


def test_a_rate_at_which_nothing_is_skipped_cannot_win(suite: Suite) -> None:
    job = jobs_to_tune(suite, ["hero"])[0]
    skipping = {"learning_rate": 1e-3, "right": 0.5, "loss": 2.0, "skip": 0.243}
    tries = [{"learning_rate": 1e-1, "right": 0.9, "loss": 1.0, "skip": 0.0}, skipping]
    assert best_try(job, tries) == skipping
    with pytest.raises(ValueError, match="hero: no learning rate meets the budget 0.25"):
        best_try(job, tries[:1])


def test_right_answers_decide_and_the_loss_among_equals(suite: Suite) -> None:
    job = jobs_to_tune(suite, ["lora"])[0]
    tries = [
        {"learning_rate": rate, "right": right, "loss": loss}
        for rate, right, loss in ((1e-3, 0.5, 1.0), (1e-2, 0.6, 3.0), (1e-1, 0.6, 2.0))
    ]
    assert best_try(job, tries)["learning_rate"] == 1e-1


def test_rates_are_tried_once_and_the_best_reaches_its_row(
    suite: Suite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tmp_path / "data"
    for part in ("training", "validation", "probe"):
        source = suite.data_source(part)
        steps.call("data", "--part", part, "--source", source, "--out", data / f"{part}.jsonl")
    file, out = tmp_path / "suite.yaml", tmp_path / "tuned.yaml"
    file.write_text(yaml.safe_dump(CONFIG))
    fixed = ["--suite", file, "--data", data, "--workdir", tmp_path / "work", "--device", "cpu"]
    steps.call("tune", *fixed, "--rows", "lora", "--grid", "0.001,0.01", "--out", out)
    outcome = yaml.safe_load(out.read_text())
    tries = outcome["tries"]["lora"]
    assert [one["learning_rate"] for one in tries] == [0.001, 0.01]
    assert outcome["updates"] == 2
    best = max(tries, key=lambda one: (one["right"], -one["loss"]))["learning_rate"]
    monkeypatch.setattr("workflows.steps.tune.load_method", None)  # a second fit would fail
    steps.call("tune", *fixed, "--rows", "lora", "--grid", "0.001,0.01", "--out", out)
    assert yaml.safe_load(out.read_text()) == outcome
    (data / "validation.jsonl").write_text('{"prompt": "a", "completion": "b"}\n')
    with pytest.raises(TypeError):  # other data: another try
        steps.call("tune", *fixed, "--rows", "lora", "--grid", "0.001", "--out", out)
    jobs = read_suite({**CONFIG, "tuned": str(out)}).jobs
    assert {job.params["learning_rate"] for job in jobs if job.row == "lora"} == {best}


def test_a_try_is_known_by_what_it_follows_from(suite: Suite, tmp_path: Path) -> None:
    start = shutil.copytree(ROOT / "workflows/demo/backbone", tmp_path / "start")
    for part in ("training", "validation", "probe"):
        (tmp_path / f"{part}.jsonl").touch()
    (job,) = jobs_to_tune(suite, ["lora"])
    first = _identity(job, {}, 256, tmp_path, start)
    assert _identity(job, {}, 128, tmp_path, start) != first
    (start / "chat_template.jinja").write_text("{{ messages[0].content }}")
    assert _identity(job, {}, 256, tmp_path, start) != first


@pytest.mark.parametrize(
    ("match", "asked"), [("pooled", "pooled"), ("split", "split"), (["pooled", "split"], "pooled")]
)
def test_a_row_is_tuned_by_the_first_protocol_of_its_suite(
    match: Any, asked: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Asked(Exception):
        pass

    class Method:
        def fit(self, backbone: Any, data: Any, request: Request) -> None:
            raise Asked(request.match)

    monkeypatch.setattr("workflows.steps.tune.load_method", lambda *_: Method())
    for part in ("training", "validation", "probe"):
        (tmp_path / f"{part}.jsonl").write_text('{"prompt": "a", "completion": "b"}\n')
    given = Namespace(updates=None, data=tmp_path, workdir=tmp_path / "work", device="cpu")
    both = read_suite({**CONFIG, "match": match})
    with pytest.raises(Asked, match=asked):
        try_rate(both, jobs_to_tune(both, ["hero"])[0], 1e-3, given)


def test_the_tuned_rate_of_a_healed_row_is_its_own(tmp_path: Path) -> None:
    chosen = {"lora": {"learning_rate": 0.5}, "healed": {"learning_rate": 0.25}}
    (tmp_path / "tuned.yaml").write_text(yaml.safe_dump({"params": chosen}))
    jobs = read_suite({**CONFIG, "tuned": str(tmp_path / "tuned.yaml")}).jobs
    rates = {job.row: job.params["learning_rate"] for job in jobs if "lora" in job.method.name}
    assert rates == {"lora": 0.5, "healed": 0.25}


@pytest.mark.parametrize(
    ("row", "sentence"),
    [
        ("healed", "healed starts from results/tuning/demo/shortgpt/b25/s42/model, which a run"),
        ("shortgpt", "--rows: 'shortgpt' is not a trained row of the suite"),
    ],
)
def test_what_cannot_be_tuned_is_refused(
    row: str, sentence: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "suite.yaml"
    file.write_text(yaml.safe_dump(CONFIG))
    refuse = steps.Refuse(capfd, tmp_path)
    fixed = ["--suite", file, "--data", ROOT, "--workdir", tmp_path / "w", "--device", "cpu"]
    assert sentence in refuse("tune", *fixed, "--rows", row, "--out", tmp_path / "tuned.yaml")
