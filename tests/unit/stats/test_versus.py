"""Rows against each other: differences, ranks, marks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from tests import records
from tests.records import record, score
from workflows.report.display import p_texts
from workflows.report.suite_tables import rank_table
from workflows.stats.lines import Panel
from workflows.stats.paired import holm
from workflows.stats.ranking import Mark, marks, places, rank_frame
from workflows.stats.versus import difference_frame, seed_pairs

SOLVED = {
    "all": [1] * 40,
    "most": [1] * 30 + [0] * 10,
    "half": [0] * 20 + [1] * 20,
    "few": [0] * 35 + [1] * 5,
}


def run(row: str, name: str, **changes: Any) -> dict[str, Any]:
    return record(row, 0.25, score("a", SOLVED[name]), score("b", [1, 0] * 20), **changes)


def panels(*runs: dict[str, Any]) -> list[Panel]:
    return records.panels(*runs, tasks=("a", "b"), resamples=999)


def dense() -> dict[str, Any]:
    return records.dense(score("a", SOLVED["all"]), score("b", [1, 0] * 20))


def line(frame: pd.DataFrame, **keys: Any) -> dict[str, Any]:
    for name, value in keys.items():
        frame = frame[frame[name] == value]
    (entry,) = frame.to_dict("records")
    return entry


def test_equal_rows_need_no_number_of_items() -> None:
    frame = difference_frame(panels(dense(), run("hero", "all")), None)
    assert frame["items_needed"].isna().all()


def test_a_rank_beside_a_best_row_of_one_seed_says_so() -> None:
    runs = [run("best", "most"), *(run("two", "half", seed=seed) for seed in (1, 2))]
    ranked = rank_frame(panels(dense(), *runs)).set_index("row")["one_seed"]
    assert ranked.to_dict() == {"best": True, "two": True}


def test_differences_by_hand() -> None:
    frame = difference_frame(panels(dense(), run("hero", "most"), run("shortgpt", "half")), "hero")
    task = line(frame, row="shortgpt", against="hero", measure="a")
    # hero solves items 0 to 29, shortgpt 20 to 39.
    assert (task["won"], task["lost"], task["test"]) == (10, 20, "McNemar")
    assert task["difference"] == pytest.approx(100 * (0.5 - 0.75))
    assert task["p"] == pytest.approx(stats.binomtest(10, 30).pvalue)
    assert task["low"] < -25 < task["high"]
    assert task["items"] == 40
    retain = line(frame, row="hero", against="dense", measure="retain")
    assert retain["difference"] == pytest.approx(100 * ((0.75 + 1) / 2 - 1))
    assert (retain["test"], retain["items"]) == ("bootstrap", 80)
    assert np.isnan(retain["won"])
    assert retain["high"] < 0
    assert retain["p"] == pytest.approx(2 / 1000)


def test_kl_is_paired_over_texts_and_stays_in_nats() -> None:
    def apart(row: str, kl: list[float]) -> dict[str, Any]:
        parts = {"all": records.distance([10, 10], kl, [5, 5])}
        texts = {"texts": "0123456789abcdef", "seconds": 1.0, "distances": parts}
        return run(row, "half", fidelity=texts)

    runs = [dense(), apart("hero", [2.0, 8.0]), apart("cut", [3.0, 9.0]), run("lone", "half")]
    frame = difference_frame(panels(*runs), "hero")
    entry = line(frame, row="cut", against="hero", measure="kl")
    # One nat more in each of two texts of ten tokens, whichever texts are drawn.
    assert [entry[name] for name in ("difference", "low", "high")] == pytest.approx([0.1] * 3)
    assert (entry["items"], entry["test"], entry["p"]) == (2, "bootstrap", pytest.approx(0.002))
    assert np.isnan(entry["items_needed"])
    measured = set(frame[frame["measure"] == "kl"]["row"])
    assert measured == {"cut"}
    assert "kl" not in set(frame[frame["against"] == "dense"]["measure"])


def test_every_row_meets_the_reference_and_hero_at_its_own_target() -> None:
    far = {"budget": 0.4}
    runs = [
        dense(), record("lora", 0.0, *run("x", "all")["scores"], budget=None, kind="reference"),
        run("hero", "most"), run("cut", "half"), run("hero", "half", **far),
        run("cut", "half", **far), run("hero-alpha", "most", budget=None),
    ]  # fmt: skip
    frame = difference_frame(panels(*runs), "hero")
    main = frame[frame["measure"] == "retain"]
    met = set(zip(main["row"], main["target"].fillna(0).astype(int), main["against"], strict=True))
    assert met == {
        ("lora", 0, "dense"), ("hero-alpha", 0, "dense"), ("hero", 25, "dense"),
        ("cut", 25, "dense"), ("hero", 40, "dense"), ("cut", 40, "dense"),
        ("lora", 25, "hero"), ("cut", 25, "hero"), ("lora", 40, "hero"), ("cut", 40, "hero"),
    }  # fmt: skip


@pytest.mark.parametrize("focus", ["hero", None])
def test_without_the_row_in_focus_the_reference_alone_is_an_opponent(focus: str | None) -> None:
    runs = panels(dense(), run("cut", "half"), run("hero-later-half", "most"))
    assert set(difference_frame(runs, focus)["against"]) == {"dense"}


def test_any_row_may_be_in_focus() -> None:
    runs = panels(dense(), run("cut", "half"), run("hero", "most"), run("hero-later-half", "few"))
    frame = difference_frame(runs, "cut")
    main = frame[(frame["measure"] == "a") & (frame["against"] != "dense")]
    met = main[["row", "against", "difference"]].to_numpy().tolist()
    # cut solves 20 of 40 items, hero 30, hero-later-half 5.
    assert met == [["hero", "cut", 25.0], ["hero-later-half", "cut", -37.5]]


def test_a_row_in_focus_without_a_target_meets_every_line() -> None:
    runs = [
        dense(),
        run("lora", "most", budget=None),
        run("cut", "half"),
        run("x", "few", budget=None),
    ]
    frame = difference_frame(panels(*runs, run("cut", "few", budget=0.4)), "lora")
    main = frame[(frame["measure"] == "retain") & (frame["against"] == "lora")]
    met = list(zip(main["row"], main["target"].fillna(0), strict=True))
    assert met == [("cut", 25), ("x", 0), ("cut", 40)]


def test_a_row_in_focus_meets_a_line_once() -> None:
    """With its line at the same target; with the one without a target where it has no other."""
    runs = [dense(), run("hero", "most", budget=None), run("hero", "half"), run("cut", "few")]
    frame = difference_frame(panels(*runs, run("cut", "half", budget=0.4)), "hero")
    main = frame[(frame["measure"] == "retain") & (frame["against"] == "hero")]
    met = list(zip(main["row"], main["target"].fillna(0), strict=True))
    assert met == [("cut", 25), ("cut", 40)]
    assert main["difference"].tolist() == pytest.approx([-100 * (0.5 - 0.125) / 2, -12.5])


def test_holm_runs_over_the_rows_of_one_target_and_measure() -> None:
    runs = [dense(), run("x", "most"), run("y", "half"), run("z", "most", budget=0.4)]
    frame = difference_frame(panels(*runs), "hero")
    part = frame[(frame["measure"] == "a") & (frame["target"] == 25)]
    assert part["p_holm"].tolist() == pytest.approx(holm(part["p"].tolist()).tolist())
    alone = line(frame, row="z", measure="a")
    assert alone["p_holm"] == alone["p"]


def test_rows_meet_rows_of_their_own_protocol_only() -> None:
    runs = [
        dense(), run("hero", "most"), run("cut", "half", kind="static"),
        run("hero", "few", match="split"), run("near", "most", match="split"),
    ]  # fmt: skip
    both = panels(*runs)
    frame = difference_frame(both, "hero")
    main = frame[(frame["measure"] == "a") & (frame["against"] == "hero")]
    met = {(one["match"], one["row"]): one["difference"] for one in main.to_dict("records")}
    # hero solves 30 of 40 items pooled, 5 by each; cut and near solve 20 and 30.
    assert met == {
        ("pooled", "cut"): -25, ("split", "cut"): 37.5, ("split", "near"): 62.5,
    }  # fmt: skip
    for match in ("pooled", "split"):
        own = main[main["match"] == match]
        assert own["p_holm"].tolist() == pytest.approx(holm(own["p"].tolist()).tolist())
    ranks = rank_frame(both)
    order = {(one["match"], one["row"]): one["rank"] for one in ranks.to_dict("records")}
    assert order == {
        ("pooled", "hero"): 1, ("pooled", "cut"): 2,
        ("split", "near"): 1, ("split", "cut"): 2, ("split", "hero"): 3,
    }  # fmt: skip
    best = {panel.match: marks(panel)["hero at 25 %", "a"].place for panel in both}
    assert best == {"pooled": 1, "split": 0}


def test_with_several_seeds_a_task_is_tested_over_items_and_seeds() -> None:
    """Each run alone stands far below dense (20 and 10 of 40 items lost), two seeds do not."""
    runs = [dense(), run("hero", "half", seed=1), run("hero", "most", seed=2), run("cut", "half")]
    frame = difference_frame(panels(*runs), "hero")
    several = line(frame, row="hero", against="dense", measure="a")
    assert (several["won"], several["lost"], several["test"]) == (0, 30, "bootstrap")
    assert several["low"] < -50
    assert several["p"] > 0.05
    single = line(frame, row="cut", against="dense", measure="a")
    assert (single["won"], single["lost"], single["test"]) == (0, 20, "McNemar")
    assert single["p"] == pytest.approx(2 * 0.5**20)


def test_runs_are_paired_by_seed() -> None:
    runs = [dense(), *(run("x", "most", seed=n) for n in (1, 2)), *(
        run("hero", "half", seed=n) for n in (2, 3))]  # fmt: skip
    reference, left, right = panels(*runs)[0].lines
    (pair,) = seed_pairs(left, right)
    assert pair[0] is left.runs[1]
    assert pair[1] is right.runs[0]
    assert [other for _, other in seed_pairs(reference, left)] == list(left.runs)


def test_the_one_run_of_a_row_meets_every_seed_of_hero() -> None:
    seeds = [run("hero", name, seed=n) for n, name in ((42, "most"), (43, "half"), (44, "few"))]
    entry = line(
        difference_frame(panels(dense(), *seeds, run("mod-d", "few", seed=42)), "hero"),
        row="mod-d", against="hero", measure="a",
    )  # fmt: skip
    # Items 35 to 39 of few; most lacks them and has 30 others, half has them and 15 others.
    assert (entry["won"], entry["lost"]) == (5 + 0 + 0, 30 + 15 + 0)
    assert (entry["test"], entry["p"] > 0.05) == ("bootstrap", True)


def test_scores_that_are_no_counts_are_tested_by_the_bootstrap() -> None:
    def graded(row: str, value: float) -> dict[str, Any]:
        values = score("a", [value, 1.0] * 20, k=None)
        return record(row, 0.2, values, score("b", [1, 0] * 20))

    base = graded("dense", 1.0) | {"budget": None, "kind": "reference", "stochastic": False}
    frame = difference_frame(panels(base, graded("cut", 0.5)), "hero")
    entry = line(frame, measure="a", against="dense")
    assert entry["test"] == "bootstrap"
    assert entry["difference"] == pytest.approx(-25)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([1.0, 3.0, 2.0], [0, 1, 2]),
        ([3.0, 3.001, 2.0, 1.0], [1, 1, 2, 0]),
        ([3.0, 2.0, 2.004], [1, 2, 2]),
        ([np.nan, 1.0], [0, 1]),
        ([], []),
    ],
)
def test_places(values: list[float], expected: list[int]) -> None:
    assert places(values) == expected


def test_places_where_less_is_better() -> None:
    assert places([3.0, 1.0, 2.0], lower_is_better=True) == [0, 1, 2]


def test_marks_name_the_best_the_second_and_who_is_tied() -> None:
    close = [1] * 29 + [0] * 10 + [1]
    near = record("near", 0.25, score("a", close), score("b", [1, 0] * 20))
    runs = [dense(), run("best", "most"), near, run("far", "half"), run("lone", "half", budget=0.4)]
    runs[1]["scores"][0] = score("a", [1] * 31 + [0] * 9)
    marks_of = marks(panels(*runs)[0])
    assert marks_of["best at 25 %", "a"] == Mark(1, False)
    assert marks_of["near at 25 %", "a"] == Mark(2, True)
    assert marks_of["far at 25 %", "a"] == Mark(0, False)
    assert marks_of["lone at 40 %", "a"] == Mark(1, False)
    assert not [name for name, _ in marks_of if name == "dense"]
    # Equal scores of equal items: all best, none second.
    assert {marks_of[f"{row} at 25 %", "b"] for row in ("best", "near", "far")} == {Mark(1, False)}


def test_the_lowest_perplexity_is_best() -> None:
    def perplexity(value: float) -> dict[str, Any]:
        return score(
            "perplexity:x", [value], "perplexity", higher_is_better=False, k=None, value=value
        )

    runs = [dense(), run("x", "half"), run("y", "most")]
    for entries, value in zip(runs, (2.0, 3.0, 4.0), strict=True):
        entries["scores"].append(perplexity(value))
    marks_of = marks(panels(*runs)[0])
    assert marks_of["x at 25 %", "perplexity:x"] == Mark(1)
    assert marks_of["y at 25 %", "perplexity:x"] == Mark(2)


def test_marks_follow_the_headline_whatever_other_metrics_a_task_has() -> None:
    beside = {"primary": False, "higher_is_better": False, "k": None}
    for other, moves in (
        ({**beside, "metric": "perplexity"}, 40.0),
        ({**beside, "metric": "x"}, -40),
    ):
        runs = [dense(), run("x", "most"), run("y", "half"), run("z", "few")]
        for n, entries in enumerate(runs):
            entries["scores"].append(score("a", [2.0], **other, value=50 + moves * n))
        marks_of = marks(panels(*runs)[0])
        assert [marks_of[f"{row} at 25 %", "a"].place for row in "xyz"] == [1, 2, 0]
    # The other way round: less is better in the headline, more beside it.
    runs = [dense(), run("x", "most"), run("y", "half"), run("z", "few")]
    for n, entries in enumerate(runs):
        head = score("text", [2.0], "loss", higher_is_better=False, k=None, value=n)
        entries["scores"] += [head, score("text", [0.9 * n], "acc", primary=False)]
    marks_of = marks(panels(*runs)[0])
    assert [marks_of[f"{row} at 25 %", "text"].place for row in "xyz"] == [1, 2, 0]


def test_ranks_by_hand() -> None:
    frame = rank_frame(panels(dense(), run("x", "few"), run("y", "most"), run("z", "most")))
    assert frame["rank"].tolist() == [3, 1, 1]
    assert frame[["rank_low", "rank_high"]].to_numpy().tolist() == [[3, 3], [1, 1], [1, 1]]
    assert frame["first"].tolist() == [0, 100, 100]
    assert frame["behind"].tolist() == pytest.approx([100 * (0.75 - 0.125) / 2, 0, 0])
    assert frame["tied"].tolist() == [False, False, True]


@pytest.mark.parametrize(("names", "tied"), [(["all", "few", "most"], True), (["all"] * 3, False)])
def test_seeds_that_move_tie_rows_that_items_tell_apart(names: list[str], tied: bool) -> None:
    rows = [run("best", name, seed=n) for n, name in enumerate(names)]
    both = panels(dense(), *rows, run("cut", "half", stochastic=False))
    best, cut = rank_frame(both).to_dict("records")
    assert (best["rank"], cut["rank"]) == (1, 2)
    assert (cut["tied"], cut["behind_low"] <= 0, best["rank_high"] == 2) == (tied, tied, tied)
    assert marks(both[0])["cut at 25 %", "retain"] == Mark(2, tied)


def test_a_rank_of_one_seed_is_told_by_items_alone() -> None:
    rows = [run("best", "all", seed=n) for n in (1, 2)]
    rows += [run("cut", "few", stochastic=False), run("mod-d", "few")]
    frame = rank_frame(panels(dense(), *rows))
    assert dict(zip(frame["row"], frame["one_seed"], strict=True)) == {
        "best": False, "cut": False, "mod-d": True,
    }  # fmt: skip
    table = rank_table(frame)
    place = list(table.columns).index("Differs from the best")
    assert [line[place].text for line in table.lines] == ["–", "yes", "yes, of one seed"]


def test_references_do_not_compete_also_with_a_budget() -> None:
    tuned = run("tuned", "all", kind="reference")
    all_panels = panels(dense(), run("x", "few"), tuned)
    assert rank_frame(all_panels)["row"].tolist() == ["x"]
    assert {name for name, _ in marks(all_panels[0])} == {"x at 25 %"}


def test_ranks_that_are_open_have_wide_intervals() -> None:
    rng = np.random.default_rng(0)
    rows = [
        record(f"r{n}", 0.25, score("a", list((rng.random(40) < 0.7).astype(float))),
               score("b", [1, 0] * 20)) for n in range(4)
    ]  # fmt: skip
    frame = rank_frame(panels(dense(), *rows))
    assert (frame["rank_low"] <= frame["rank"]).all()
    assert (frame["rank"] <= frame["rank_high"]).all()
    assert (frame["rank_high"] - frame["rank_low"]).max() >= 2
    assert frame["first"].sum() >= 100


def test_a_p_that_resamples_cannot_tell_is_a_bound() -> None:
    frame = pd.DataFrame(
        {
            "backbone": "toy", "target": [25.0, 25.0, 25.0, 40.0, None],
            "test": ["bootstrap", "bootstrap", "bootstrap", "bootstrap", "McNemar"],
            "p": [0.0002, 0.0004, 0.03, 0.0004, 0.0001],
            "p_holm": [0.0006, 0.0006, 0.03, 0.0004, 0.0001],
        }
    )  # fmt: skip
    assert p_texts(frame, "p_holm") == ["≤ 0.0006", "≤ 0.0006", "0.0300", "0.0004", "0.0001"]
