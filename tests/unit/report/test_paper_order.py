"""The paper's order beside ours: from made frames, and the committed ones."""

from __future__ import annotations

import html
import re
from pathlib import Path

import pandas as pd
import pytest

from tests import steps
from tests.paper_records import paper_runs
from tests.records import write_run
from workflows import ROOT
from workflows.report.paper.order import agreement_frame, order_frame
from workflows.report.paper.printed import MAIN, RETAIN, Group, groups, numbers_of
from workflows.report.paper.show import order_tables

REFERENCE = ROOT / "reports" / "reference"
PUBLISHED = sorted(file.parent.name for file in REFERENCE.glob("*/paper_order.csv"))
SEVEN_B = Group(MAIN, "Llama-2-7B", "25%")
# By the paper on Llama-2-7B: HeRo 94.38, SkipGPT-RT 90.33, LaCo 83.74, LLM-Pruner 79.61, ...
KEPT = {"hero": 90.0, "skipgpt-rt": 95.0, "laco": 80.0, "llm-pruner": 80.0}


def retain_of(
    retains: dict[str, float], wide: float = 1.0, target: float | None = 25.0
) -> pd.DataFrame:
    """A frame of Retain with intervals of one width."""
    lines = [
        {"backbone": "ours", "match": "pooled", "target": target, "row": row, "title": row.title(),
         "kind": "dynamic", "retain": value, "retain_low": value - wide,
         "retain_high": value + wide}
        for row, value in retains.items()
    ]  # fmt: skip
    dense = lines[0] | {"row": "dense", "kind": "reference", "target": None, "retain": 100.0}
    return pd.DataFrame([dense, *lines])


def on_7b(frame: pd.DataFrame) -> pd.DataFrame:
    return order_frame(frame, {"ours": SEVEN_B.backbone}).set_index("row")


def test_ranks_count_the_rows_that_both_have() -> None:
    order = on_7b(retain_of(KEPT))
    assert order["paper_rank"].to_dict() == {
        "llm-pruner": 4, "laco": 3, "skipgpt-rt": 2, "hero": 1,
    }  # fmt: skip
    assert order["rank"].to_dict() == {"llm-pruner": 3, "laco": 3, "skipgpt-rt": 1, "hero": 2}
    assert order["paper"].to_dict()["laco"] == numbers_of(SEVEN_B)["LaCo"][RETAIN]


def test_places_are_those_that_the_intervals_allow() -> None:
    apart = on_7b(retain_of(KEPT))[["rank_first", "rank_last"]].to_numpy().tolist()
    assert apart == [[3, 4], [3, 4], [1, 1], [2, 2]]
    wide = on_7b(retain_of(KEPT, wide=3.0))[["rank_first", "rank_last"]].to_numpy().tolist()
    assert wide == [[3, 4], [3, 4], [1, 2], [1, 2]]


def test_tau_and_p_of_four_rows() -> None:
    """One pair of five is turned around, one is tied: S = 3, tau = 3 / sqrt(6 * 5).

    Of 4! / 2! = 12 arrangements 1, 2, 3, 3, 2, 1 have 0 to 5 pairs out of order; |S| of at least 3
    have 1 + 2 + 2 + 1.
    """
    (line,) = agreement_frame(on_7b(retain_of(KEPT)).reset_index()).to_dict("records")
    assert (line["rows"], line["paper_backbone"]) == (4, "Llama-2-7B")
    assert line["tau"] == pytest.approx(3 / 30**0.5)
    assert line["p"] == pytest.approx(6 / 12)


def test_an_unknown_backbone_stands_beside_every_table() -> None:
    order = order_frame(retain_of(KEPT), {})
    assert list(dict.fromkeys(order["paper_backbone"])) == [
        "Llama-3.1-8B", "Llama-2-7B", "Llama-2-13B",
    ]  # fmt: skip
    assert set(order["target"]) == {25.0}
    assert set(order["table"]) == {MAIN}


def test_too_few_rows_other_targets_and_what_did_not_run_have_no_order() -> None:
    assert order_frame(retain_of(dict(list(KEPT.items())[:2])), {}).empty
    assert order_frame(retain_of(KEPT, target=30.0), {}).empty
    frame = retain_of(KEPT)
    frame.loc[frame["row"].isin(["laco", "llm-pruner"]), "retain"] = None
    assert order_frame(frame, {}).empty
    assert order_frame(retain_of(dict.fromkeys(KEPT, 50.0)), {}).empty
    assert agreement_frame(order_frame(frame, {})).empty


def test_the_paper_prints_no_equal_retains() -> None:
    for group in groups():
        retains = [line[RETAIN] for line in numbers_of(group).values()]
        assert len(set(retains)) == len(retains)


@pytest.mark.parametrize("suite", PUBLISHED)
def test_the_committed_order_follows_from_the_committed_table(suite: str) -> None:
    """None of these suites runs one of the paper's backbones."""
    folder = REFERENCE / suite
    order = order_frame(pd.read_csv(folder / "retain.csv"), {}).round(4)
    for name, frame in (("order", order), ("agreement", agreement_frame(order).round(4))):
        committed = pd.read_csv(folder / f"paper_{name}.csv")
        pd.testing.assert_frame_equal(committed, frame, check_dtype=False)
        # These have one or two rows of the paper, which make no order.
        assert committed.empty == (suite in ("parts", "prompt_loss"))
    assert pd.read_csv(folder / "paper_values.csv").empty


def test_the_demo_has_a_table_beside_each_backbone_of_the_paper() -> None:
    files = [REFERENCE / "demo" / f"paper_{name}.csv" for name in ("order", "agreement")]
    order, agreement = map(pd.read_csv, files)
    tables = order_tables(order, agreement)
    assert [table.title for table in tables] == [
        f"Order: Main results, {backbone} at 25 %"
        for backbone in ("Llama-3.1-8B", "Llama-2-7B", "Llama-2-13B")
    ]
    assert [len(table.lines) for table in tables] == [11, 6, 6]
    tau, p = agreement.loc[0, ["tau", "p"]]
    assert f"tau {tau:.2f}, exact permutation p = {p:.3f} over 11 rows" in tables[0].note


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report of a suite on one of the paper's backbones, its scores the paper's."""
    folder = tmp_path_factory.mktemp("paper")
    for run in paper_runs(SEVEN_B):
        for score in run["scores"]:
            if score["task"] == "hellaswag":  # fewer items, less time
                score |= {"items": score["items"][::10], "n": 1005}
                score["k"] = int(sum(score["items"]))
                score["value"] = score["k"] / 1005
        write_run(folder / "results", run)
    steps.report_tables(folder / "results", folder / "report")
    return folder / "report"


def test_the_page_shows_every_number_of_the_papers_table(report: Path) -> None:
    page = (report / "index.html").read_text(encoding="utf-8")
    section = page.split("The paper's tables beside ours</h2>")[1].split("<h2>")[0]
    assert "absolute values cannot be compared" not in section
    text = (report / "tables/paper_values_main_results_llama2_7b_25_matched.md").read_text()
    for line in numbers_of(SEVEN_B).values():
        for metric, value in line.items():
            if (metric, value) != (RETAIN, 100.0):
                assert f"{value:.2f} / " in text
                assert f"{value:.2f} / " in section
    assert "limit: HellaS on 1,005 of 10,042 items" in section
    assert "tables/paper_values.csv" in section
    assert "Kendall's tau 1.00" in html.unescape(section)
    assert "No record of ours yet: Main results, Llama-2-7B at 25 %: rows with the" in section
    values = pd.read_csv(report / "tables/paper_values.csv")
    assert set(values["paper_backbone"]) == {"Llama-2-7B"}
    assert set(values["verdict"]) == {"agrees", "cannot be compared"}


def test_wide_tables_scroll_in_their_own_box(report: Path) -> None:
    page = (report / "index.html").read_text(encoding="utf-8")
    assert page.count("<table>") == len(re.findall(r'<div class="wide"[^>]*><table>', page))
    assert re.search(r"\.wide { overflow: auto;[^}]*max-width: 100%;", page)
