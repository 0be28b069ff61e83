"""Ranks of rows, and the marks of the best, the second and the tied."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.records import record, score
from tests.unit.stats.test_versus import dense, panels, run
from workflows.report.suite_tables import rank_table
from workflows.stats.ranking import Mark, marks, places, rank_frame


def test_a_rank_beside_a_best_row_of_one_seed_says_so() -> None:
    runs = [run("best", "most"), *(run("two", "half", seed=seed) for seed in (1, 2))]
    ranked = rank_frame(panels(dense(), *runs)).set_index("row")["one_seed"]
    assert ranked.to_dict() == {"best": True, "two": True}


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
