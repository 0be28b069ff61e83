"""The suites of the checkout, alone and under overlays; the paper's tables and where they are."""

from __future__ import annotations

import re
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import yaml
from snakemake.utils import update_config

from methods import discover
from workflows import ROOT
from workflows.evaluation import tasknames
from workflows.evaluation.stock import Stock
from workflows.report.paper.printed import groups
from workflows.suite import commands
from workflows.suite.config import read_configs, with_base, with_defaults
from workflows.suite.costs import job_cost
from workflows.suite.jobs import read_suite

SUITES = ROOT / "workflows/suites"
PAPER = ("llama31_8b", "llama2_7b", "llama2_13b")
LADDER = ("smollm2_135m", "qwen25_05b", "llama32_1b")
# For one suite alone: its tasks are files of a machine, and its tables.
REALDATA, CORE, RIVALS = "overlays/realdata", "overlays/smollm_core", "overlays/smollm_trained"
LATER = SPLIT, EIGHTH = "overlays/smollm_split", "overlays/smollm_eighth"
NAMES = sorted(f"overlays/{file.stem}" for file in (SUITES / "overlays").glob("*.yaml"))
OVERLAYS = [name for name in NAMES if name not in (REALDATA, CORE, RIVALS, *LATER)]
SETS = [*((one,) for one in OVERLAYS), tuple(OVERLAYS)]


@pytest.fixture
def no_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tasks of lm-eval are looked up once, in the test of the suites alone."""
    nothing = Stock(Path(), {})
    monkeypatch.setattr(tasknames, "stock_names", lambda names: dict.fromkeys(names, nothing))


@pytest.mark.parametrize("name", sorted(file.stem for file in SUITES.glob("*.yaml")))
def test_every_suite_is_valid(name: str) -> None:
    if name == "own_backbone":
        pytest.skip("an example with paths to fill in")
    assert read_suite(read_configs([name])).name == name


@pytest.mark.parametrize("file", sorted((ROOT / "workflows/suites").glob("llama*.yaml")), ids=str)
def test_paper_suites_are_valid_and_score_arc_on_test(file: Path) -> None:
    suite = read_suite(yaml.safe_load(file.read_text()))
    assert suite.name == file.stem
    assert len(suite.config["retain_tasks"]) == 7
    shots = {entry.task: entry.num_fewshot for entry in suite.entries}
    assert (shots["arc_easy"], shots["arc_challenge"], shots["hellaswag"]) == (25, 25, 5)
    assert all(entry.split == "test" for entry in suite.entries)
    assert {job.match for job in suite.jobs} == {"pooled", None}


def test_the_small_suite_repeats_hero_lora_and_the_controls_only() -> None:
    suite = read_suite(yaml.safe_load((ROOT / "workflows/suites/small.yaml").read_text()))
    seeds: dict[str, set[int]] = {}
    for job in suite.jobs:
        seeds.setdefault(job.row, set()).add(job.seed)
    variants = ("no-history", "no-memread", "same-size", "static", "random")
    several = {"lora", "hero", *(f"hero-{variant}" for variant in variants)}
    assert {row for row, row_seeds in seeds.items() if row_seeds == {42, 43, 44}} == several
    assert all(row_seeds == {42} for row, row_seeds in seeds.items() if row not in several)
    healed = ("shortgpt", "shortened-ppl", "shortened-taylor", "laco", "slicegpt", "llm-pruner")
    assert {row for row in seeds if "+" in row} == {f"{name}+lora" for name in healed}
    # HeRo and its variants; LoRA; dense; at two budgets: the other rows, those healed, D-LLM again.
    others = [
        row for row in discover().values() if row.budgeted and row.name not in ("hero", "mindskip")
    ]
    assert len(suite.jobs) == 6 * 2 * 3 + 3 + 1 + 2 * (len(others) + len(healed) + 1)


def test_healed_rows_of_the_headline_train_as_many_parameters_as_hero() -> None:
    suite = read_suite(read_configs(["headline"]))
    jobs = {(job.row, job.budget, job.match): job for job in suite.jobs}
    healed = [job for job in jobs.values() if job.row.endswith("+lora") and job.start is not None]
    static = ("shortgpt", "shortened-ppl", "shortened-taylor", "laco", "slicegpt", "llm-pruner")
    assert {job.row for job in healed} == {f"{row}+lora" for row in (*static, "flap")}
    for job in healed:
        heroes = [jobs["hero", job.budget, match] for match in ("pooled", "split")]
        most = max(job_cost(suite, hero, ROOT).trained for hero in heroes)
        assert job_cost(suite, job, ROOT).trained == pytest.approx(most, rel=0.02), job.row
        # A number of parameters holds in a model of any width; a rank would not.
        assert job.params["parameters"] is not None


def test_overlays_replace_lists_and_merge_mappings() -> None:
    """What Snakemake does with two --configfile arguments, on a suite of this checkout."""
    suite = yaml.safe_load((ROOT / "workflows/suites/llama31_8b.yaml").read_text())
    overlay = {"budgets": [0.3], "training": {"updates": 7}, "limit": 5}
    update_config(suite, overlay)
    result = read_suite(suite)
    assert {job.budget for job in result.jobs if job.method.budgeted} == {0.3, None}
    assert result.config["training"]["updates"] == 7
    assert len(result.config["training"]) > 1
    assert "--limit 5" in commands.score(result, result.jobs[0])


@pytest.mark.parametrize("name", [*PAPER, *LADDER])
def test_every_set_of_overlays_is_valid_and_repeats_no_run(name: str, no_search: None) -> None:
    alone = {job.key for job in read_suite(read_configs([name])).jobs}
    pairs = combinations(OVERLAYS, 2) if name == PAPER[0] else ()
    for overlays in (*SETS, *pairs):
        suite = read_suite(read_configs([name, *overlays]))
        keys = [job.key for job in suite.jobs]
        assert len(keys) == len(set(keys)), overlays
        assert suite.name == name
        # What a finished suite holds stays: rows that decide per token under `split` apart.
        gone = alone - set(keys)
        assert not gone or "overlays/split" in overlays, overlays


def test_a_variable_says_where_the_files_of_the_real_suite_lie(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REALDATA", str(tmp_path))
    names = ["smollm2_135m_instruct", REALDATA]
    with pytest.raises(ValueError, match=f"file {tmp_path}/chat/train.jsonl does not exist"):
        read_suite(read_configs(names))
    for file in ("chat/train", "chat/validation"):
        (tmp_path / f"{file}.jsonl").parent.mkdir(exist_ok=True)
        (tmp_path / f"{file}.jsonl").touch()
    suite = read_suite(read_configs(names))
    assert all(entry.is_local for entry in suite.entries)
    files = [f for e in suite.entries for f in e.config["dataset_kwargs"]["data_files"].values()]
    assert all(file.startswith(f"{tmp_path}/benchmarks/") for file in files)
    assert suite.hub_tasks == {}


def test_the_core_of_the_real_suite_is_five_runs(no_search: None) -> None:
    suite = read_suite(read_configs(["smollm2_135m_instruct", CORE]))
    untrained = ["dense", "flap", "shortgpt", "llm-pruner"]
    assert sorted(job.row for job in suite.jobs) == sorted([*untrained, "hero-three-quarters"])
    assert {job.budget for job in suite.jobs} == {None, 0.25}
    assert suite.noise_files() == []
    assert "--limit 300" in commands.score(suite, suite.jobs[0])


def test_under_split_the_real_suite_adds_hero_and_its_control(no_search: None) -> None:
    core = {job.key for job in read_suite(read_configs(["smollm2_135m_instruct", CORE])).jobs}
    jobs = read_suite(read_configs(["smollm2_135m_instruct", CORE, SPLIT])).jobs
    added = {(job.row, job.match) for job in jobs if job.key not in core}
    assert added == {("hero-three-quarters", "split"), ("random-skip", "split")}


def test_at_an_eighth_the_real_suite_has_the_rows_without_training(no_search: None) -> None:
    quarter = read_suite(read_configs(["smollm2_135m_instruct", CORE, RIVALS])).jobs
    eighth = read_suite(read_configs(["smollm2_135m_instruct", CORE, EIGHTH])).jobs
    untrained = {job.row for job in quarter if not job.method.trained} & set(discover())
    assert {(job.row, job.budget) for job in eighth} == {
        (row, None if row == "dense" else 0.125) for row in untrained
    }


def test_rivals_on_the_real_model_train_as_many_parameters_as_hero(no_search: None) -> None:
    config = read_configs(["smollm2_135m_instruct", CORE, RIVALS])
    # The same shape, whose numbers need no download.
    suite = read_suite(config | {"backbones": {"smollm2_135m": {"path": "hub:a/b"}}})
    trained = {job.row: job_cost(suite, job, ROOT).trained for job in suite.jobs}
    hero = trained.pop("hero-three-quarters")
    rivals = {row: count for row, count in trained.items() if count}
    variants = {f"hero-three-quarters-{variant}" for variant in ("no-history", "same-size")}
    assert set(rivals) == {*variants, "lora", "skipgpt-joint", "flap+lora", "shortened-ppl+lora"}
    assert list(rivals.values()) == pytest.approx([hero] * len(rivals), rel=0.02)


def test_null_leaves_out_a_line_of_a_base() -> None:
    complete = with_base({"base": "hub", "derive": {"hero-fixed-alpha": None, "x": {"from": "y"}}})
    assert complete["derive"] == {"x": {"from": "y"}}


def test_a_variable_that_is_not_set_needs_something_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PLACE", raising=False)
    assert with_base({"task_folder": "${PLACE:-here}/tasks"}) == {"task_folder": "here/tasks"}
    with pytest.raises(ValueError, match="the environment has no variable PLACE"):
        with_base({"tasks": [{"file": "${PLACE}/a.txt"}]})
    monkeypatch.setenv("PLACE", "there")
    assert with_base({"tasks": ["${PLACE}/a"]}) == {"tasks": ["there/a"]}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("${MY_API_TOKEN}", "the variable MY_API_TOKEN may be a secret"),
        ("${MY_API_TOKEN:-none}", "the variable MY_API_TOKEN may be a secret"),
        ("${KEYS}/a", "the variable KEYS may be a secret"),
        ("${A_SECRET}", "names without TOKEN, KEY, SECRET, PASSWORD"),
        ("${PASSWORD_A}", "the variable PASSWORD_A may be a secret"),
        ("https://there/${PLACE}.jsonl", "is a URL and must not hold a variable"),
        ("https:${SLASHES:-//}there/${PLACE}", "is a URL and must not hold a variable"),
    ],
)
def test_a_suite_sends_nothing_of_the_environment(
    text: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("MY_API_TOKEN", "KEYS", "A_SECRET", "PASSWORD_A", "PLACE"):
        monkeypatch.setenv(name, "canary")
    with pytest.raises(ValueError, match=said) as caught:
        with_base({"tasks": [{"config": {"dataset_path": text}}]})
    assert "canary" not in str(caught.value)


def test_a_suite_of_others_is_read_as_it_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLACE", "canary")
    config = read_configs(["demo"]) | {"task_folder": "${PLACE}"}
    assert with_defaults(config)["task_folder"] == "${PLACE}"


@pytest.mark.parametrize("name", PAPER)
def test_files_merge_as_snakemake_merges_them(name: str) -> None:
    merged: dict[str, Any] = {}
    for file in (name, *OVERLAYS):
        update_config(merged, yaml.safe_load((SUITES / f"{file}.yaml").read_text()))
    assert read_configs([name, *OVERLAYS]) == with_base(merged)


def test_a_suite_goes_over_its_bases_and_they_over_each_other() -> None:
    complete = with_base({"base": ["hub", "paper"], "tasks": ["piqa"], "training": {"updates": 3}})
    assert "base" not in complete
    assert complete["tasks"] == ["piqa"]  # lists are replaced
    assert complete["training"] == {
        "updates": 3, "batch_tokens": 83200, "micro_tokens": 6144, "checkpointing": True,
    }  # fmt: skip
    assert {"mod-d", "skipgpt-rt"} <= complete["params"].keys()
    assert complete == with_base(complete)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [("- a\n- b\n", "is no mapping of keys"), ("a: [", "is not valid YAML")],
)
def test_a_broken_file_is_one_sentence(text: str, sentence: str, tmp_path: Path) -> None:
    file = tmp_path / "broken.yaml"
    file.write_text(text)
    with pytest.raises(ValueError, match=sentence):
        read_configs([str(file)])


def test_a_wrong_name_is_one_sentence() -> None:
    with pytest.raises(ValueError, match="suite 'nope' is no file and no name below"):
        read_configs(["llama31_8b", "nope"])


def test_every_table_of_the_paper_has_its_suite(no_search: None) -> None:
    text = (SUITES / "README.md").read_text(encoding="utf-8")
    block = text.split("## Tables of the paper")[1].split("\n## ")[0]
    lines = [re.split(r"\s*\|\s*", line.strip("| ")) for line in block.splitlines() if "|" in line]
    suites = {tuple(cells[:3]): cells[3] for cells in lines[2:]}
    assert set(suites) == set(groups())
    for files in suites.values():
        names = re.findall(r"`([\w/]+)`", files)
        assert names
        assert read_suite(read_configs(names)).jobs


def test_the_papers_own_hero_is_in_every_core(no_search: None) -> None:
    for name in PAPER:
        suite = read_suite(read_configs([name]))
        fixed = [job for job in suite.jobs if job.row.startswith("hero-fixed-alpha")]
        assert {job.seed for job in fixed} == {42, 43, 44}
        assert all(job.params["alpha"] == 1e-3 and job.budget is None for job in fixed)
        others = [job for job in suite.jobs if not job.row.startswith("hero")]
        assert {job.seed for job in others} == {42}


AS_MANY_AS_HERO = (
    "lora", "mod-d", "d-llm", "skipgpt-joint", "flexidepth", "diffskip", "hero", "hero-fixed-alpha",
)  # fmt: skip


def test_the_ladder_trains_as_many_parameters_in_every_row_as_hero(no_search: None) -> None:
    """Within 10 %; SkipGPT-RT and MindSkip train their routers alone."""
    for name in LADDER:
        suite = read_suite(read_configs([name]))
        counts = {
            job.row: job_cost(suite, job, Path("/nowhere")).trained
            for job in suite.jobs
            if job.row in AS_MANY_AS_HERO and job.budget in (None, 0.25)
        }
        assert set(counts) == set(AS_MANY_AS_HERO)
        for row, count in counts.items():
            assert count == pytest.approx(counts["hero"], rel=0.1), (name, row)
