"""The tune step: what is tried, what wins, what is refused."""

from __future__ import annotations

import json
import shutil
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
import yaml

from methods.base import Request
from tests import steps
from workflows import ROOT
from workflows.demo.corpus import items
from workflows.steps.tune import PARTS, _identity, jobs_to_tune, layer_sets, lora_shares, try_once
from workflows.suite.config import read_configs
from workflows.suite.job import Job
from workflows.suite.jobs import Suite, read_suite
from workflows.suite.tries import DIVERGED, Try, best_try, enter, meets, tune

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


def test_a_rate_that_diverges_meets_no_budget(suite: Suite) -> None:
    job = jobs_to_tune(suite, ["hero"])[0]

    def attempt(**choice: Any) -> Try:
        if choice["learning_rate"] == 0.1:
            return {**choice, "right": 0.0, "loss": DIVERGED}
        return {**choice, "right": 0.2, "loss": 4.0, "skip": 0.01}

    with pytest.raises(ValueError, match="hero: no try meets the budget 0.25"):
        tune(job, (0.001, 0.1), (), (), attempt)


def test_a_rate_at_which_nothing_is_skipped_cannot_win(suite: Suite) -> None:
    job = jobs_to_tune(suite, ["hero"])[0]
    skipping = {"learning_rate": 1e-3, "right": 0.5, "loss": 2.0, "skip": 0.243}
    tries = [{"learning_rate": 1e-1, "right": 0.9, "loss": 1.0, "skip": 0.0}, skipping]
    assert best_try(job, tries) == skipping
    assert [meets(job, one) for one in tries] == [False, True]
    with pytest.raises(ValueError, match="hero: no try meets the budget 0.25"):
        tune(job, [0.1], [], [], lambda **_: tries[0])


def test_right_answers_decide_and_the_loss_among_equals(suite: Suite) -> None:
    job = jobs_to_tune(suite, ["lora"])[0]
    tries = [
        {"learning_rate": rate, "right": right, "loss": loss}
        for rate, right, loss in ((1e-3, 0.5, 1.0), (1e-2, 0.6, 3.0), (1e-1, 0.6, 2.0))
    ]
    assert best_try(job, tries)["learning_rate"] == 1e-1


def test_tuning_reads_no_scored_item(tmp_path: Path) -> None:
    headline, read = read_suite(read_configs(["headline"])), set()
    for part in PARTS:
        file = tmp_path / f"{part}.jsonl"
        steps.call("data", "--part", part, "--source", headline.data_source(part), "--out", file)
        read |= {json.loads(line)["prompt"] for line in file.read_text().splitlines()}
    scored = {item["prompt"] for entry in headline.entries for item in items(entry.task, "test")}
    assert len(read) > 10_000
    assert len(scored) > 3000
    assert not read & scored


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
    assert {one["updates"] for one in tries} == {2}
    best = max(tries, key=lambda one: (one["right"], -one["loss"]))["learning_rate"]
    monkeypatch.setattr("workflows.steps.tune.open_backbone", None)  # a second fit would fail
    steps.call("tune", *fixed, "--rows", "lora", "--grid", "0.001,0.01", "--out", out)
    assert yaml.safe_load(out.read_text()) == outcome
    (data / "validation.jsonl").write_text('{"prompt": "a", "completion": "b"}\n')
    with pytest.raises(TypeError):  # other data: another try
        steps.call("tune", *fixed, "--rows", "lora", "--grid", "0.001", "--out", out)
    jobs = read_suite({**CONFIG, "tuned": str(out)}).jobs
    assert {job.params["learning_rate"] for job in jobs if job.row == "lora"} == {best}


def test_a_healed_row_is_tried_from_its_static_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    backbone = ROOT / "workflows/demo/backbone"
    derive = {"healed": {"from": "slicegpt", "then": "lora", "params": {"rank": 2}}}
    backbones = {"demo": {"path": str(backbone)}}
    changes = {"backbones": backbones, "rows": ["dense", "slicegpt"], "derive": derive}
    suite = read_suite({**CONFIG, **changes})
    for part in ("training", "validation", "probe"):
        source = suite.data_source(part)
        steps.call("data", "--part", part, "--source", source, "--out", f"{part}.jsonl")
    (job,) = jobs_to_tune(suite, None)
    texts = ["--calibration", "training.jsonl", "--max-length", 256]
    steps.fit("slicegpt", backbone, Path(suite.start_folder(job)), "--budget", 0.25, *texts)
    Path("suite.yaml").write_text(yaml.safe_dump({**CONFIG, **changes}))
    fixed = ["--suite", "suite.yaml", "--data", ".", "--device", "cpu", "--out", "tuned.yaml"]
    steps.call("tune", *fixed, "--grid", "0.001")
    (chosen,) = yaml.safe_load(Path("tuned.yaml").read_text())["params"]["healed"]
    assert chosen == {"budget": 0.25, "params": {"learning_rate": 0.001}}


def test_a_try_is_known_by_what_it_follows_from(suite: Suite, tmp_path: Path) -> None:
    start = shutil.copytree(ROOT / "workflows/demo/backbone", tmp_path / "start")
    for part in ("training", "validation", "probe"):
        (tmp_path / f"{part}.jsonl").touch()
    (job,) = jobs_to_tune(suite, ["lora"])
    first = _identity(job, {}, 256, tmp_path, start)
    assert _identity(job, {}, 128, tmp_path, start) != first
    (start / "chat_template.jinja").write_text("{{ messages[0].content }}")
    assert _identity(job, {}, 256, tmp_path, start) != first


def test_a_row_is_tuned_for_each_budget_and_protocol_of_its_suite() -> None:
    suite = read_suite({**CONFIG, "match": ["pooled", "split"], "budgets": [0.25, 0.4]})

    def places(*args: Any) -> list[tuple[float | None, str | None]]:
        return [(job.budget, job.match) for job in jobs_to_tune(suite, *args)]

    assert places(["hero"]) == [(0.25, "pooled"), (0.25, "split"), (0.4, "pooled"), (0.4, "split")]
    assert places(["hero"], [0.4]) == [(0.4, "pooled"), (0.4, "split")]
    assert places(["lora"], [0.4]) == [(None, None)]
    assert places(["healed"]) == [(0.25, None), (0.4, None)]
    with pytest.raises(ValueError, match=r"--budgets: the suite has no 0.3 \(\[0.25, 0.4\]\)"):
        jobs_to_tune(suite, ["hero"], [0.3])


@pytest.mark.parametrize("match", ["pooled", "split"])
def test_a_try_asks_for_the_protocol_of_its_job(
    match: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
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
    with pytest.raises(Asked, match=match):
        try_once(both, jobs_to_tune(both, ["hero"])[0], given, learning_rate=1e-3)


def test_the_tuned_rate_of_a_healed_row_is_its_own(tmp_path: Path) -> None:
    chosen = {
        "lora": [{"params": {"learning_rate": 0.5}}],
        "healed": [{"params": {"learning_rate": 0.25}}],
    }
    (tmp_path / "tuned.yaml").write_text(yaml.safe_dump({"params": chosen}))
    jobs = read_suite({**CONFIG, "tuned": str(tmp_path / "tuned.yaml")}).jobs
    rates = {job.row: job.params["learning_rate"] for job in jobs if "lora" in job.method.name}
    assert rates == {"lora": 0.5, "healed": 0.25}


def test_params_may_hold_for_one_budget_and_protocol_alone(tmp_path: Path) -> None:
    chosen = [
        {"budget": 0.25, "match": "split", "params": {"candidates": "all-but-first"}},
        {"budget": 0.4, "params": {"learning_rate": 0.5}},
        {"params": {"learning_rate": 0.25}},
    ]
    (tmp_path / "tuned.yaml").write_text(yaml.safe_dump({"params": {"hero": chosen}}))
    config = {**CONFIG, "match": ["pooled", "split"], "budgets": [0.25, 0.4]}
    config["derive"] = {"hero-half": {"from": "hero", "params": {"candidates": "later-half"}}}
    jobs = read_suite({**config, "tuned": str(tmp_path / "tuned.yaml")}).jobs
    given = {(j.row, j.budget, j.match): {**TRAINING, **j.params} for j in jobs}
    assert given["hero", 0.25, "split"] == {**TRAINING, "candidates": "all-but-first"}
    assert given["hero-half", 0.25, "split"] == {**TRAINING, "candidates": "later-half"}
    assert given["hero", 0.25, "pooled"] == {**TRAINING, "learning_rate": 0.25}
    assert given["hero", 0.4, "split"] == {**TRAINING, "learning_rate": 0.5}


def test_a_healed_row_without_its_static_model_is_refused(
    refuse: steps.Refuse, tmp_path: Path
) -> None:
    file = tmp_path / "suite.yaml"
    file.write_text(yaml.safe_dump(CONFIG))
    fixed = ["--suite", file, "--data", ROOT, "--workdir", tmp_path / "w", "--device", "cpu"]
    said = refuse("tune", *fixed, "--rows", "healed", "--out", tmp_path / "tuned.yaml")
    assert "healed starts from results/tuning/demo/shortgpt/b25/s42/model, which a run" in said


def test_sets_of_layers_are_tried_where_they_hold_the_budget() -> None:
    lending = {
        "hero-random": {"from": "hero", "params": {"variant": "random"}, "lender": "hero"},
        "hero-half": {"from": "hero", "params": {"candidates": "later-half"}},
    }
    config = {**CONFIG, "derive": lending, "budgets": [0.25, 0.4, 0.6]}
    suite = read_suite(config)

    def sets(row: str) -> dict[float | None, list[str]]:
        return {job.budget: list(layer_sets(suite, job)) for job in jobs_to_tune(suite, [row])}

    # At 40 % the later half holds too little, and the later three quarters are the row's own.
    wide = {0.25: ["later-three-quarters", "all-but-first"], 0.4: ["all-but-first"]}
    assert sets("hero") == {**wide, 0.6: ["all-but-first"]}
    assert not any(sets("hero-half").values())
    assert not any(sets("hero-random").values())
    assert sets("lora") == {None: []}


def test_a_row_that_cannot_meet_its_budget_is_named_and_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file, out = tmp_path / "suite.yaml", tmp_path / "tuned.yaml"
    file.write_text(yaml.safe_dump({**CONFIG, "rows": ["dense", "mindskip"], "derive": {}}))
    for part in ("training", "validation", "probe"):
        (tmp_path / f"{part}.jsonl").touch()
    monkeypatch.setattr("workflows.steps.tune.open_backbone", None)  # a fit would fail
    steps.call("tune", "--suite", file, "--data", tmp_path, "--device", "cpu", "--out", out)
    assert "mindskip at a budget of 0.25: no try, its attention targets" in capsys.readouterr().out
    assert not out.exists()


def test_a_row_whose_tries_miss_its_budget_does_not_stop_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def attempt(suite: Suite, job: Job, args: Namespace, **choice: Any) -> Try:
        return {
            **choice,
            "updates": 2,
            "right": 0.5,
            "loss": 1.0,
            "skip": 0.25 * (job.row != "hero"),
        }

    file, out = tmp_path / "suite.yaml", tmp_path / "tuned.yaml"
    file.write_text(
        yaml.safe_dump({**CONFIG, "rows": ["dense", "hero", "skipgpt-rt"], "derive": {}})
    )
    for part in ("training", "validation", "probe"):
        (tmp_path / f"{part}.jsonl").touch()
    monkeypatch.setattr("workflows.steps.tune.try_once", attempt)
    with pytest.raises(SystemExit):
        steps.call("tune", "--suite", file, "--data", tmp_path, "--device", "cpu", "--out", out)
    assert steps.sentence(capfd.readouterr().err) == "hero: no try meets the budget 0.25"
    assert list(yaml.safe_load(out.read_text())["params"]) == ["skipgpt-rt"]


def test_a_set_that_wins_is_tried_at_the_rates_beside(suite: Suite) -> None:
    job = jobs_to_tune(suite, ["hero"])[0]
    right = {("auto", 1.0): 0.3, ("auto", 2.0): 0.4, ("wide", 2.0): 0.6, ("wide", 4.0): 0.7}
    asked = []

    def attempt(learning_rate: float, candidates: str) -> dict[str, Any]:
        asked.append((candidates, learning_rate))
        choice = {"learning_rate": learning_rate, "candidates": candidates}
        return {**choice, "skip": 0.25, "right": right.get(asked[-1], 0.1), "loss": 1.0}

    grid = [1.0, 2.0, 4.0, 8.0]
    tries = tune(job, grid, ["wide", "all"], [], attempt)  # type: ignore[list-item]
    beside = [("wide", 1.0), ("wide", 4.0)]
    assert asked == [*(("auto", rate) for rate in grid), ("wide", 2.0), ("all", 2.0), *beside]
    assert best_try(job, tries) == tries[-1]


def test_lora_beside_a_router_has_a_rate_of_its_own() -> None:
    rows = ["dense", "skipgpt-joint", "skipgpt-rt", "lora"]
    config = read_suite({**CONFIG, "rows": rows, "derive": {}})
    grid = [0.3, 1.0, 3.0]
    shares = {job.row: lora_shares(config, job, grid) for job in jobs_to_tune(config, None)}
    assert shares == {"skipgpt-joint": [0.3, 3.0], "skipgpt-rt": [], "lora": []}
    # The suite's own would hold over what was chosen.
    pinned = {**CONFIG, "rows": rows, "derive": {}, "params": {"skipgpt-joint": {"lora_rate": 0.1}}}
    suite = read_suite(pinned)
    assert lora_shares(suite, jobs_to_tune(suite, ["skipgpt-joint"])[0], grid) == []
    asked = []

    def attempt(learning_rate: float, **lora: float) -> dict[str, Any]:
        asked.append((learning_rate, *lora.values()))
        right = {(2.0,): 0.4, (2.0, 3.0): 0.5, (4.0, 3.0): 0.6}.get(asked[-1], 0.1)
        done = {"skip": 0.25, "right": right, "loss": 1.0, "updates": 9}
        return {"learning_rate": learning_rate, **lora, **done}

    job = jobs_to_tune(config, ["skipgpt-joint"])[0]
    tries = tune(job, [1.0, 2.0, 4.0], [], [0.3, 3.0], attempt)
    assert asked == [(1.0,), (2.0,), (4.0,), (2.0, 0.3), (2.0, 3.0), (1.0, 3.0), (4.0, 3.0)]
    outcome: dict[str, Any] = {"params": {}, "tries": {}}
    enter(outcome, job, tries)
    (entry,) = outcome["params"]["skipgpt-joint"]
    assert entry["params"] == {"learning_rate": 4.0, "lora_rate": 3.0}


def test_a_later_call_leaves_what_others_wrote() -> None:
    suite = read_suite({**CONFIG, "match": ["pooled", "split"]})
    pooled, split = jobs_to_tune(suite, ["hero"])
    outcome: dict[str, Any] = {
        "params": {"hero": [{"params": {"learning_rate": 0.1}}], "lora": [{"params": {}}]},
        "tries": {},
    }
    for job, rate in ((pooled, 0.2), (split, 0.3), (pooled, 0.4)):
        done = {"skip": 0.25, "right": 0.5, "loss": 1.0, "updates": 20}
        enter(outcome, job, [{"learning_rate": rate, **done}])
    assert outcome["params"]["hero"] == [
        {"budget": 0.25, "match": "pooled", "params": {"learning_rate": 0.4}},
        {"budget": 0.25, "match": "split", "params": {"learning_rate": 0.3}},
        {"params": {"learning_rate": 0.1}},
    ]
    assert outcome["params"]["lora"] == [{"params": {}}]
    assert [one["learning_rate"] for one in outcome["tries"]["hero"]] == [0.3, 0.4]
    longer = {"learning_rate": 0.05, "skip": 0.25, "right": 0.4, "loss": 1.0, "updates": 60}
    enter(outcome, job, [longer])
    assert [one["learning_rate"] for one in outcome["tries"]["hero"]] == [0.3, 0.4, 0.05]
    rates = [entry["params"]["learning_rate"] for entry in outcome["params"]["hero"]]
    assert 0.05 in rates
    assert 0.4 not in rates
