"""From records to the frames of the tables, on numbers that a pencil can check."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from tests import records
from tests.records import record, score, typed
from workflows.report.suite_tables import notes
from workflows.stats.frames import (
    budget_frame,
    cost_frame,
    measure_frame,
    retain_frame,
    score_frame,
)
from workflows.stats.lines import Panel
from workflows.stats.measures import ABOVE

COLUMNS = (
    "backbone target match row title kind seeds skip skip_std skip_prompt skip_answer skip_net "
    "skip_authors retain retain_std seed_std retain_low retain_high above_chance above_low "
    "above_high flips changed"
).split()


def panels(*runs: dict[str, Any], tasks: tuple[str, ...] = ("a", "b")) -> list[Panel]:
    return records.panels(*runs, tasks=tasks, resamples=400)


def frame(*runs: dict[str, Any], tasks: tuple[str, ...] = ("a", "b")) -> pd.DataFrame:
    return retain_frame(panels(*runs, tasks=tasks))


def on(name: str) -> dict[str, Any]:
    """Another backbone."""
    return {"backbone": record("x", 0.0)["backbone"] | {"name": name}}


def dense(**changes: Any) -> dict[str, Any]:
    scores = score("a", [1, 1, 1, 1, 0]), score("b", [1, 1, 0, 0])
    return records.dense(*scores, **changes)


def other(skip: float = 0.25, **changes: Any) -> dict[str, Any]:
    return record("hero", skip, score("a", [1, 1, 0, 0, 0]), score("b", [1, 0, 1, 0]), **changes)


def test_columns_and_numbers_by_hand() -> None:
    table = frame(dense(), other(0.25), other(0.27, seed=43))
    assert list(table.columns) == [*COLUMNS, "a:acc", "b:acc", "same_weights", "note"]
    first, second = table.to_dict("records")
    assert [first[c] for c in ("skip", "retain", "retain_low", "retain_high")] == [0, 100, 100, 100]
    assert np.isnan(first["target"])
    assert second["seeds"] == 2
    assert second["target"] == 25
    assert second["skip"] == pytest.approx(26)
    assert second["skip_std"] == pytest.approx(np.std([25, 27], ddof=1), abs=1e-4)
    assert second["skip_net"] == pytest.approx(25)
    assert second["skip_authors"] == pytest.approx(50)
    # (0.4 / 0.8 + 0.5 / 0.5) / 2
    assert second["retain"] == pytest.approx(75)
    assert (second["a:acc"], second["b:acc"]) == (40, 50)
    assert second["match"] == "pooled"
    assert (second["skip_prompt"], second["skip_answer"]) == (pytest.approx(26), 20)
    assert second["retain_low"] < 75 < second["retain_high"]


def test_rows_that_are_not_stochastic_show_no_deviation() -> None:
    (_, line) = frame(dense(), other(stochastic=False)).to_dict("records")
    assert np.isnan(line["skip_std"])
    assert np.isnan(line["retain_std"])


def test_only_the_retain_tasks_enter_and_only_their_headline_metric() -> None:
    extra = score("a", [1, 1, 1, 1, 1], "acc_norm", primary=False)
    ppl = score("perplexity:text", [3.0], "perplexity", higher_is_better=False, k=None)
    runs = []
    for rec in (dense(), other()):
        rec["scores"] += [extra, ppl]
        runs.append(rec)
    table = frame(*runs, tasks=("a",))
    assert table["retain"].tolist() == [100, 50]
    assert [c for c in table.columns if ":" in c] == [
        "a:acc",
        "b:acc",
        "perplexity:text:perplexity",
    ]
    # A perplexity is no percentage.
    assert table["perplexity:text:perplexity"].tolist() == [3, 3]


def test_budgets_and_backbones_have_lines_of_their_own() -> None:
    far = on("far")
    runs = [dense(), other(), other(0.4, budget=0.4), dense(**far), other(**far)]
    table = frame(*runs)
    assert list(zip(table["backbone"], table["row"], strict=True)) == [
        ("toy", "dense"), ("toy", "hero"), ("toy", "hero"), ("far", "dense"), ("far", "hero"),
    ]  # fmt: skip
    assert table["target"].tolist()[1:3] == [25, 40]


def test_each_backbone_is_held_against_its_own_reference() -> None:
    weak = dense(**on("far"))
    weak["scores"] = [score("a", [1, 1, 0, 0, 0]), score("b", [1, 0, 1, 0])]
    table = frame(dense(), weak, other(**on("far")))
    assert table["retain"].tolist() == [100, 100, 100]


def test_rows_that_hold_the_same_weights_say_so() -> None:
    def run(row: str, weights: str | None, budget: float | None = 0.25, **more: Any) -> Any:
        entries = score("a", [1, 1, 0, 0, 0]), score("b", [1, 0, 1, 0])
        return record(
            row, budget or 0, *entries, budget=budget, weights_hash=weights and 16 * weights, **more
        )

    runs = [
        dense(weights_hash=16 * "a"), run("cut", "b"), run("taylor", "b"), run("cut", "b", 0.4),
        run("hero", "b"), run("hero", "c", seed=43), run("plain", None), run("plainer", None),
    ]  # fmt: skip
    table = frame(*runs)
    lines = list(zip(table["row"], table["target"], strict=True))
    assert {
        line: same for line, same in zip(lines, table["same_weights"], strict=True) if same
    } == {
        ("cut", 25): "Taylor; Cut at 40 %",
        ("taylor", 25): "Cut; Cut at 40 %",
        ("cut", 40): "Cut at 25 %; Taylor at 25 %",
    }
    notes_of = dict(zip(lines, notes(table), strict=True))
    assert notes_of["cut", 25] == "same weights as Taylor, Cut at 40 %"
    assert notes_of["hero", 25] == ""


@pytest.mark.parametrize(
    ("skip", "note"), [(0.255, ""), (0.30, "over budget by 5.0"), (0.20, "under budget by 5.0")]
)
def test_a_missed_budget_is_noted(skip: float, note: str) -> None:
    assert frame(dense(), other(skip))["note"].tolist() == ["", note]


def test_a_budget_missed_by_one_seed_is_noted_though_the_mean_meets_it() -> None:
    table = frame(dense(), other(0.262), other(0.245, seed=43), other(0.238, seed=44))
    note = "over budget by 1.2 in 1 of 3 runs; under budget by 1.2 in 1 of 3 runs"
    assert table["note"].tolist() == ["", note]


def test_tokens_of_a_score_are_those_of_its_task() -> None:
    run = record("hero", 0.25, score("a", [1, 0]))
    run["scores"][0]["rates"]["all"]["tokens"] = 7
    assert score_frame(typed(run))["tokens"].tolist() == [7]


def test_a_task_without_luck_enters_above_chance() -> None:
    runs = [
        records.dense(score("a", [1, 1, 1, 0] * 10, chance=0.0)),
        record("hero", 0.25, score("a", [1, 0] * 20, chance=0.0)),
    ]
    (panel,) = panels(*runs, tasks=("a",))
    assert panel.measures.tasks[ABOVE] == ["a"]


def units(*executed: float) -> list[dict[str, Any]]:
    return [
        {"layer": layer, "kind": "ffn", "parameters": 6, "executed": share}
        for layer, share in enumerate(executed)
    ]


ONE_WAY = "gates all one way"


@pytest.mark.parametrize(
    ("shares", "note"),
    [
        ((), ""),
        ((0.0, 0.0), ONE_WAY),
        ((1.0, 1.0), ONE_WAY),
        ((0.009, 1.0, 0.991), ONE_WAY),
        ((0.0, 0.011, 1.0), ""),
        ((0.0, 0.989, 1.0), ""),
    ],
)
def test_gates_that_tell_no_tokens_apart_are_noted(shares: tuple[float, ...], note: str) -> None:
    assert frame(dense(), other(units=units(*shares)))["note"].tolist() == ["", note]


def test_gates_all_one_way_are_counted_over_seeds() -> None:
    runs = [other(units=units(0, 1)), other(seed=43, units=units(0.5, 1)), other(seed=44)]
    assert frame(dense(), *runs)["note"].tolist() == ["", f"{ONE_WAY} in 1 of 3 runs"]


@pytest.mark.parametrize(
    ("parameters", "budget", "note"),
    [
        # Of 100 parameters two candidates hold 36, of which 25 are 69 %.
        ((18, 18), 0.25, "must skip 69 % of its candidates"),
        ((18, 18), None, ""),
        ((25, 24), 0.25, "must skip 51 % of its candidates"),
        ((25, 25), 0.25, ""),
        ((25, 26), 0.25, ""),
        ((25, 25), 0.4, "must skip 80 % of its candidates"),
        ((), 0.25, ""),
    ],
)
def test_a_row_with_few_candidates_is_noted(
    parameters: tuple[int, ...], budget: float | None, note: str
) -> None:
    candidates = [
        {"layer": layer, "kind": "ffn", "parameters": held, "executed": 0.5}
        for layer, held in enumerate(parameters)
    ]
    backbone = {"backbone": dense()["backbone"] | {"parameters": 100}}
    row = other(budget or 0.25, units=candidates, budget=budget, **backbone)
    assert frame(dense(**backbone), row)["note"].tolist() == ["", note]


def test_a_row_scored_in_batches_of_one_length_is_noted_as_not_causal() -> None:
    evaluation = dense()["evaluation"]
    rows = [other(evaluation=evaluation | {"equal_lengths": equal}) for equal in (False, True)]
    rows[1]["row"] = "mod-d-topk"
    assert frame(dense(), *rows)["note"].tolist() == ["", "", "not causal"]


def test_uncommitted_code_is_noted() -> None:
    assert frame(dense(), other(dirty=True))["note"].tolist() == ["", "code not committed"]


def test_a_row_that_does_not_apply_keeps_its_line_and_its_reason() -> None:
    table = frame(dense(), records.not_applicable("hero", "too small"))
    line = table.to_dict("records")[1]
    assert line["note"] == "not applicable: too small"
    assert np.isnan(line["retain"])


def test_a_missing_reference_is_refused() -> None:
    with pytest.raises(ValueError, match="backbone 'toy' has no record of the row 'dense'"):
        frame(other())


def test_scores_have_one_line_per_run_and_metric() -> None:
    hero = other(seed=43)
    hero["scores"][0] |= {"metric": "acc_norm", "filter": "strict", "stderr": 0.3}
    names = "row seed task metric filter value k n stderr skip tokens".split()
    assert score_frame(typed(dense(), hero))[names].values.tolist() == [
        ["dense", 42, "a", "acc", "none", 0.8, 4, 5, 0.1, 0.2, 100],
        ["dense", 42, "b", "acc", "none", 0.5, 2, 4, 0.1, 0.2, 100],
        ["hero", 43, "a", "acc_norm", "strict", 0.4, 2, 5, 0.3, 0.2, 100],
        ["hero", 43, "b", "acc", "none", 0.5, 2, 4, 0.1, 0.2, 100],
    ]


def test_budgets_by_hand() -> None:
    line = budget_frame(panels(dense(), other(0.25), other(0.29, seed=43))).to_dict("records")[1]
    assert (line["target"], line["seeds"]) == (25, 2)
    assert line["missed"] == "over budget by 4.0 in 1 of 2 runs"
    assert line["skip"] == pytest.approx(27)
    assert line["skip_std"] == pytest.approx(np.std([25, 29], ddof=1))
    assert (line["skip_net"], line["skip_authors"]) == (pytest.approx(26), 50)
    assert line["token_std"] == pytest.approx(13.5)
    assert (line["skip_prompt"], line["skip_likelihood"]) == (
        pytest.approx(27),
        pytest.approx(13.5),
    )
    assert (line["skip_prompt_std"], line["skip_answer"], line["skip_answer_std"]) == (
        pytest.approx(np.std([25, 29], ddof=1)), pytest.approx(20), 0,
    )  # fmt: skip
    assert pd.isna(line["skip_generated"])


def test_skips_weighed_otherwise_than_budgets_by_hand() -> None:
    run = other(0.25)
    run["rates"] |= records.rates(0.25, answer=0.5)
    for entry, (skip, prompt) in zip(run["scores"], [(0.1, 0.3), (0.2, 0.6)], strict=True):
        entry["rates"] |= records.rates(skip, prompt=prompt)
    line = budget_frame(panels(dense(), run)).to_dict("records")[1]
    names = ["skip_answer_by_token", "skip_by_task", "skip_prompt_by_task"]
    assert [line[name] for name in names] == pytest.approx([50, 15, 45])


def test_costs_by_hand() -> None:
    fit = {"seconds": 5.5, "peak_memory_mb": 700.0, "trained_parameters": 9}
    changes = {"fit": other()["fit"] | fit, "params": {"updates": 3, "batch_tokens": 7}}
    scoring = [
        {"evaluation": dense()["evaluation"] | {"device": "cuda", "peak_memory_mb": memory}}
        for memory in (250.0, 350.0)
    ]
    runs = dense(fit=None), other(**changes, **scoring[0]), other(seed=43, **scoring[1])
    lines = cost_frame(panels(*runs)).to_dict("records")
    assert pd.isna(lines[0]["trained_parameters"])
    assert pd.isna(lines[0]["fit_seconds"])
    assert (lines[1]["trained_parameters"], lines[1]["training_tokens"]) == (9, 21)
    assert (lines[1]["fit_seconds"], lines[1]["fit_memory_mb"]) == (4.0, 500)
    assert (lines[1]["scored_tokens"], lines[1]["scoring_seconds"]) == (100, 1.5)
    assert [line["scoring_memory_mb"] for line in lines] == [200, 300]
    assert [line["device"] for line in lines] == ["cpu", "cuda"]


def test_untrained_rows_saw_no_training_tokens() -> None:
    run = other(params={"updates": 3, "batch_tokens": 7})
    assert pd.isna(cost_frame(panels(dense(), run))["training_tokens"][1])


def test_measures_beside_retain_say_their_tasks() -> None:
    right = [1] * 30 + [0] * 10
    some = [1] * 20 + [0] * 10 + [1] * 5 + [0] * 5
    guess = [1, 0, 0, 0] * 10
    runs = (
        records.dense(score("a", right), score("b", guess)),
        record("hero", 0.25, score("a", some), score("b", guess)),
    )
    lines = measure_frame(panels(*runs)).set_index(["row", "measure"])
    # On b the reference guesses, so Above chance is that of a: (25 - 10) of (30 - 10) items.
    above = lines.loc[("hero", "above_chance")]
    assert above["value"] == pytest.approx(75)
    assert (above["tasks"], above["left_out"]) == ("a", "b")
    assert above["low"] < 75 < above["high"]
    assert lines.loc[("hero", "lost"), "value"] == pytest.approx(100 * (10 / 40) / 2)
    assert lines.loc[("hero", "won"), "value"] == pytest.approx(100 * (5 / 40) / 2)
    assert lines.loc[("hero", "flips"), "value"] == pytest.approx(100 * (15 / 40) / 2)
    assert lines.loc[("dense", "above_chance"), "value"] == pytest.approx(100)
    (line,) = retain_frame(panels(*runs)).query("row == 'hero'").to_dict("records")
    assert (line["above_chance"], line["above_low"]) == pytest.approx((75, above["low"]), abs=1e-3)
    assert line["flips"] == pytest.approx(100 * (15 / 40) / 2, abs=1e-3)
