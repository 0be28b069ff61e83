"""Two folders side by side."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tests import steps
from tests.records import dense, line, score, suite, write_run


@pytest.fixture(scope="module")
def compared(made: Path) -> pd.DataFrame:
    steps.call("compare", made / "a", made / "b", "--out", made / "out")
    return pd.read_csv(made / "out/compare.csv")


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
    for name in "de":
        write_run(tmp_path / name, dense(score("left", [1, 0], doc_hash=name)))
    sentence = "the folders were scored on different documents of 'left' (d and e)"
    assert sentence in refuse("compare", tmp_path / "d", tmp_path / "e", "--out", tmp_path / "out")
    for key, words in (
        ("retain_tasks", "of the Retain"),
        ("measure_tasks", "of the measures beside it"),
    ):
        folder = shutil.copytree(made / "a", tmp_path / key)
        (folder / "suite.json").write_text(json.dumps({"suite": "made", key: ["left"]}))
        said = refuse("compare", made / "a", folder, "--out", tmp_path / "out")
        assert said == f"the folders have other tasks {words}: left, right and left"
    assert "holds no record.json" in refuse("compare", made / "a", tmp_path / "gone")


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
