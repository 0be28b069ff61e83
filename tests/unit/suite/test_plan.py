"""What suites cost: sums that can be followed, and the promises that suites make."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from workflows import ROOT
from workflows.suite.config import read_configs
from workflows.suite.jobs import Suite, read_suite
from workflows.suite.machines import MACHINES, Machine
from workflows.suite.model import model_of
from workflows.suite.plan import plan
from workflows.suite.runs import PADDING, run_of
from workflows.suite.show import opening

PAPER = ("llama31_8b", "llama2_7b", "llama2_13b")


def suite_of(*names: str, **changes: Any) -> Suite:
    return read_suite(read_configs(names) | changes)


def few(*rows: str, **changes: Any) -> Suite:
    """The core of 8B with some of its rows alone."""
    seeds = {"hero": [42, 43, 44]}
    return suite_of("llama31_8b", rows=list(rows), derive={}, first=[], row_seeds=seeds, **changes)


@pytest.fixture(scope="module")
def plans() -> dict[str, dict[str, Any]]:
    names = (*PAPER, "smollm2_135m", "llama32_1b")
    return {name: plan(suite_of(name), Path("/nowhere")) for name in names}


def test_the_core_of_8b_takes_at_most_450_h100_hours(plans: dict[str, Any]) -> None:
    assert 200 < plans["llama31_8b"]["total"]["hours"]["H100 SXM"] <= 450


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
    assert total["hours"]["8 CPU cores"] <= 12
    assert total["longest_run_hours"]["8 CPU cores"] <= 10
    assert total["hours"]["RTX 4090"] <= 1
    assert suite_of("smollm2_135m").config["resources"]["gpu"] == 0
    assert suite_of("smollm2_135m", "overlays/gpu").config["resources"]["gpu"] == 1


def test_the_1b_rung_takes_a_night_on_a_24_gb_card(plans: dict[str, Any]) -> None:
    total = plans["llama32_1b"]["total"]
    assert total["hours"]["RTX 4090"] <= 15.5
    assert max(total["fit_memory_gb"], total["evaluation_memory_gb"]) < 24


def test_the_sums_are_those_of_the_runs(tmp_path: Path) -> None:
    suite = few("dense", "hero", "lora", noise_batch_sizes=[8])
    found = plan(suite, tmp_path)
    assert list(found["rows"]) == ["dense", "hero", "lora"]
    dense, hero = found["rows"]["dense"], found["rows"]["hero"]
    assert (dense["fits"], dense["evaluations"]) == (1, 2)
    # Two budgets, three seeds.
    assert (hero["fits"], hero["evaluations"]) == (6, 6)
    assert hero["training_tokens"] == 6 * 7339 * 83_200
    assert dense["training_tokens"] == 0
    for key in ("fits", "evaluations", "training_tokens", "scored_tokens", "flops"):
        assert found["total"][key] == pytest.approx(sum(o[key] for o in found["rows"].values()))
    for machine in MACHINES:
        parts = [one["hours"][machine.name] for one in found["rows"].values()]
        assert found["total"]["hours"][machine.name] == pytest.approx(sum(parts), abs=2e-3)
    every = [found["total"], found["disk"], found["left"], *found["rows"].values()]
    assert {one["basis"] for one in every} == {"derived"}


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
    for kept in (False, True):
        suite = few("dense", "shortgpt", "laco", keep_models=kept)
        sizes.append(plan(suite, tmp_path)["disk"]["static_models"])
    assert sizes[0] == pytest.approx(16.06 * 0.75, abs=0.05)
    # Two rows at 25 and at 40 %.
    assert sizes[1] == pytest.approx(16.06 * 2 * (0.75 + 0.60), abs=0.1)


def test_seconds_of_a_fit_by_hand(tmp_path: Path) -> None:
    suite = few("dense", "lora")
    (job,) = (job for job in suite.jobs if job.row == "lora")
    run = run_of(suite, job, model_of(suite, "llama31_8b", tmp_path))
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


def test_the_step_prints_and_writes_without_torch(tmp_path: Path) -> None:
    code = (
        "import sys; sys.argv = ['plan', '--suite', 'llama2_7b', 'overlays/split', '--out', "
        f"{str(tmp_path / 'plan.json')!r}]\n"
        "from workflows.steps.plan import main\nmain()\n"
        "heavy = {'torch', 'transformers', 'lm_eval', 'pandas'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    said, found = done.stdout.splitlines(), json.loads((tmp_path / "plan.json").read_text())
    assert said[0] == "Suite llama2_7b; every figure is derived, none is measured."
    assert [line.split()[0] for line in said[2:-5]] == list(found["rows"])
    assert found["total"]["fits"] == len(suite_of("llama2_7b", "overlays/split").jobs)


def test_a_backbone_of_unknown_shape_stops_no_run_that_opens_with_a_plan() -> None:
    backbone = {"path": "hub:somebody/their-model", "dtype": "bfloat16"}
    told = opening(suite_of("llama31_8b", backbones={"theirs": backbone}))
    assert told.startswith("No plan of what suite llama31_8b costs: backbone 'theirs'")
    assert opening(suite_of("smollm2_135m")).startswith("Suite smollm2_135m; every figure")


def test_a_new_row_without_training_is_not_planned_as_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    suite = few("dense", "lora", "random-skip", "shortgpt")
    assert plan(suite, tmp_path)["fits_not_counted"] == []
    monkeypatch.setattr("workflows.suite.runs.PASSES", {"random_skip": 0})
    assert plan(suite, tmp_path)["fits_not_counted"] == ["shortgpt"]
    assert opening(suite).endswith("since what they read is not known: shortgpt.")


def test_greedy_searches_cost_half_a_pass_for_every_part_that_is_left(tmp_path: Path) -> None:
    suite = few("dense", "sleb", "blockpruner", params={"blockpruner": {"samples": 50}})
    model = model_of(suite, "llama31_8b", tmp_path)
    work = {job.row: run_of(suite, job, model).fit.flops for job in suite.jobs if job.budget == 0.4}
    # 13 rounds over 32 layers and 26 over their 64 branches, and the states of each round once.
    passes = {
        "sleb": 13 + sum(32 - n for n in range(13)) / 2,
        "blockpruner": 26 + sum(64 - n for n in range(26)) / 2,
    }
    found = work["blockpruner"] / work["sleb"]
    assert found == pytest.approx(passes["blockpruner"] / passes["sleb"], rel=0.03)
