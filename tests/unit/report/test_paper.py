"""Ours beside the paper's: records equal to its numbers, beside them, and of another kind."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest

from tests.paper_records import paper_labels, paper_panels, paper_runs
from tests.records import not_applicable
from workflows.report.paper.beside import COLUMNS, known_backbones, value_frame
from workflows.report.paper.printed import (
    ABLATION,
    ARC,
    MAIN,
    MEMORY,
    SWEEP,
    Group,
    families,
    groups,
    numbers_of,
)
from workflows.report.paper.show import value_tables
from workflows.report.paper.verdict import AGREES, CANNOT, DIFFERS, Ours, Paper, verdict

SEVEN_B, EIGHT_B = Group(MAIN, "Llama-2-7B", "25%"), Group(MAIN, "Llama-3.1-8B", "25%")
RETAINS = ("retain", "retain_without_arc")


def values(group: Group, family: str = "matched", **changes: Any) -> pd.DataFrame:
    """The lines of one group and family."""
    runs = list(paper_runs(group, family=family, **changes))
    return of(value_frame(paper_panels(runs)), group, family)


def of(frame: pd.DataFrame, group: Group, family: str = "matched") -> pd.DataFrame:
    same = (frame["table"] == group.table) & (frame["target"] == group.percent)
    return frame[same & (frame["family"] == family)].reset_index(drop=True)


@pytest.mark.parametrize(
    ("paper", "ours", "word"),
    [
        (Paper(50, 0.005), Ours(49, 48, 50), AGREES),
        (Paper(50.004, 0.005), Ours(49, 48, 50), AGREES),
        (Paper(50.006, 0.005), Ours(49, 48, 50), DIFFERS),
        (Paper(47, 0.005), Ours(49, 48, 50), DIFFERS),
        # A single seed outside the interval says nothing, inside it agrees.
        (Paper(47, 0.005), Ours(49, 48, 50, stochastic=True), CANNOT),
        (Paper(48.5, 0.005), Ours(49, 48, 50, stochastic=True), AGREES),
        # 4.303 * 1 / sqrt(3) = 2.48 of the paper's seeds, with our 1: 2.68.
        (Paper(51.6, 0.005, 1.0), Ours(49, 48, 50, 3, 0.4, True), AGREES),
        (Paper(51.7, 0.005, 1.0), Ours(49, 48, 50, 3, 0.4, True), DIFFERS),
        # One run of the paper moves by our deviation: 4.303 * 0.4 = 1.72, with our 1: 1.99.
        (Paper(50.9, 0.005), Ours(49, 48, 50, 3, 0.4, True), AGREES),
        (Paper(51.1, 0.005), Ours(49, 48, 50, 3, 0.4, True), DIFFERS),
        # What no seed moves knows none of this.
        (Paper(50.9, 0.005, 1.0), Ours(49, 48, 50), DIFFERS),
    ],
)
def test_the_verdict(paper: Paper, ours: Ours, word: str) -> None:
    assert verdict(paper, ours)[0] == word


def test_records_of_the_papers_numbers_agree_with_them() -> None:
    frame = values(SEVEN_B)
    assert set(frame["method"]) == set(numbers_of(SEVEN_B))
    rest = frame[frame["verdict"] != AGREES]
    assert list(zip(rest["method"], rest["measure"], strict=True)) == [
        ("LoRA", "retain"), ("LoRA", "ARC-C (acc)"),
    ]  # fmt: skip
    assert set(rest["why"]) == {"split: the paper's ARC-C of LoRA fits none"}
    assert frame["difference"].abs().max() < 0.15  # an item of the smallest split is 0.2
    hero = frame[frame["method"] == "HeRo"]
    assert set(hero["seeds"]) == {3}
    assert hero.set_index("measure").loc["retain", "paper_std"] == 0.54


@pytest.mark.parametrize("shift", [-9.0, 9.0])
def test_records_beside_the_papers_numbers_differ(shift: float) -> None:
    frame = values(SEVEN_B, shift=shift)
    scores = frame[~frame["measure"].eq("param_skip") & ~frame["why"].str.startswith("split")]
    words = scores.groupby("method")["verdict"].agg(set).to_dict()
    assert words.pop("Dense") == {AGREES}
    one_seed = ("LoRA", "MoD-D", "SkipGPT-RT")
    assert words == {m: {CANNOT} if m in one_seed else {DIFFERS} for m in words}
    assert set(scores[scores["method"].isin(one_seed)]["why"]) == {
        "one seed of ours; another seed may differ"
    }
    tasks = scores[~scores["measure"].isin(RETAINS) & (scores["method"] != "Dense")]
    assert (tasks["difference"] - shift).abs().max() < 0.15


def test_scores_of_another_split_cannot_be_compared() -> None:
    """The paper's dense 8B row is of ARC's validation splits, ours of the test splits."""
    frame = values(EIGHT_B).set_index(["method", "measure"])
    for name in ARC:
        line = frame.loc["Dense", name]
        assert line["verdict"] == CANNOT
        short = name.split(" ")[0]
        assert line["why"] == f"split: the paper's {short} of Dense is of validation, ours of test"
        assert frame.loc[("HeRo", name), "verdict"] == AGREES
    retains = frame.loc[(slice(None), "retain"), :]
    assert set(retains["verdict"]) == {CANNOT}
    assert retains["why"].str.contains("ARC-C of Dense is of validation, ours of test").all()
    without = frame.loc[(slice(None), "retain_without_arc"), :]
    assert set(without["verdict"]) == {AGREES}
    assert without.loc[("HeRo", "retain_without_arc"), "paper"] == pytest.approx(99.52, abs=5e-3)


def test_arc_is_compared_on_the_split_that_the_paper_fits_where_both_are_scored() -> None:
    frame = values(EIGHT_B, both=True)
    rest = frame[(frame["verdict"] != AGREES) & (frame["measure"] != "retain")]
    assert rest[["method", "why"]].to_numpy().tolist() == [
        ["SkipGPT-Joint", "split: the paper's ARC-C of SkipGPT-Joint fits none"]
    ]
    dense = frame[(frame["method"] == "Dense") & (frame["measure"] == "ARC-C (acc)")]
    assert dense["ours"].item() == pytest.approx(100 * 202 / 299, abs=1e-3)
    # No Retain of ours holds both splits, the paper's does.
    assert set(frame[frame["measure"] == "retain"]["verdict"]) == {CANNOT}


def changed(group: Group, row: str, **changes: Any) -> pd.DataFrame:
    """The lines of a row whose records, or their scores, have other fields."""
    runs = list(paper_runs(group))
    for run in (run for run in runs if run["row"] == row):
        for task in changes.get("scores", {}):
            (own,) = [s for s in run["scores"] if s["task"] == task]
            own |= changes["scores"][task]
        run |= {name: value for name, value in changes.items() if name != "scores"}
    frame = of(value_frame(paper_panels(runs)), group)
    return frame[frame["row"] == row].set_index("measure")


def test_a_row_that_skips_another_share_cannot_be_compared() -> None:
    rates = {"all": {"skip": 0.22, "skip_net": 0.2, "skip_std": 0.1, "tokens": 10}}
    lines = changed(SEVEN_B, "laco", rates=rates)
    assert lines.loc["param_skip", "verdict"] == DIFFERS
    scores = lines.drop("param_skip")
    assert set(scores["why"]) == {"budget: skips 22.0 %, the paper's row 25.0 %"}
    assert set(scores["verdict"]) == {CANNOT}
    assert scores["ours"].notna().all()


def test_a_skip_by_the_authors_measure_is_told() -> None:
    rates = {"all": {"skip": 0.22, "skip_net": 0.2, "skip_std": 0.1, "tokens": 10}}
    lines = changed(SEVEN_B, "laco", rates=rates, skip_authors=0.25)
    assert lines.loc["param_skip", "why"] == "by its authors' measure it skips 25.00 %"


def test_other_metrics_and_shots_cannot_be_compared() -> None:
    lines = changed(SEVEN_B, "laco", scores={"piqa": {"shots": 3}, "boolq": {"metric": "f1"}})
    assert lines.loc["PIQA (acc)", "why"] == "shots: PIQA with 3, the paper's with 0"
    assert lines.loc["BoolQ (acc)", "why"] == "metric: BoolQ by f1"
    assert lines.loc["retain", "why"].startswith("shots: PIQA with 3")
    assert lines.loc["WinoG (acc)", "verdict"] == AGREES


def test_a_limit_cannot_be_compared() -> None:
    runs = list(paper_runs(SEVEN_B))
    for run in runs:
        for entry in run["scores"]:
            if entry["task"] == "hellaswag":
                entry["items"] = entry["items"][:200]
                entry["n"] = 200
    frame = of(value_frame(paper_panels(runs)), SEVEN_B)
    why = frame[frame["measure"] == "HellaS (acc_norm)"]["why"]
    assert set(why) == {"limit: HellaS on 200 of 10,042 items"}
    assert (frame[frame["measure"] == "retain"]["verdict"] == CANNOT).all()


def test_rows_matched_by_each_cannot_be_compared() -> None:
    runs = [
        run | ({"match": "split"} if run["match"] else {})
        for run in paper_runs(SEVEN_B)
    ]  # fmt: skip
    frame = of(value_frame(paper_panels(runs)), SEVEN_B)
    scores = frame[frame["method"].isin(["HeRo", "MoD-D"]) & (frame["measure"] != "param_skip")]
    assert set(scores["why"]) == {"match split: the paper matches pooled tokens"}
    assert set(frame[frame["method"] == "LaCo"]["verdict"]) == {AGREES}
    assert set(frame["match"]) == {"split"}


def test_of_two_protocols_the_pooled_one_stands_beside_the_paper() -> None:
    runs = list(paper_runs(SEVEN_B))
    runs += [run | {"match": "split"} for run in runs if run["match"]]
    frame = of(value_frame(paper_panels(runs)), SEVEN_B)
    assert set(frame["match"]) == {"pooled"}
    assert not frame.duplicated(["method", "row", "measure"]).any()


def test_what_is_missing_stays_empty_with_a_reason() -> None:
    runs = [run for run in paper_runs(SEVEN_B) if run["row"] not in ("hero", "laco")]
    labels = paper_labels(SEVEN_B, "LaCo")
    runs.append(not_applicable("laco", "it does not fit", **labels))
    frame = of(value_frame(paper_panels(runs)), SEVEN_B).set_index("method")
    assert set(frame.loc["HeRo", "why"]) == {"no record"}
    assert set(frame.loc["LaCo", "why"]) == {"not applicable: it does not fit"}
    for method in ("HeRo", "LaCo"):
        assert frame.loc[method, ["ours", "difference", "low", "high"]].isna().all(axis=None)
        assert frame.loc[method, "paper"].notna().all()
        assert set(frame.loc[method, "verdict"]) == {CANNOT}


def with_dense(group: Group, family: str) -> list[dict[str, Any]]:
    """Runs of HeRo's variants, and dense, which has the tasks of the table too."""
    runs = list(paper_runs(group, family=family))
    dense = runs[-1] | {"row": "dense", "kind": "reference", "stochastic": False}
    return [dense | {"budget": None, "match": None}, *runs]


def test_the_ablation_has_its_own_reference_and_tasks_outside_our_retain() -> None:
    group = next(group for group in groups() if group.table == ABLATION)
    runs = with_dense(group, "published")
    for run in runs:
        run["scores"] = [s for s in run["scores"] if "humaneval" not in s["task"]]
    frame = of(value_frame(paper_panels(runs)), group, "published").set_index(["method", "measure"])
    assert frame.loc[("w/o History", "GSM8K (exact_match)"), "verdict"] == AGREES
    scores = frame.loc[("w/o History", "HumanEval (pass@1)")]
    assert (scores["verdict"], scores["why"]) == (CANNOT, "HumanEval (pass@1) is not scored")
    assert frame.loc[("w/o History", "retain"), "why"] == "HumanEval (pass@1) is not scored"
    assert ("HeRo", "retain") not in frame.index  # 100 % by definition
    assert frame.loc[("HeRo", "ARC-C (acc)"), "verdict"] == AGREES
    assert "is of validation, ours of test" in frame.loc[("w/o History", "ARC-C (acc)"), "why"]


def test_the_sweep_is_relative_to_its_last_row() -> None:
    group = next(group for group in groups() if group.table == SWEEP)
    frame = of(value_frame(paper_panels(with_dense(group, "published"))), group, "published")
    retains = frame[frame["measure"] == "retain"].set_index("method")
    assert retains["difference"].abs().max() < 0.1
    assert len(retains) == 3
    assert set(frame[frame["measure"] == "param_skip"]["verdict"]) == {AGREES}


def test_the_memory_table_prints_no_scores_so_its_split_is_not_known() -> None:
    group = next(group for group in groups() if group.table == MEMORY)
    rows = next(own for own in families(group) if own.name == "published").rows
    main = next(run for run in paper_runs(EIGHT_B) if run["row"] == "hero")
    scores = {"budget": None, "match": None}
    runs = [main | scores | {"row": "dense", "kind": "reference", "stochastic": False}]
    runs += [main | scores | {"row": row} for row, *_ in rows.values()]
    frame = of(value_frame(paper_panels(runs)), group, "published").set_index(["method", "measure"])
    line = frame.loc[("HeRo d_m=64", "avg_acc")]
    assert line["ours"] == pytest.approx(73.65, abs=0.1)
    assert line["why"].startswith("split: the paper prints no ARC-E of HeRo d_m=64")
    assert frame.loc[("HeRo d_m=64", "param_skip"), "verdict"] == AGREES


def test_another_backbone_has_no_values() -> None:
    runs = list(paper_runs(SEVEN_B))
    for run in runs:
        run["backbone"] = run["backbone"] | {"parameters": 7}
    panels = paper_panels(runs)
    assert known_backbones(panels) == {}
    frame = value_frame(panels)
    assert frame.empty
    assert list(frame.columns) == COLUMNS
    assert value_tables(frame) == []


def test_the_table_shows_both_numbers_and_the_verdict() -> None:
    tables = {table.name: table for table in value_tables(values(EIGHT_B))}
    (table,) = tables.values()
    assert table.name == "paper_values_main_results_llama31_8b_25_matched"
    lines = {line[0].text: dict(zip(table.columns, line, strict=True)) for line in table.lines}
    hero = {head: cell.text for head, cell in lines["HeRo"].items()}
    assert hero["Seeds"] == "3"
    assert hero["Skip"] == "26.87 / 26.87 ="
    assert hero["Retain"].startswith("100.24 / ")
    assert hero["Retain"].endswith(" ?")
    assert list(hero)[3:6] == ["Skip", "Retain", "95 % interval of ours"]
    assert hero["95 % interval of ours"].startswith("98.")
    assert hero["Note"].startswith("Retain: split: the paper's ARC-E of Dense is of validation")
    assert lines["Dense"]["Retain"].text == "–"
    assert "16 cannot be compared" in table.note
