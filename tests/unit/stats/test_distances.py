"""KL and agreement over texts: sums by hand, frames with and without them, coverage."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from tests import records
from tests.records import Run, distance, panels, record, score, typed
from workflows.records.parts import Distance, Fidelity
from workflows.stats.comparable import check_comparable
from workflows.stats.distances import AGREEMENT, KL, MEASURES, distances
from workflows.stats.frames import (
    DISTANCES,
    budget_frame,
    cost_frame,
    measure_frame,
    retain_frame,
)
from workflows.stats.sampling import interval

ITEMS = [score("a", [1, 1, 1, 0]), score("b", [1, 1, 0, 0])]
TOKENS, ANSWERS = [2, 6, 12], [0, 1, 3]


def fidelity(kl: list[float], agreement: list[int], **changes: Any) -> Run:
    """Three texts; on their answers half of the KL, and the likeliest token never agrees."""
    parts = {
        "all": distance(TOKENS, kl, agreement, 0.25),
        "answer": distance(ANSWERS, [value / 2 for value in kl], [0, 0, 0], 0.15),
    }
    return {"texts": "0123456789abcdef", "seconds": 2.0, "distances": parts} | changes


def runs() -> list[Run]:
    """Dense, and HeRo under two seeds."""
    same = fidelity([0, 0, 0], TOKENS)
    same["distances"]["answer"]["agreement"] = ANSWERS
    near, far = fidelity([1, 2, 3], [2, 5, 10]), fidelity([2, 4, 4], [1, 4, 9])
    return [
        records.dense(*ITEMS, fidelity=same),
        record("hero", 0.25, *ITEMS, fidelity=near),
        record("hero", 0.25, *ITEMS, fidelity=far, seed=43),
    ]


def test_a_mean_is_over_the_tokens_of_all_texts() -> None:
    lines = {"near": typed(runs()[1]), "both": typed(*runs()[1:]), "dense": typed(runs()[0])}
    samples = distances(lines, 200)
    assert list(samples) == list(MEASURES)
    assert samples[KL]["near"].value == pytest.approx(6 / 20)
    assert samples[AGREEMENT]["near"].value == pytest.approx(17 / 20)
    assert samples["kl_answer"]["near"].value == pytest.approx(3 / 4)
    assert samples["agreement_answer"]["near"].value == 0
    # Over seeds: the mean of both, with a standard deviation.
    assert samples[KL]["both"].value == pytest.approx((6 / 20 + 10 / 20) / 2)
    assert samples[KL]["both"].std == pytest.approx(np.std([6 / 20, 10 / 20], ddof=1))
    assert (samples[KL]["dense"].draws == 0).all()
    assert (samples[AGREEMENT]["dense"].draws == 1).all()


def test_whole_texts_are_resampled_the_same_for_every_line() -> None:
    lines = {"near": typed(runs()[1]), "again": typed(runs()[1])}
    samples = distances(lines, 300)
    possible = {
        round((a + 2 * b + 3 * c) / (2 * a + 6 * b + 12 * c), 9)
        for a in range(4) for b in range(4) for c in range(4) if a + b + c == 3
    }  # fmt: skip
    draws = samples[KL]["near"].draws
    assert {round(float(value), 9) for value in draws} == possible
    assert (draws == samples[KL]["again"].draws).all()


def test_a_line_with_a_run_that_was_not_compared_has_no_value() -> None:
    near, far = typed(*runs()[1:])
    bare = typed(record("hero", 0.25, *ITEMS, seed=44))
    samples = distances({"all": [near, far], "some": [near, *bare], "none": bare}, 20)
    assert list(samples[KL]) == ["all"]
    assert distances({"none": bare}, 20) == {}


def test_texts_without_answers_have_no_column_on_answers() -> None:
    run = runs()[1]
    del run["fidelity"]["distances"]["answer"]
    assert list(distances({"hero": typed(run)}, 20)) == [KL, AGREEMENT]


def test_columns_of_the_frames_are_the_means_by_hand() -> None:
    made = panels(*runs())
    _, line = retain_frame(made).to_dict("records")
    assert line["kl"] == pytest.approx(0.4)
    assert line["agreement"] == pytest.approx(100 * (17 / 20 + 14 / 20) / 2)
    assert line["kl_answer"] == pytest.approx((3 / 4 + 5 / 4) / 2)
    assert line["agreement_answer"] == 0
    assert line["kl_low"] < 0.4 < line["kl_high"]
    lines = measure_frame(made).set_index(["row", "measure"])
    for measure in MEASURES:
        assert lines.loc[("hero", measure), "value"] == pytest.approx(line[measure], abs=1e-4)
    kl, agreement = lines.loc[("hero", "kl")], lines.loc[("hero", "agreement")]
    assert (kl["low"], kl["high"]) == pytest.approx((line["kl_low"], line["kl_high"]), abs=1e-4)
    assert kl["std"] == pytest.approx(np.std([0.3, 0.5], ddof=1))
    assert agreement["std"] == pytest.approx(100 * np.std([17 / 20, 14 / 20], ddof=1))
    assert pd.isna(kl["tasks"])
    assert lines.loc[("dense", "kl"), "value"] == 0
    assert lines.loc[("dense", "agreement"), "value"] == 100
    (_, budget), (_, cost) = (f(made).to_dict("records") for f in (budget_frame, cost_frame))
    assert (budget["skip_texts"], budget["skip_texts_answer"]) == pytest.approx((25, 15))
    assert (cost["scoring_seconds"], cost["fidelity_seconds"]) == (1.5, 2.0)


@pytest.mark.parametrize(("skip", "note"), [(0.279, ""), (0.31, "KL at 31.0 % skip")])
@pytest.mark.parametrize(("answer", "more"), [(0.22, ""), (0.2, "KL on answers at 20.0 % skip")])
def test_a_note_says_where_kl_is_read_far_from_the_budget(
    skip: float, note: str, answer: float, more: str
) -> None:
    dense, *seeds = runs()
    for run in seeds:
        for kind, rate in {"all": skip, "answer": answer}.items():
            run["fidelity"]["distances"][kind]["skip"] = rate
    note = "; ".join(words for words in (note, more) if words)
    assert retain_frame(panels(dense, *seeds))["note"].tolist() == ["", note]


def test_a_suite_without_such_texts_has_no_such_column() -> None:
    made = panels(*({k: v for k, v in run.items() if k != "fidelity"} for run in runs()))
    assert not {*DISTANCES} & {*retain_frame(made).columns}
    assert not {*MEASURES} & {*measure_frame(made)["measure"]}
    assert "fidelity_seconds" not in cost_frame(made)
    assert "skip_texts" not in budget_frame(made)


def test_a_row_that_was_not_compared_yet_has_an_empty_cell() -> None:
    made = panels(*runs(), record("late", 0.25, *ITEMS))
    frame = retain_frame(made).set_index("row")
    assert pd.isna(frame.loc["late", "kl"])
    assert frame.loc["hero", "kl"] == pytest.approx(0.4)
    assert ("late", "kl") not in measure_frame(made).set_index(["row", "measure"]).index


def test_rows_compared_on_different_texts_are_refused() -> None:
    first, second, _ = runs()
    second["fidelity"]["texts"] = "f" * 16
    with pytest.raises(ValueError, match=r"different texts of KL \(data.fidelity\): 0123"):
        check_comparable(typed(first, second))
    other = record("x", 0.0)["backbone"] | {"name": "far"}
    check_comparable(typed(first, second | {"backbone": other}))


@pytest.mark.long
def test_intervals_cover_the_truth() -> None:
    """48 texts of uneven length, as few as a suite has, each with its own KL and agreement."""
    rng, texts, trials, kl, agreement = np.random.default_rng(3), 48, 1000, 0.3, 0.8
    covered = {KL: 0, AGREEMENT: 0}
    (run,) = typed(runs()[1])
    for trial in range(trials):
        tokens = rng.integers(8, 60, texts)
        sums = tokens * kl * rng.gamma(4, 1 / 4, texts)
        agreed = rng.binomial(tokens, np.clip(rng.normal(agreement, 0.05, texts), 0, 1))
        own = Distance(skip=0.25, tokens=tokens, kl=sums, agreement=agreed)
        one = replace(run, fidelity=Fidelity(texts="", seconds=0.0, distances={"all": own}))
        samples = distances({"hero": [one]}, 1000, seed=trial)
        for measure, truth in ((KL, kl), (AGREEMENT, agreement)):
            low, high = interval(samples[measure]["hero"].draws)
            covered[measure] += low <= truth <= high
    assert all(0.93 <= number / trials <= 0.97 for number in covered.values()), covered
