"""From records to the frames that people read."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from workflows.stats.tables import (
    display_frame,
    layer_frame,
    retain_frame,
    score_frame,
    short_name,
)

COLUMNS = (
    "backbone target row title kind seeds skip skip_std skip_net skip_authors retain retain_std "
    "retain_low retain_high"
).split()


def score(task: str, values: list[float], metric: str = "acc", **changes: Any) -> dict[str, Any]:
    return {
        "task": task,
        "metric": metric,
        "filter": "none",
        "primary": True,
        "higher_is_better": True,
        "value": float(np.mean(values)),
        "n": len(values),
        "k": int(sum(values)),
        "stderr": 0.1,
        "prompt_hash": "p",
        "rates": {"all": {"tokens": 10, "skip": 0.2}},
        "items": values,
    } | changes


def record(row: str, skip: float, *scores: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {
        "status": "ok",
        "reason": None,
        "row": row,
        "title": row.title(),
        "kind": "dynamic",
        "stochastic": True,
        "budget": 0.25,
        "seed": 42,
        "dirty": False,
        "backbone": {"name": "toy"},
        "rates": {"all": {"tokens": 20, "skip": skip, "skip_net": skip - 0.01}},
        "skip_authors": 0.5,
        "scores": list(scores),
        "layers": {"kept": 4, "dense": 4, "removed": []},
        "units": [],
    } | changes


def items_of(rec: dict[str, Any]) -> pd.DataFrame:
    lines = [
        {k: s[k] for k in ("task", "metric", "filter")} | {"item": n, "value": v}
        for s in rec["scores"]
        for n, v in reversed(list(enumerate(s["items"])))
    ]
    return pd.DataFrame(lines)


def frame(*records: dict[str, Any], tasks: tuple[str, ...] = ("a", "b")) -> pd.DataFrame:
    items = {n: items_of(r) for n, r in enumerate(records) if r["status"] == "ok"}
    return retain_frame(records, items, tasks, "dense")


def dense(**changes: Any) -> dict[str, Any]:
    given = {"kind": "reference", "stochastic": False, "budget": None, "skip_authors": 0.0}
    scores = score("a", [1, 1, 1, 1, 0]), score("b", [1, 1, 0, 0])
    return record("dense", 0.0, *scores, **(given | changes))


def other(skip: float = 0.25, **changes: Any) -> dict[str, Any]:
    return record("hero", skip, score("a", [1, 1, 0, 0, 0]), score("b", [1, 0, 1, 0]), **changes)


def test_columns_and_numbers_by_hand() -> None:
    table = frame(dense(), other(0.25), other(0.27, seed=43))
    assert list(table.columns) == [*COLUMNS, "a:acc", "b:acc", "note"]
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
    far = {"backbone": {"name": "far"}}
    runs = [dense(), other(), other(0.4, budget=0.4), dense(**far), other(**far)]
    table = frame(*runs)
    assert list(zip(table["backbone"], table["row"], strict=True)) == [
        ("toy", "dense"), ("toy", "hero"), ("toy", "hero"), ("far", "dense"), ("far", "hero"),
    ]  # fmt: skip
    assert table["target"].tolist()[1:3] == [25, 40]


def test_each_backbone_is_held_against_its_own_reference() -> None:
    weak = dense(backbone={"name": "far"})
    weak["scores"] = [score("a", [1, 1, 0, 0, 0]), score("b", [1, 0, 1, 0])]
    table = frame(dense(), weak, other(backbone={"name": "far"}))
    assert table["retain"].tolist() == [100, 100, 100]


@pytest.mark.parametrize(
    ("skip", "note"), [(0.255, ""), (0.30, "over budget by 5.0"), (0.20, "under budget by 5.0")]
)
def test_a_missed_budget_is_noted(skip: float, note: str) -> None:
    assert frame(dense(), other(skip))["note"].tolist() == ["", note]


def test_uncommitted_code_is_noted() -> None:
    assert frame(dense(), other(dirty=True))["note"].tolist() == ["", "code not committed"]


def test_a_row_that_does_not_apply_keeps_its_line_and_its_reason() -> None:
    table = frame(dense(), other(status="not applicable", reason="too small", scores=[]))
    line = table.to_dict("records")[1]
    assert line["note"] == "not applicable: too small"
    assert np.isnan(line["retain"])


def test_another_prompt_is_refused() -> None:
    changed = other()
    changed["scores"][0]["prompt_hash"] = "q"
    with pytest.raises(ValueError, match="'dense' and 'hero' were scored on different prompts of"):
        frame(dense(), changed)


def test_a_missing_reference_is_refused() -> None:
    with pytest.raises(ValueError, match="backbone 'toy' has no record of the row 'dense'"):
        frame(other())


def test_cells_show_a_dash_where_nothing_applies() -> None:
    table = frame(dense(), other(0.25), other(0.27, seed=43))
    shown = display_frame(table)
    assert "Backbone" not in shown.columns
    assert shown["Target"].tolist() == ["–", "25"]
    assert shown["Skip"].tolist() == ["0.00", "26.00 ± 1.41"]
    assert shown["Retain"].tolist() == ["100.00", "75.00 ± 0.00"]
    assert shown["95 % interval"].tolist()[0] == "100.0 to 100.0"
    assert shown["a acc"].tolist() == ["80.00", "40.00"]
    several = display_frame(frame(dense(), dense(backbone={"name": "far"})))
    assert several["Backbone"].tolist() == ["toy", "far"]


def test_short_names() -> None:
    assert short_name("demo_two_hop:acc_norm") == "two hop acc_norm"
    assert short_name("perplexity:text:perplexity") == "perplexity:text"


def test_scores_have_one_line_per_run_and_metric() -> None:
    lines = score_frame([dense(), other(seed=43)])
    assert lines[["row", "seed", "task", "value", "k", "n", "skip", "tokens"]].values.tolist() == [
        ["dense", 42, "a", 0.8, 4, 5, 0.2, 10],
        ["dense", 42, "b", 0.5, 2, 4, 0.2, 10],
        ["hero", 43, "a", 0.4, 2, 5, 0.2, 10],
        ["hero", 43, "b", 0.5, 2, 4, 0.2, 10],
    ]


def test_layers_show_what_ran() -> None:
    units = [{"layer": 2, "kind": "ffn", "parameters": 5, "executed": 0.3}]
    removed = {"kept": 3, "dense": 4, "removed": [1]}
    shares = layer_frame([dense(), other(units=units), record("cut", 0.25, layers=removed)])
    assert shares.loc["Dense"].tolist() == [1, 1, 1, 1]
    assert shares.loc["Hero, 25 %"].tolist() == [1, 1, 0.3, 1]
    assert shares.loc["Cut, 25 %"].tolist() == [1, 0, 1, 1]


def test_layers_of_two_backbones_are_both_shown() -> None:
    deep = {"kept": 6, "dense": 6, "removed": []}
    shares = layer_frame([dense(), dense(backbone={"name": "far"}, layers=deep)])
    assert list(shares.index) == ["toy: Dense", "far: Dense"]
    assert shares.isna().sum(axis=1).tolist() == [2, 0]
    assert shares.to_numpy().dtype == float
