"""The first screen: three sentences from the frames, rows of the same weights as one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from workflows.report.display import line_id
from workflows.report.lead import lead_table, verdict, without_twins
from workflows.report.published import read_frames
from workflows.stats.speeds import COLUMNS


def rank(row: str, at: int, **changes: Any) -> dict[str, Any]:
    line = {
        "backbone": "toy", "target": 25.0, "match": "pooled", "row": row, "title": row.title(),
        "retain": 90.0 - at, "retain_low": 89.0 - at, "retain_high": 91.0 - at, "rank": at,
        "rank_low": at, "rank_high": at, "first": 80.0 if at == 1 else 20.0, "behind": at - 1.0,
        "behind_low": 0.5, "behind_high": 2.0, "tied": False, "one_seed": False,
        "overtakes": "", "overtakes_one_seed": False,
    }  # fmt: skip
    return line | changes


def speed(row: str, mode: str, case: str, fast: float) -> dict[str, Any]:
    line = {"backbone": "toy", "target": 25.0, "match": "pooled", "row": row}
    return dict.fromkeys(COLUMNS) | line | {"mode": mode, "case": case, "speed": fast}


def frames(ranks: list[dict[str, Any]], speeds: list[dict[str, Any]]) -> dict[str, pd.DataFrame]:
    columns = list(rank("x", 1))
    budgets = pd.DataFrame(ranks, columns=["backbone", "target", "match", "row"])
    return {
        "budgets": budgets.assign(skip=22.5, missed=""),
        "ranks": pd.DataFrame(ranks, columns=columns),
        "speeds": pd.DataFrame(speeds, columns=COLUMNS),
    }


def test_the_verdict_names_leader_certainty_and_time() -> None:
    ranks = [rank("b", 2, tied=True), rank("a", 1), rank("c", 3)]
    speeds = [
        speed("a", "prefill", "8x128", 0.5), speed("a", "prefill", "1x8", 9.0),
        speed("a", "decode", "1x128", 2.0), speed("b", "decode", "1x128", 4.0),
    ]  # fmt: skip
    answers = dict(verdict(frames(ranks, speeds), "dense"))
    assert answers["Who leads"] == (
        "Matched over all tokens, A leads at 25 % with 89.0 % of the scores of dense "
        "(88.0 to 90.0)."
    )
    assert answers["How sure"] == "Pooled: at 25 % A is first in 80 % of resamples (tied with B)."
    assert answers["On the clock"] == (
        "A at 25 % (pooled) runs a prompt 0.50 times as fast as dense (8x128) and decodes 2.00 "
        "times as fast as dense (1x128)."
    )


def test_a_leader_that_missed_its_budget_says_so() -> None:
    given = frames([rank("b", 2), rank("a", 1)], [])
    given["budgets"].loc[given["budgets"]["row"] == "a", "missed"] = "under budget by 2.5"
    assert dict(verdict(given, "dense"))["Who leads"].endswith(
        "(88.0 to 90.0), skipping 22.5 % (under budget by 2.5)."
    )


def test_protocols_and_targets_have_leaders_of_their_own() -> None:
    ranks = [
        rank("a", 1), rank("b", 2, one_seed=True),
        rank("b", 1, match="split"), rank("a", 2, match="split"), rank("a", 1, target=40.0),
    ]  # fmt: skip
    answers = dict(verdict(frames(ranks, []), "dense"))
    assert "A leads at 25 %" in answers["Who leads"]
    assert "matched on prompts and on answers, B leads at 25 %" in answers["Who leads"]
    sure = "(ahead of the other row, not counting other seeds of rows that ran one)"
    assert sure in answers["How sure"]
    assert "at 40 % A is alone" in answers["How sure"]
    assert answers["On the clock"] == "No row was timed; a skip rate is no speed-up."


def test_an_order_that_differs_above_chance_is_told_and_an_equal_one_is_not() -> None:
    ranks = [rank("a", 1), rank("b", 2), rank("c", 3)]
    assert "Above chance" not in dict(verdict(frames(ranks, []), "dense"))
    ranks[2] |= {"overtakes": "A; B", "overtakes_one_seed": True}
    ranks += [rank("a", 1, target=40.0), rank("b", 2, target=40.0, overtakes="A")]
    answers = verdict(frames(ranks, []), "dense")
    assert [question for question, _ in answers] == [
        "Who leads", "How sure", "Above chance", "On the clock",
    ]  # fmt: skip
    assert dict(answers)["Above chance"] == (
        "Pooled: at 25 % C leads A and B by it, and is behind by Retain, not counting other seeds "
        "of rows that ran one, at 40 % B leads A by it, and is behind by Retain."
    )


def test_rows_without_a_budget_have_no_leader() -> None:
    answers = dict(verdict(frames([], []), "dense"))
    assert answers["Who leads"] == "No row has a budget to be compared at."


def retain(row: str, value: float, same: str = "", **changes: Any) -> dict[str, Any]:
    line = {"backbone": "toy", "target": 25.0, "match": "pooled", "row": row, "title": row.upper()}
    return line | {"retain": value, "same_weights": same, "note": ""} | changes


def test_rows_of_the_same_weights_are_one_under_both_names() -> None:
    frame = pd.DataFrame(
        [
            retain("a", 50.0, "B", note="under budget by 2.0"),
            retain("c", 50.0),
            retain("b", 50.0, "A", note="under budget by 2.0"),
            retain("b", 30.0, target=40.0),
            retain("d", 20.0, "A at 40 %"),
        ]
    )
    merged = without_twins(frame)
    assert merged["title"].tolist() == ["A = B", "C", "B", "D"]
    assert merged["note"].tolist() == ["under budget by 2.0", "", "", "same weights as A at 40 %"]
    assert merged["also"].tolist() == [["toy/b/25/pooled"], [], [], []]


HEADS = {
    "retain": {
        "Target": "target", "Retain": "retain", "Skip": "skip", "On prompts": "skip_prompt",
        "On answers": "skip_answer", "Net": "skip_net", "Between seeds": "seed_std",
        "left acc": "left:acc", "right acc": "right:acc",
    },
    "ranks": {"Rank": "rank", "Rank above chance": "above_rank"},
    "costs": {
        "Trained parameters": "trained_parameters", "Fit (s)": "fit_seconds",
        "Fit (MB)": "fit_memory_mb", "Scoring (s)": "scoring_seconds",
    },
}  # fmt: skip


@pytest.mark.parametrize("match", ["pooled", "split"])
def test_every_head_stands_over_the_numbers_of_its_frame(site: Path, match: str) -> None:
    frames, compared = read_frames(site / "report/tables"), 0
    table = lead_table(frames, match)
    values = {
        (line_id(line), head): line.get(column)
        for frame, heads in HEADS.items()
        for line in frames[frame].to_dict("records")
        for head, column in heads.items()
    }
    heads = [head for heads in HEADS.values() for head in heads]
    for name, line in zip(table.ids, table.lines, strict=True):
        cells = {head: cell.text for head, cell in zip(table.columns, line, strict=True)}
        for head in heads:
            value, text = values.get((name, head)), cells.get(head, "–")
            text = text.split(" ± ")[0].strip("± ")
            if value is None or pd.isna(value):
                assert text == "–"
                continue
            digits = len(text.partition(".")[2])
            assert abs(float(text.replace(",", "")) - value) <= 0.5 * 10**-digits + 1e-9
            compared += 1
    assert compared > 80


def test_the_note_stands_beside_the_row_and_columns_are_in_groups(site: Path) -> None:
    table = lead_table(read_frames(site / "report/tables"), "pooled")
    assert list(table.columns[:3]) == ["Row", "Note", "Target"]
    assert table.groups["On answers"] == "skip"
    assert table.groups["left acc"] == "scores"
    assert table.groups["Fit (s)"] == "cost"
    assert "Retain" not in table.groups
