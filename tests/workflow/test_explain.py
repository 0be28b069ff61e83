"""What stands behind one number."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from pathlib import Path

import pandas as pd
import pytest
from scipy import stats

from tests import steps
from tests.records import dense, half, record, write_run, write_suite
from workflows.records.archive import ARCHIVE
from workflows.report.repeat import RepeatCommands
from workflows.report.results import read_results
from workflows.stats.resample import bootstrap
from workflows.stats.sampling import interval
from workflows.steps.explain import find_panel


def explain(made: Path, capfd: pytest.CaptureFixture[str], *words: str) -> str:
    capfd.readouterr()
    steps.call("explain", "--suite", "made", "--results", made / "a", *words)
    return capfd.readouterr().out


def test_a_row_without_a_budget_is_held_against_every_line_in_focus(
    made: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    said = explain(made, capfd, "--row", "lora", "--task", "left")
    for budget in (25, 40):
        assert f"minus hero at {budget} %" in said


def test_two_lines_of_a_row_have_differences_of_their_own(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    results = write_suite(tmp_path / "results")
    pinned = results / "toy/hero/bfree/s42/record.json"
    shutil.copytree(results / "toy/hero/b40/s42", pinned.parent)
    pinned.write_text(json.dumps(json.loads(pinned.read_text()) | {"budget": None, "match": None}))
    ends = {}
    for budget in ((), ("--budget", "0.25")):
        capfd.readouterr()
        words = ["--suite", "made", "--results", results, "--row", "hero", "--task", "left"]
        steps.call("explain", *words, *budget)
        said = capfd.readouterr().out
        ends[budget] = re.findall(r"minus dense(?: at (\d+) %)? +([+-][\d.]+) points", said)
    (own,), (matched,) = ends.values()
    assert (own[0], matched[0]) == ("", "25")
    assert own[1] != matched[1]


def test_a_number_is_explained(made: Path, capfd: pytest.CaptureFixture[str]) -> None:
    words = ["--row", "hero", "--budget", "0.25", "--task", "left", "--seed", "43"]
    said = " ".join(explain(made, capfd, *words).split())
    file = made / "a/toy/hero/b25/s43/record.json"
    run = json.loads(file.read_text())
    (found,) = [s for s in run["scores"] if s["task"] == "left"]
    share = f"{100 * found['value']:.2f} % acc"
    number = f"hero at 25 % on toy, match pooled, seed 43, left: {found['k']} of 60 ({share})"
    assert number in said
    skips = [100 * s["rates"]["answer"]["skip"] for s in run["scores"]]
    prompts = 100 * run["rates"]["prompt"]["skip"]
    assert f"{prompts:.2f} % on prompt tokens, {sum(skips) / 2:.2f} % on answer tokens" in said
    assert f"record {file}" in said
    assert "the split that the task scores, 0 shots" in said
    assert "committed; methods/core c, methods/hero m; lm_eval" in said
    solved = {}
    for name, path in (("mine", file), ("base", made / "a/toy/dense/b0/s42/record.json")):
        items = pd.read_parquet(path.with_suffix(".items.parquet"))
        items = items[items["task"] == "left"].set_index("item")["value"]
        solved[name] = items.sort_index()
    gain = solved["mine"] - solved["base"]
    for word, these in (("won", gain[gain > 0].index), ("lost", gain[gain < 0].index)):
        listed = re.search(rf"{word} (\d+) \w+ dense, items ([\d ]+|none)", said)
        assert listed is not None
        assert int(listed[1]) == len(these)
        assert listed[2].split() == ([str(item) for item in these] or ["none"])
    assert "over all seeds, bootstrap p = " in said
    for kind, tokens in (("all", "tokens"), ("answer", "answer tokens")):
        own = run["fidelity"]["distances"][kind]
        total = sum(own["tokens"])
        assert f"KL {sum(own['kl']) / total:.4f} nats (95 % over all seeds: " in said
        agreement = f"agreement {100 * sum(own['agreement']) / total:.2f} %, skip 25.00 % over"
        assert f"{agreement} {total} {tokens}" in said
    assert "of 12 texts" in said


def test_a_run_whose_seeds_were_not_all_compared_and_whose_score_is_a_text(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    results = write_suite(tmp_path / "results")
    for file in results.rglob("*.json"):
        run = json.loads(file.read_text())
        if "not_run" not in run:
            continue
        for one in run.get("scores", []):
            one["split"] = "text"
        if file.parent.name == "s44":
            run.pop("fidelity", None)
        file.write_text(json.dumps(run))
    words = ["--suite", "made", "--results", results, "--row", "hero", "--budget", "0.25"]
    steps.call("explain", *words, "--task", "left")
    said = " ".join(capfd.readouterr().out.split())
    assert "scored all of the text, 0 shots" in said
    assert re.search(r"KL [\d.]+ nats, top-1 agreement", said)


def test_the_interval_is_the_tables(made: Path, capfd: pytest.CaptureFixture[str]) -> None:
    said = explain(made, capfd, "--row", "lora", "--task", "right")
    runs = {}
    for row in ("dense", "lora"):
        items = pd.read_parquet(made / f"a/toy/{row}/b0/s42/record.items.parquet").sort_values(
            "item"
        )
        runs[row] = [{"right": items[items["task"] == "right"]["value"].to_numpy()}]
    draws = bootstrap(runs, "dense", ["right"])["right"]
    low, high = interval(draws["lora"].draws - draws["dense"].draws)
    assert f"(95 %: {100 * low:+.2f} to {100 * high:+.2f})" in said
    gain = runs["lora"][0]["right"] - runs["dense"][0]["right"]
    p = stats.binomtest(int((gain > 0).sum()), int((gain != 0).sum())).pvalue
    assert f"McNemar p = {p:.2g}, " in said
    assert "no suite here makes this run" in said


def test_a_row_without_a_protocol_needs_none_named(tmp_path: Path) -> None:
    write_run(tmp_path, dense(*half()))
    write_run(tmp_path, record("cut", 0.25, *half(), kind="static"))
    for match in ("pooled", "split"):
        write_run(tmp_path, record("hero", 0.25, *half(), match=match))
    results = read_results(tmp_path)
    assert find_panel(results, None, None, "cut") is results.panels[0]
    with pytest.raises(ValueError, match="--match must be one of: pooled, split"):
        find_panel(results, None, None, "hero")


@pytest.mark.parametrize("row", ["hero", "random-skip"])
def test_the_commands_are_those_of_the_suite(
    row: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    results = write_suite(tmp_path / "results")
    config = {
        "suite": "made", "backbones": {"toy": {"path": "workflows/demo/backbone"}},
        "rows": ["dense", row], "budgets": [0.25], "seeds": [42, 43], "batch_size": 16,
        "tasks": [{"task": "left", "split": "test"}, "right"], "retain_tasks": ["left"],
        "task_folder": "tests",
    }  # fmt: skip
    (results / "suite.json").write_text(json.dumps(config))
    capfd.readouterr()
    with pytest.MonkeyPatch.context() as patch:
        # The tasks of made records have no files.
        patch.setattr("workflows.suite.jobs.check_names", lambda *_: None)
        words = ["--row", row, "--budget", "0.25", "--task", "left"]
        steps.call("explain", "--suite", "made", "--results", results, *words)
    said = capfd.readouterr().out
    score_line, fit_line = (
        shlex.split(part.split(maxsplit=count)[-1])
        for part, count in zip(said.splitlines()[-2:], (1, 2), strict=True)
    )
    run = f"results/made/toy/{row}/b25/s42"
    assert score_line[:3] == ["python", "-m", "workflows.steps.score"]
    given = dict(zip(score_line[3::2], score_line[4::2], strict=True))
    assert given["--model"] == f"{run}/model"
    assert json.loads(given["--tasks"]) == config["tasks"]
    assert (given["--batch-size"], given["--out"]) == ("16", f"{run}/record.json")
    # As the rule scores a suite without a GPU.
    fixed = ("--task-data", "--device", "--threads")
    assert [given[name] for name in fixed] == ["results/made/tasks", "cpu", "1"]
    assert fit_line[:3] == ["snakemake", "--cores", "1"]
    # By its path: which rule fits a row depends on the suite.
    assert fit_line[-4:] == ["--forcerun", f"{run}/model", "--", f"{run}/record.json"]
    assert fit_line[3:5] == ["--configfile", "results/made/suite.json"]
    # The suite lists one budget and two seeds, so the other records are out of it.
    assert "40 %" not in said


def test_of_packed_results_the_suite_of_the_run_is_taken_out_first(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    results = write_suite(tmp_path / "results")
    config = {
        "suite": "made", "backbones": {"toy": {"path": "workflows/demo/backbone"}},
        "rows": ["dense", "hero"], "budgets": [0.25], "seeds": [42, 43, 44],
        "tasks": ["left", "right"],
    }  # fmt: skip
    later = config | {"rows": ["dense"], "derive": {"own": {"from": "lora", "params": {}}}}
    (results / "earlier").mkdir()
    for file, content in (("earlier/000.json", config), ("suite.json", later)):
        (results / file).write_text(json.dumps(content))
    read_results(results).write_archive(tmp_path / "published" / ARCHIVE)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("workflows.suite.jobs.check_names", lambda *_: None)
        words = ["--row", "hero", "--budget", "0.25", "--task", "left"]
        place = ["--suite", "made", "--results", tmp_path / "published"]
        capfd.readouterr()
        steps.call("explain", *place, *words)
    fit_line = capfd.readouterr().out.splitlines()[-1]
    archive = f"tar -xJf {tmp_path}/published/{ARCHIVE} -C results/made earlier/000.json"
    assert f"mkdir -p results/made && {archive} && snakemake" in fit_line
    assert "--configfile results/made/earlier/000.json" in fit_line


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--row", "heroo", "--task", "left"], "no record of row 'heroo' (rows: dense, lora, "),
        (
            ["--row", "hero", "--task", "left"],
            "no record of row 'hero' without a budget (budgets: 0.25, 0.4)",
        ),
        (
            ["--row", "dense", "--budget", "0.25", "--task", "left"],
            "no record of row 'dense' at budget 0.25 (budgets: none)",
        ),
        (["--row", "hero", "--budget", "2", "--task", "left"], "budget '2' must be a number"),
        (["--row", "lora", "--task", "up"], "task 'up' was not scored (tasks: left, right)"),
        (["--row", "lora", "--task", "left", "--seed", "9"], "has no run of seed 9 (seeds: 42)"),
        (["--row", "lora", "--task", "left", "--backbone", "x"], "--backbone must be one of: toy"),
        (
            ["--row", "slicegpt", "--budget", "0.4", "--task", "left"],
            "row 'slicegpt' is not applicable: its widths do not fit",
        ),
    ],
)
def test_what_is_not_there_is_named(
    words: list[str], sentence: str, refuse: steps.Refuse, made: Path
) -> None:
    said = refuse("explain", "--suite", "made", "--results", made / "a", *words)
    assert sentence in said


def test_a_suite_that_never_ran(refuse: steps.Refuse) -> None:
    said = refuse("explain", "--suite", "never_ran", "--row", "hero", "--task", "left")
    assert said == "results/never_ran holds no record.json"


def test_numbers_of_two_protocols_are_told_apart(
    both: Path, capfd: pytest.CaptureFixture[str], refuse: steps.Refuse
) -> None:
    words = ["explain", "--suite", "made", "--results", both, "--task", "left"]
    hero = [*words, "--row", "hero", "--budget", "0.25"]
    assert refuse(*hero) == "--match must be one of: pooled, split"
    assert refuse(*hero, "--match", "both") == "--match must be one of: pooled, split"
    for match, label in (("pooled", "b25"), ("split", "b25-split")):
        capfd.readouterr()
        steps.call(*hero, "--match", match)
        said = " ".join(capfd.readouterr().out.split())
        assert f"hero at 25 % on toy, match {match}, seed 42" in said
        assert f"record {both}/toy/hero/{label}/s42/record.json" in said
        steps.call(*words, "--row", "shortgpt+lora", "--budget", "0.25", "--match", match)
        assert "shortgpt+lora at 25 % on toy, seed 42" in capfd.readouterr().out


def test_row_names_may_hold_a_plus(made: Path, capfd: pytest.CaptureFixture[str]) -> None:
    words = ["--row", "shortgpt+lora", "--budget", "0.4", "--task", "right"]
    assert "shortgpt+lora at 40 % on toy, seed 42, right: " in explain(made, capfd, *words)


def test_no_command_scores_a_model_that_the_suite_deletes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workflows.suite.jobs.check_names", lambda *_: None)
    results = write_suite(tmp_path / "results")
    config = {
        "suite": "made", "backbones": {"toy": {"path": "workflows/demo/backbone"}},
        "rows": ["dense", "random-skip"], "budgets": [0.25], "seeds": [42],
        "tasks": [{"task": "left", "split": "test"}, "right"], "task_folder": "tests",
    }  # fmt: skip
    for kept, names in ((True, {"command", "command, fit"}), (False, {"command, fit"})):
        (results / "suite.json").write_text(json.dumps({**config, "keep_models": kept}))
        commands = RepeatCommands.of(read_results(results))
        assert set(commands.of_file(results / "toy/random-skip/b25/s42/record.json")) == names
