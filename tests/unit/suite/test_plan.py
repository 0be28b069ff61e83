"""What suites cost: sums that can be followed, and the promises that suites make."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from workflows import ROOT
from workflows.report.published import REFERENCE
from workflows.steps.plan import main
from workflows.suite.config import read_configs
from workflows.suite.costs import PADDING, JobCost, StepWork, job_cost
from workflows.suite.jobs import Suite, read_suite
from workflows.suite.machines import MACHINES, Machine
from workflows.suite.plan import plan
from workflows.suite.plan_text import opening, plan_notes

PAPER = ("llama31_8b", "llama2_7b", "llama2_13b")


def suite_of(*names: str, **changes: Any) -> Suite:
    return read_suite(read_configs(names) | changes)


def few(*rows: str, **changes: Any) -> Suite:
    """The core of 8B with some of its rows alone."""
    seeds = {"hero": [42, 43, 44]}
    return suite_of("llama31_8b", rows=list(rows), derive={}, first=[], row_seeds=seeds, **changes)


@pytest.fixture(scope="module")
def plans() -> dict[str, dict[str, Any]]:
    """Without rows that a file of a user's own adds: the promises are about the committed ones."""
    names = (*PAPER, "smollm2_135m", "llama32_1b")
    committed = pd.read_csv(REFERENCE / "families" / "families.csv")["row"]
    plans = {}
    for name in names:
        rows = {job.row for job in suite_of(name).jobs}
        suite = suite_of(name, rows=[row for row in committed if row in rows])
        plans[name] = plan(suite, Path("/nowhere"))
    return plans


def test_the_core_of_8b_takes_at_most_550_h100_hours(plans: dict[str, Any]) -> None:
    assert 300 < plans["llama31_8b"]["total"]["hours"]["H100 SXM"] <= 550


@pytest.mark.parametrize("name", PAPER)
def test_a_core_fits_80_gb_and_trains_every_row_on_the_same_tokens(
    name: str, plans: dict[str, Any]
) -> None:
    total = plans[name]["total"]
    assert max(total["fit_memory_gb"], total["evaluation_memory_gb"]) < 80
    rows = plans[name]["rows"].values()
    tokens = {one["training_tokens"] / one["fits"] for one in rows if one["training_tokens"]}
    assert tokens == {7339 * 83_200}


def test_the_first_rung_takes_half_a_day_on_eight_cores_or_an_hour_on_a_card(
    plans: dict[str, Any],
) -> None:
    total = plans["smollm2_135m"]["total"]
    assert total["hours"]["8 CPU cores"] <= 13.5  # with the texts of fidelity
    assert total["longest_run_hours"]["8 CPU cores"] <= 10
    assert total["hours"]["RTX 4090"] <= 1
    assert suite_of("smollm2_135m").config["resources"]["gpu"] == 0
    assert suite_of("smollm2_135m", "overlays/gpu").config["resources"]["gpu"] == 1


def test_the_1b_rung_takes_a_night_on_a_24_gb_card(plans: dict[str, Any]) -> None:
    total = plans["llama32_1b"]["total"]
    assert total["hours"]["RTX 4090"] <= 18
    assert max(total["fit_memory_gb"], total["evaluation_memory_gb"]) < 24


def test_the_sums_are_those_of_the_runs(tmp_path: Path) -> None:
    suite = few("dense", "hero", "lora", noise_batch_sizes=[8])
    costs = plan(suite, tmp_path)
    assert list(costs["rows"]) == ["dense", "hero", "lora"]
    dense, hero = costs["rows"]["dense"], costs["rows"]["hero"]
    assert (dense["fits"], dense["evaluations"]) == (1, 2)
    # Two budgets, three seeds.
    assert (hero["fits"], hero["evaluations"]) == (6, 6)
    assert hero["training_tokens"] == 6 * 7339 * 83_200
    assert dense["training_tokens"] == 0
    for key in ("fits", "evaluations", "training_tokens", "scored_tokens", "flops"):
        assert costs["total"][key] == pytest.approx(sum(o[key] for o in costs["rows"].values()))
    for machine in MACHINES:
        parts = [cost["hours"][machine.name] for cost in costs["rows"].values()]
        assert costs["total"]["hours"][machine.name] == pytest.approx(sum(parts), abs=2e-3)
    every = [costs["total"], costs["disk"], costs["left"], *costs["rows"].values()]
    assert {cost["basis"] for cost in every} == {"derived"}


def test_what_has_a_record_is_not_left(tmp_path: Path) -> None:
    suite = few("dense", "lora")
    before = plan(suite, tmp_path)
    assert before["left"] == before["total"]
    (lora,) = (job for job in suite.jobs if job.row == "lora")
    (tmp_path / lora.folder).mkdir(parents=True)
    (tmp_path / lora.folder / "record.json").write_text("{}")
    after = plan(suite, tmp_path)
    assert after["total"] == before["total"]
    assert after["left"] == before["rows"]["dense"]


def test_a_row_that_is_not_causal_reads_every_choice_with_its_prompt(tmp_path: Path) -> None:
    rows = plan(suite_of("llama31_8b", "overlays/literal", rows=["dense"]), tmp_path)["rows"]
    ratio = rows["mod-d-literal"]["scored_tokens"] / rows["skipgpt-rt-literal"]["scored_tokens"]
    assert ratio > 2.5


def test_a_suite_that_shares_no_context_reads_every_choice_with_its_prompt(tmp_path: Path) -> None:
    shared, apart = (
        plan(few("dense", share_prefix=share), tmp_path)["total"]["scored_tokens"]
        for share in (True, False)
    )
    assert apart / shared > 2.5


def test_static_models_lie_there_one_at_a_time_unless_they_are_kept(tmp_path: Path) -> None:
    sizes = []
    for keep in (False, True):
        suite = few("dense", "shortgpt", "laco", keep_models=keep)
        sizes.append(plan(suite, tmp_path)["disk"]["static_models"])
    assert sizes[0] == pytest.approx(16.06 * 0.75, abs=0.05)
    # Two rows at 25 and at 40 %.
    assert sizes[1] == pytest.approx(16.06 * 2 * (0.75 + 0.60), abs=0.1)


def test_static_models_that_are_deleted_may_lie_there_together(tmp_path: Path) -> None:
    healed = {"shortgpt+lora": {"from": "shortgpt", "then": "lora"}}
    suite = suite_of(
        "llama31_8b", rows=["dense", "shortgpt", "laco"], derive=healed, first=[], row_seeds={},
        budgets=[0.25], keep_models="trained",
    )  # fmt: skip
    costs, one = plan(suite, tmp_path), 16.06 * 0.75
    # ShortGPT's stays for the row that starts from it; so does LaCo's until it is scored.
    assert costs["disk"]["static_models"] == pytest.approx(2 * one, abs=0.05)
    assert costs["disk"]["static_models_side_by_side"] == pytest.approx(2 * one, abs=0.05)
    assert "side by side, as on a cluster" not in plan_notes(costs)[0]
    apart = plan(few("dense", "shortgpt", "laco", budgets=[0.25], keep_models=False), tmp_path)
    assert apart["disk"]["static_models"] == pytest.approx(one, abs=0.05)
    assert plan_notes(apart)[0].endswith(
        f"side by side, as on a cluster, static models take {2 * one:.4g}."
    )


def row_cost(suite: Suite, row: str, root: Path) -> JobCost:
    return job_cost(suite, next(job for job in suite.jobs if job.row == row), root)


def test_seconds_of_a_fit_by_hand(tmp_path: Path) -> None:
    run = row_cost(few("dense", "lora"), "lora", tmp_path)
    # Forward through 32 layers and the head, backward through 16, these once more; scores apart.
    layer, head = 218_103_808, 525_336_576
    by_hand = 2 * (32 * layer + head) + 2 * (16 * layer + head) + 2 * 16 * layer
    assert run.fit.flops / (PADDING * run.fit.tokens) == pytest.approx(by_hand, rel=0.12)
    machine = Machine("made up", 1e15, 1e12, 0.0, 4096, 0.0)
    start = 30 + 2 * 8_030_261_248 / 1e9
    assert run.seconds(run.fit, machine) == pytest.approx(start + run.fit.flops / 0.5e15)
    slow = Machine("waits", 1e15, 1e12, 1.0, 4096, 0.0)
    passes = 7339 * 14 * (32 + 3 * 16)
    assert run.seconds(run.fit, slow) == pytest.approx(start + passes)


def test_training_grows_with_updates_and_tokens(tmp_path: Path) -> None:
    def lora(**training: int) -> StepWork:
        return row_cost(few("dense", "lora", training=training), "lora", tmp_path).fit

    once = lora(updates=100, batch_tokens=8192)
    assert once.tokens == 100 * 8192
    for more in (lora(updates=200, batch_tokens=8192), lora(updates=100, batch_tokens=16_384)):
        assert more.tokens == 2 * once.tokens
        assert more.flops == pytest.approx(2 * once.flops, rel=0.02)
    assert lora(updates=100, batch_tokens=16_384).memory > once.memory


def test_calibration_grows_with_texts_and_their_length(tmp_path: Path) -> None:
    def taylor(**params: int) -> StepWork:
        suite = few("dense", "shortened-taylor", params={"shortened-taylor": params})
        return row_cost(suite, "shortened-taylor", tmp_path).fit

    once = taylor(samples=10, length=128)
    for more in (taylor(samples=20, length=128), taylor(samples=10, length=256)):
        assert more.flops == 2 * once.flops
        assert more.memory > once.memory


def test_a_row_that_does_not_apply_costs_nothing(tmp_path: Path) -> None:
    suite = few("dense", "mindskip")  # its attentions hold less than the budget
    run = row_cost(suite, "mindskip", tmp_path)
    assert run.fit == run.evaluation == StepWork()


def test_the_step_prints_and_writes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "plan.json"
    words = ["plan", "--suite", "llama2_7b", "overlays/split", "--out", str(out)]
    monkeypatch.setattr("sys.argv", words)
    main()
    printed, written = capsys.readouterr().out.splitlines(), json.loads(out.read_text())
    assert printed[0] == "Suite llama2_7b; every figure is derived, none is measured."
    assert [line.split()[0] for line in printed[2:-5]] == list(written["rows"])
    assert written["total"]["fits"] == len(suite_of("llama2_7b", "overlays/split").jobs)


def test_a_run_opens_without_a_plan_where_torch_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "workflows.suite.plan", None)
    assert opening(few("dense")).startswith("No plan of what suite llama31_8b costs: ")


def test_a_job_list_needs_no_torch() -> None:
    """The Snakefile imports what opens a run with the plan, and runs it on the start alone."""
    code = "import sys\nimport workflows.suite.plan_text\nassert 'torch' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0


def test_a_backbone_of_unknown_shape_stops_no_run_that_opens_with_a_plan() -> None:
    backbone = {"path": "hub:somebody/their-model", "dtype": "bfloat16"}
    text = opening(suite_of("llama31_8b", backbones={"theirs": backbone}))
    assert text.startswith("No plan of what suite llama31_8b costs: backbone 'theirs'")
    assert opening(suite_of("smollm2_135m")).startswith("Suite smollm2_135m; every figure")
