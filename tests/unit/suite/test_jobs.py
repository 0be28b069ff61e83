"""From a suite to its jobs: what runs, with which arguments and data, under which path."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from methods import discover
from tests.unit.conftest import config
from workflows import ROOT
from workflows.evaluation.tasklist import TaskEntry
from workflows.steps import texts
from workflows.suite import commands, inputs
from workflows.suite.config import with_defaults
from workflows.suite.job import DATA_PARTS, FIDELITY
from workflows.suite.jobs import Suite, read_suite
from workflows.suite.table import read_choices


def keys(suite: Suite) -> list[str]:
    return ["/".join(job.key) for job in suite.jobs]


def test_only_stochastic_rows_repeat_seeds_and_only_budgeted_rows_budgets(root: Path) -> None:
    assert keys(read_suite(config(), root)) == [
        "toy/dense/b0/s42",
        "toy/random-skip/b25/s42",
        "toy/random-skip/b25/s43",
        "toy/random-skip/b40/s42",
        "toy/random-skip/b40/s43",
        "toy/shortgpt/b25/s42",
        "toy/shortgpt/b40/s42",
    ]


def test_each_row_is_timed_once_per_target(root: Path) -> None:
    timing = {"prefill": "8x64", "rounds": 5}
    data = {"probe": {"source": "text.txt"}}
    suite = read_suite(config(timing=timing, data=data), root)
    assert [file.removeprefix("results/tiny/") for file in suite.speed_files()] == [
        "toy/dense/b0/s42/speed.json",
        "toy/random-skip/b25/s42/speed.json",
        "toy/random-skip/b40/s42/speed.json",
        "toy/shortgpt/b25/s42/speed.json",
        "toy/shortgpt/b40/s42/speed.json",
    ]
    assert commands.timing(suite) == "--modes prefill --prefill 8x64 --rounds 5"
    suite = read_suite(config(timing={"training": "2x8"}, data=data), root)
    assert commands.timing(suite) == "--modes training --training 2x8"
    assert suite.timing_texts == "results/tiny/data/probe.jsonl"
    assert read_suite(config(), root).speed_files() == []


def test_rows_are_timed_on_texts_of_the_suite(root: Path) -> None:
    for data in ({}, {"probe": {"source": "ids.npy"}}):
        with pytest.raises(ValueError, match=r"timing: it needs texts, data\.probe or data\.vali"):
            read_suite(config(timing={"prefill": "8x64"}, data=data), root)
    with pytest.raises(ValueError, match=r"timing\.decode: '8' must be SEQUENCESxTOKENS"):
        read_suite(config(timing={"decode": "8"}), root)
    with pytest.raises(ValueError, match=r"timing: .* must be a mapping of prefill, decode or"):
        read_suite(config(timing={"rounds": 3}), root)


def test_every_backbone_runs_every_row(root: Path) -> None:
    two = {"toy": {"path": "toy"}, "far": {"path": "hub:owner/name"}}
    suite = read_suite(config(backbones=two, rows=["dense"]), root)
    assert keys(suite) == ["toy/dense/b0/s42", "far/dense/b0/s42"]
    assert suite.backbone_folder("toy") == "toy"
    assert suite.backbone_folder("far") == "results/backbones/far"


def test_all_means_every_discovered_row(root: Path) -> None:
    suite = read_suite(config(rows="all"), root)
    assert list(dict.fromkeys(job.row for job in suite.jobs)) == list(discover())


def test_a_line_may_start_from_another_row_or_take_its_rates(root: Path) -> None:
    derive = {
        "shortgpt+lora": {"from": "shortgpt", "then": "lora", "params": {"rank": 3}},
        "hero-random": {"from": "hero", "lender": "hero"},
    }
    suite = read_suite(config(rows=["shortgpt", "hero"], reference_row="hero", derive=derive), root)
    healed = suite.find("toy", "shortgpt+lora", "b40", "s43")
    assert healed.method.name == "lora"
    assert healed.params["rank"] == 3
    first = "results/tiny/toy/shortgpt/b40/s42/model"
    assert suite.start_folder(healed) == first
    assert healed.waits_for() == healed.stands_on() == [first]
    # The budget belongs to the row it starts from.
    assert "--budget" not in commands.fit(suite, healed)
    assert suite.data_files(healed) == {}
    lent = suite.find("toy", "hero-random", "b25", "s43")
    assert suite.start_folder(lent) == "toy"
    assert lent.waits_for() == ["results/tiny/toy/hero/b25/s43/model"]
    assert not lent.stands_on()
    words = commands.fit(suite, lent)
    assert "--lender results/tiny/toy/hero/b25/s43/model" in words
    assert "--budget 0.25" in words


def test_a_row_may_run_seeds_of_its_own(root: Path) -> None:
    derive = {"hero-random": {"from": "hero", "lender": "hero"}}
    rows = ["dense", "random-skip", "shortgpt", "hero"]
    row_seeds = {"hero": [42, 43], "hero-random": [43], "shortgpt": [7, 8], "lora": [1]}
    changes = config(rows=rows, derive=derive, budgets=[0.25], seeds=[42], row_seeds=row_seeds)
    suite = read_suite(changes, root)
    assert keys(suite) == [
        "toy/dense/b0/s42",
        "toy/random-skip/b25/s42",
        "toy/shortgpt/b25/s7",
        "toy/hero/b25/s42",
        "toy/hero/b25/s43",
        "toy/hero-random/b25/s43",
    ]
    assert suite.jobs[-1].waits_for() == [f"{suite.jobs[-2].folder}/model"]


def test_a_healed_row_starts_from_the_one_run_of_its_static_row(root: Path) -> None:
    derive = {"cut+lora": {"from": "shortgpt", "then": "lora"}}
    row_seeds = {"shortgpt": [7], "cut+lora": [42, 43]}
    suite = read_suite(config(derive=derive, row_seeds=row_seeds), root)
    starts = {job.start.key[-1] for job in suite.jobs if job.start is not None}
    assert starts == {"s7"}
    assert {job.key[-1] for job in suite.jobs if job.row == "cut+lora"} == {"s42", "s43"}


def test_the_backbone_of_a_world_is_trained_where_every_suite_finds_it(root: Path) -> None:
    suite = read_suite(config(backbones={"mine": {"path": "world:small"}}), root)
    assert suite.backbone_folder("mine") == "results/trained/small"
    assert inputs.backbone_files(suite, "mine") == ["results/trained/small"]


def test_folders_and_labels(root: Path) -> None:
    derive = {"pinned": {"from": "shortgpt", "params": {"layers": 2}, "budgets": [None]}}
    suite = read_suite(config(budgets=[0.125], derive=derive), root)
    labels = {job.row: job.label for job in suite.jobs}
    assert labels == {
        "dense": "b0", "random-skip": "b12.5", "shortgpt": "b12.5", "pinned": "bfree",
    }  # fmt: skip
    assert suite.jobs[-1].folder == "results/tiny/toy/pinned/bfree/s42"
    assert suite.find("toy", "pinned", "bfree", "s42") is suite.jobs[-1]


def test_derived_rows_carry_params_and_budgets_of_their_own(root: Path) -> None:
    derive = {"raw": {"from": "shortgpt", "params": {"last_layer": "raw"}, "budgets": [0.5]}}
    job = read_suite(config(derive=derive), root).jobs[-1]
    assert (job.row, job.method.name, dict(job.params), job.budget) == (
        "raw", "shortgpt", {"last_layer": "raw"}, 0.5,
    )  # fmt: skip


def test_arguments_of_a_job_hold_what_changes_numbers(root: Path) -> None:
    suite = read_suite(config(max_length=64, limit=7, batch_size=4, task_folder="toy"), root)
    words = commands.fit(suite, suite.jobs[1])
    assert words == (
        "--method random-skip --params '{}' --seed 42 --dtype float32 --max-length 64 "
        "--budget 0.25 --match pooled"
    )
    assert "--budget" not in commands.fit(suite, suite.jobs[0])
    assert commands.score(suite, suite.jobs[0]) == (
        "--suite tiny --backbone-name toy --row dense --batch-size 4 --limit 7 --task-dir toy"
    )
    sharing = read_suite(config(share_prefix=True), root)
    assert commands.score(sharing, sharing.jobs[0]).endswith(" --batch-size 16 --share-prefix")


def test_time_between_snapshots_is_no_number_of_a_fit(root: Path) -> None:
    data = {part: {"source": "text.txt"} for part in ("training", "probe")}

    def hero(**training: float) -> tuple[str, str]:
        suite = read_suite(config(rows=["dense", "hero"], data=data, training=training), root)
        return commands.fit(suite, suite.jobs[-1]), commands.numbers_of_fit(suite, suite.jobs[-1])

    (first, before), (second, after) = hero(updates=5), hero(updates=5, snapshot_minutes=1)
    assert after == before == first
    assert '"snapshot_minutes": 1' in second
    assert hero(updates=6)[1] != before


def test_a_suite_with_a_gpu_asks_for_one(root: Path) -> None:
    assert read_suite(config(), root).device == "cpu"
    assert read_suite(config(resources={"gpu": 1}), root).device == "gpu"


def test_the_noise_floor_is_the_first_run_of_the_reference(root: Path) -> None:
    suite = read_suite(config(batch_size=4, noise_batch_sizes=[1, 4, 8]), root)
    assert suite.noise_files() == [
        f"results/tiny/toy/dense/b0/s42/noise/batch{size}.json" for size in (1, 8)
    ]
    assert "--batch-size 8" in commands.score(suite, suite.jobs[0], 8)
    assert read_suite(config(), root).noise_files() == []
    other = config(reference_row="random-skip", noise_batch_sizes=[1])
    (file,) = read_suite(other, root).noise_files()
    assert file == "results/tiny/toy/random-skip/b25/s42/noise/batch1.json"


def test_a_fit_watches_its_own_file_and_the_core(root: Path) -> None:
    job = next(j for j in read_suite(config(), root).jobs if j.row == "shortgpt")
    assert "methods/shortgpt.py" in job.code()
    assert {"methods/core/model/ledger.py", "methods/base.py"} < set(job.code())
    assert "methods/random_skip.py" not in job.code()
    assert all((ROOT / name).is_file() for name in job.code())


def test_an_evaluation_watches_tasks_and_what_they_share(root: Path) -> None:
    code = read_suite(config(), root).evaluation_code()
    tasks = "workflows/evaluation/tasks/demo"
    assert {f"{tasks}/demo_facts.yaml", f"{tasks}/_generation_yaml"} < set(code)
    assert "workflows/evaluation/harness.py" in code


def test_defaults_are_filled_in_at_every_depth() -> None:
    complete = with_defaults(config(data={"training": {"source": "demo"}}))
    assert complete["backbones"]["toy"]["dtype"] == "float32"
    assert complete["data"]["training"] == {"source": "demo", "split": "train", "seed": 0}
    assert complete["resources"] == {"mem_mb": 3000, "runtime": 60, "gpu": 0}
    assert (complete["batch_size"], complete["max_length"]) == (16, 2048)
    assert (complete["keep_models"], complete["watch_code"]) == (True, True)
    assert complete["reference_row"] == "dense"
    assert complete["match"] == "pooled"


@pytest.mark.parametrize(
    ("changes", "focus"),
    [
        ({"rows": ["dense", "hero", "shortgpt"]}, "hero"),
        ({"rows": ["dense", "shortgpt"]}, None),
        ({"rows": ["dense", "hero"], "reference_row": "hero"}, None),
        ({"rows": ["dense", "hero", "shortgpt"], "focus": "shortgpt"}, "shortgpt"),
        ({"rows": ["dense", "hero"], "focus": None}, None),
        (
            {
                "rows": ["dense", "shortgpt"],
                "derive": {"hero-later-half": {"from": "hero", "params": {"candidates": [1]}}},
            },
            None,
        ),
    ],
)
def test_hero_is_in_focus_where_no_other_row_is(
    changes: dict[str, Any], focus: str | None, root: Path
) -> None:
    assert read_suite(config(**changes), root).config["focus"] == focus


def test_the_given_config_is_left_alone() -> None:
    raw = config()
    before = json.dumps(raw)
    with_defaults(raw)
    assert json.dumps(raw) == before


def test_retain_tasks_are_all_tasks_but_perplexity(root: Path) -> None:
    text = {"task": "perplexity:text", "file": str(root / "text.txt")}
    suite = read_suite(config(tasks=["piqa", text]), root)
    assert suite.config["retain_tasks"] == ["piqa"]
    assert inputs.score_files(suite) == [str(root / "text.txt")]
    assert suite.entries[0] == TaskEntry("piqa")


def test_a_budget_may_run_the_first_seeds_only(root: Path) -> None:
    changes = {"rows": ["dense", "hero"], "budgets": [0.25, 0.4], "seeds": [1, 2, 3]}
    suite = read_suite(config(**changes, budget_seeds={"0.40": 2}), root)
    seeds = [(job.label, job.seed) for job in suite.jobs if job.row == "hero"]
    assert seeds == [("b25", 1), ("b25", 2), ("b25", 3), ("b40", 1), ("b40", 2)]


def test_a_run_that_another_borrows_from_is_not_left_out(root: Path) -> None:
    changes = {
        "rows": ["dense", "hero"], "seeds": [1, 2, 3], "row_seeds": {"control": [3]},
        "derive": {"control": {"from": "hero", "params": {}, "lender": "hero"}},
    }  # fmt: skip
    assert read_suite(config(**changes), root).jobs
    said = "derive.control: 'hero' does not run its seed 3 at a budget of 0.25"
    with pytest.raises(ValueError, match=said):
        read_suite(config(**changes, budget_seeds={"0.25": 2}), root)


def test_how_a_backbone_is_scored_does_not_fetch_it_again(root: Path) -> None:
    path = {"path": "hub:some/model", "revision": "a" * 40}
    sources = {
        read_suite(config(backbones={"b": path | more}), root).hub_source("b")
        for more in ({}, {"max_length": 128}, {"dtype": "bfloat16"})
    }
    assert sources == {json.dumps(path)}


def test_rows_are_fitted_by_what_they_cost_and_kept_by_what_they_weigh(root: Path) -> None:
    rows = ["dense", "shortgpt", "hero", "lora", "d-llm"]
    suite = read_suite(config(rows=rows, first=["hero"], keep_models="trained"), root)
    groups = {group: suite.rows(group) for group in ("untrained", "first", "trained")}
    assert groups == {
        "untrained": ["dense", "shortgpt"], "first": ["hero"], "trained": ["lora", "d-llm"],
    }  # fmt: skip
    assert [suite.keeps(group) for group in groups] == [False, True, True]
    assert read_suite(config(), root).keeps("untrained")


def test_a_model_stays_as_long_as_those_that_start_from_it(root: Path) -> None:
    derive = {"cut+lora": {"from": "shortgpt", "then": "lora"}}
    suite = read_suite(config(derive=derive, keep_models="trained"), root)
    assert suite.rows("started") == ["shortgpt"]
    assert suite.rows("untrained") == ["dense", "random-skip"]
    assert suite.keeps("started")
    assert not read_suite(config(derive=derive, keep_models=False), root).keeps("started")


def test_texts_and_backbones_of_a_world_are_made_again_with_its_code() -> None:
    suite = read_suite(config(backbones={"small": {"path": "world:small"}}))
    assert "workflows/demo/world.py" in suite.world_code()
    assert {*suite.world_code(), "workflows/evaluation/own_texts.py"} < {*suite.text_code()}


@pytest.mark.parametrize("part", [*DATA_PARTS, FIDELITY])
def test_the_backbone_writes_any_part_of_the_data(
    part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["--model", "m", "--rows", "4", "--out", "a.jsonl", "--part", part]
    monkeypatch.setattr("sys.argv", ["texts", *words])
    assert texts.arguments().part == part


@pytest.mark.parametrize("wrong", [{"match": "splt"}, {"budget": 25}])
def test_a_tuned_choice_that_can_fit_no_job_is_refused(wrong: dict[str, Any]) -> None:
    content = {"params": {"hero": [{"params": {"learning_rate": 0.1}, **wrong}]}}
    with pytest.raises(ValueError, match="splt|25"):
        read_choices(content)
