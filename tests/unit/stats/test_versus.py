"""Rows against each other: differences, ranks, marks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from tests import records
from tests.records import line, record, score
from workflows.report.display import p_texts
from workflows.stats.lines import Panel
from workflows.stats.paired import holm
from workflows.stats.ranking import marks, rank_frame
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


def test_equal_rows_need_no_number_of_items() -> None:
    frame = difference_frame(panels(dense(), run("hero", "all")), None)
    assert frame["items_needed"].isna().all()


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


def test_holm_runs_over_the_rows_of_one_backbone() -> None:
    runs = [dense(), run("x", "most"), run("y", "half")]
    far = {"backbone": dense()["backbone"] | {"name": "far"}}
    frame = difference_frame(panels(*runs, *(one | far for one in runs)), None)
    alone = difference_frame(panels(*runs), None)["p_holm"].tolist()
    for name in ("toy", "far"):
        assert frame[frame["backbone"] == name]["p_holm"].tolist() == alone


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
