"""Two folders side by side, and what stands behind one number."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from tests import steps
from tests.records import code, dense, score, suite, write_run, write_suite
from workflows.stats.resample import bootstrap, interval


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``a``, and ``b``: without LoRA, one item of shortgpt+lora lost, one HeRo seed, other code."""
    folder = tmp_path_factory.mktemp("folders")
    write_suite(folder / "a")
    for run in suite():
        if run["row"] == "lora" or (run["row"] == "hero" and run["seed"] != 42):
            continue
        if run["row"] == "shortgpt+lora":
            entry = run["scores"][0]
            entry["items"][entry["items"].index(1)] = 0.0
            entry["k"], entry["value"] = entry["k"] - 1, float(np.mean(entry["items"]))
        other = {"methods/core": "e"} | ({"methods/hero": "n"} if run["row"] == "hero" else {})
        write_run(folder / "b", run | {"code": code(run["row"], **other)})
    return folder


@pytest.fixture(scope="module")
def compared(made: Path) -> pd.DataFrame:
    steps.call("compare", made / "a", made / "b", "--out", made / "out")
    return pd.read_csv(made / "out/compare.csv")


def line(frame: pd.DataFrame, **keys: Any) -> dict[str, Any]:
    for name, value in keys.items():
        frame = frame[frame[name] == value]
    (found,) = frame.to_dict("records")
    return found


def test_both_sides_are_the_tables_of_the_report(made: Path, compared: pd.DataFrame) -> None:
    for side in "ab":
        out = made / f"page_{side}"
        steps.report_tables(made / side, out)
        for row in (
            pd.read_csv(out / "tables/retain.csv").dropna(subset=["retain"]).to_dict("records")
        ):
            keys = {"row": row["row"], "measure": "retain"}
            keys |= {} if np.isnan(row["target"]) else {"target": row["target"]}
            found = line(compared, **keys)
            assert [found[side], found[f"{side}_low"], found[f"{side}_high"]] == pytest.approx(
                [row["retain"], row["retain_low"], row["retain_high"]], abs=1e-4
            )


def test_one_item_of_sixty_is_seen_as_such(compared: pd.DataFrame) -> None:
    found = line(compared, row="shortgpt+lora", measure="left", target=25)
    assert found["difference"] == pytest.approx(-100 / 60, abs=1e-4)
    assert (found["won"], found["lost"], found["p"]) == (0, 1, 1.0)
    assert found["low"] < found["difference"] < found["high"] == 0
    same = line(compared, row="shortgpt+lora", measure="right", target=25)
    assert (same["difference"], same["low"], same["high"], same["p"]) == (0, 0, 0, 1)


def test_equal_runs_differ_by_nothing_also_with_seeds(compared: pd.DataFrame) -> None:
    found = compared[compared["row"] == "random-skip"]
    # Two targets: Retain, two tasks, KL and agreement on all tokens and on answer tokens.
    assert len(found) == 2 * (1 + 2 + 4)
    assert (found[["difference", "low", "high"]] == 0).all(axis=None)
    assert (found["p"] == 1).all()


def test_other_seeds_are_not_paired(compared: pd.DataFrame) -> None:
    found = line(compared, row="hero", measure="retain", target=25)
    assert found["high"] - found["low"] > 1
    assert found["difference"] == pytest.approx(found["b"] - found["a"], abs=2e-4)


def test_a_line_of_one_folder_keeps_its_side(made: Path, compared: pd.DataFrame) -> None:
    found = line(compared, row="lora", measure="retain")
    assert found["a"] > 90
    assert np.isnan(found["b"])
    assert np.isnan(found["difference"])
    assert "slicegpt" not in set(compared["row"])
    text = (made / "out/compare.md").read_text()
    assert re.search(r"\| Lora \| – \| \d+\.\d\d \| [\d.]+ to [\d.]+ \| – \| – \| – \|", text)
    for part, codes in (("core", "c and e"), ("hero", "m and n")):
        sentence = f"The folders differ in code of methods/{part}: {codes}."
        assert text.count(sentence) == 1
        assert sentence in (made / "out/compare.tex").read_text()


def test_the_table_is_printed(made: Path, capfd: pytest.CaptureFixture[str]) -> None:
    steps.call("compare", made / "a", made / "a")
    said = capfd.readouterr()
    assert said.out.startswith("| Row | Target | Retain A |")
    assert "caution" not in said.err


def test_kl_and_agreement_are_compared_in_their_own_units(
    made: Path, compared: pd.DataFrame
) -> None:
    runs = {
        side: json.loads((made / f"{side}/toy/hero/b25/s42/record.json").read_text())
        for side in "ab"
    }
    found = line(compared, row="hero", target=25, measure="kl")
    own = runs["b"]["fidelity"]["distances"]["all"]
    # The folder b has one seed of HeRo.
    assert found["b"] == pytest.approx(sum(own["kl"]) / sum(own["tokens"]), abs=1e-4)
    assert found["difference"] == pytest.approx(found["b"] - found["a"], abs=2e-4)
    assert found["low"] < found["difference"] < found["high"]
    assert found["test"] == "bootstrap"
    agreement = line(compared, row="hero", target=25, measure="agreement_answer")
    own = runs["b"]["fidelity"]["distances"]["answer"]
    share = 100 * sum(own["agreement"]) / sum(own["tokens"])
    assert agreement["b"] == pytest.approx(share, abs=1e-4)


def test_folders_are_compared_without_kl_where_one_has_none(made: Path, tmp_path: Path) -> None:
    old = shutil.copytree(made / "b", tmp_path / "old")
    for file in old.rglob("record.json"):
        run = json.loads(file.read_text())
        run.pop("fidelity", None)
        file.write_text(json.dumps(run))
    steps.call("compare", made / "a", old, "--out", tmp_path / "out")
    assert set(pd.read_csv(tmp_path / "out/compare.csv")["measure"]) == {"retain", "left", "right"}
    assert "KL" not in (tmp_path / "out/compare.md").read_text()


def test_kl_on_other_texts_is_refused(refuse: steps.Refuse, made: Path, tmp_path: Path) -> None:
    other = shutil.copytree(made / "b", tmp_path / "other")
    for file in other.rglob("record.json"):
        run = json.loads(file.read_text())
        if "fidelity" in run:
            run["fidelity"]["texts"] = "f" * 16
            file.write_text(json.dumps(run))
    assert refuse("compare", made / "a", other) == (
        "the folders measured KL on different texts (data.fidelity)"
    )


def test_what_is_equal_is_counted_for_trained_rows_apart(
    made: Path, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def agreed(other: Path) -> list[list[str]]:
        steps.call("compare", made / "a", other)
        words = (
            r"Of (\d+) runs of (\w+) rows in both, (\d+) have the same weights, (\d+) every item "
            r"scored alike; Retain differs by up to ([\d.]+) points\."
        )
        return [list(found) for found in re.findall(words, capfd.readouterr().out)]

    assert agreed(made / "a") == [
        ["7", "trained", "7", "7", "0.00"],
        ["9", "untrained", "9", "9", "0.00"],
    ]
    # An item in each of two runs; of HeRo one seed, with other weights.
    for run in suite():
        if run["row"] == "hero" and run["seed"] == 43:
            write_run(tmp_path, run | {"weights_hash": "0123456789abcdef"})
    for folder in (made / "b").rglob("s42"):
        if "hero" not in folder.parts:
            shutil.copytree(folder, tmp_path / folder.relative_to(made / "b"))
    trained, untrained = agreed(tmp_path)
    assert trained == ["2", "trained", "0", "2", "0.00"]
    assert untrained[:4] == ["5", "untrained", "5", "3"]
    assert 0.5 < float(untrained[4]) < 1.5


def test_folders_of_different_things_are_refused(
    refuse: steps.Refuse, made: Path, tmp_path: Path
) -> None:
    entries = [score("left", [1, 0]), score("right", [1, 0])]
    other = dense()["backbone"] | {"name": "far"}
    cases = {
        "no backbone and protocol in common: toy (pooled) and far (pooled)": [
            dense(*entries, backbone=other)
        ],
        "the folders score different tasks": [dense(entries[0])],
        "the folders were scored by different headline metrics of 'left' (acc and acc_norm)": [
            dense(score("left", [1] * 60, "acc_norm"), score("right", [1] * 80))
        ],
        "the folders were scored on different numbers of items of 'left' (60 and 2)": [
            dense(*entries)
        ],
    }
    for number, (sentence, runs) in enumerate(cases.items()):
        folder = tmp_path / str(number)
        for run in runs:
            write_run(folder, run)
        assert sentence in refuse("compare", made / "a", folder, "--out", tmp_path / "out")
    assert "holds no record.json" in refuse("compare", made / "a", tmp_path / "gone")


def explain(made: Path, capfd: pytest.CaptureFixture[str], *words: str) -> str:
    capfd.readouterr()
    steps.call("explain", "--suite", "made", "--results", made / "a", *words)
    return capfd.readouterr().out


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
    assert "test split, 0 shots" in said
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
    assert fit_line[:3] == ["snakemake", "--cores", "1"]
    # By its path: which rule fits a row depends on the suite.
    assert fit_line[-4:] == ["--forcerun", f"{run}/model", "--", f"{run}/record.json"]
    # The suite lists one budget and two seeds, so the other records are out of it.
    assert "40 %" not in said


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


@pytest.fixture(scope="module")
def both(made: Path) -> Path:
    """Beside ``a`` the same runs by the second protocol alone, and by both."""
    write_suite(made / "split", ("split",))
    return write_suite(made / "both", ("pooled", "split"))


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


def test_folders_are_compared_protocol_by_protocol(
    made: Path, both: Path, refuse: steps.Refuse
) -> None:
    said = refuse("compare", made / "a", made / "split")
    assert said == "no backbone and protocol in common: toy (pooled) and toy (split)"
    steps.call("compare", made / "a", both, "--out", made / "one")
    assert set(pd.read_csv(made / "one/compare.csv")["match"]) == {"pooled"}
    steps.call("compare", both, both, "--out", made / "two")
    frame = pd.read_csv(made / "two/compare.csv")
    assert (frame["difference"] == 0).all()
    main = frame[(frame["measure"] == "retain") & (frame["target"] == 25)]
    assert main.groupby("match")["row"].apply(list).to_dict() == {
        match: ["random-skip", "hero", "shortgpt+lora"] for match in ("split", "pooled")
    }
    assert "| Hero | 25 | split |" in (made / "two/compare.md").read_text()


def test_row_names_may_hold_a_plus(made: Path, capfd: pytest.CaptureFixture[str]) -> None:
    words = ["--row", "shortgpt+lora", "--budget", "0.4", "--task", "right"]
    assert "shortgpt+lora at 40 % on toy, seed 42, right: " in explain(made, capfd, *words)
