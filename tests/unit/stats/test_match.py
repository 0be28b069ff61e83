"""Where a row skips, by which protocol its budget was met, and what the notes say of both."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests import records
from tests.records import rates, record, score, typed
from tests.unit.stats.test_tables import dense, frame, other, panels
from workflows.stats.budget import PROMPT_TOLERANCE, met, misses, task_mean
from workflows.stats.frames import budget_frame, layer_frame, retain_frame


def hiding(**changes: Any) -> dict[str, Any]:
    """A router that runs everything where output is scored and skips 30 % of the prompts."""
    run = other(0.25, **changes)
    for entry in run["scores"]:
        entry["rates"] = rates(0.25, prompt=0.3, answer=0.0)
    return run | {"rates": rates(0.25, prompt=0.3, likelihood=0.0)}


def test_a_router_that_hides_on_prompts_shows_it_in_every_table() -> None:
    both = panels(dense(), hiding())
    for line in (retain_frame(both).iloc[1], budget_frame(both).iloc[1]):
        skips = [line[name] for name in ("skip", "skip_prompt", "skip_answer")]
        assert skips == pytest.approx([25, 30, 0])


@pytest.mark.parametrize(
    ("match", "note"),
    [("pooled", ""), ("split", "answers under budget by 25.0; prompts over budget by 5.0")],
)
def test_only_the_protocol_of_each_minds_where_a_row_skips(match: str, note: str) -> None:
    table = frame(dense(), hiding(match=match))
    assert table["note"].tolist() == ["", note]
    assert table["match"].tolist() == [match, match]


def test_answer_skip_is_weighed_by_task_not_by_token() -> None:
    run = other()
    for entry, skip, tokens in zip(run["scores"], (0.1, 0.4), (10, 990), strict=True):
        entry["rates"]["answer"] |= {"skip": skip, "tokens": tokens}
    assert task_mean(*typed(run), ["a", "b"], "answer") == pytest.approx(0.25)
    assert task_mean(*typed(run), ["b"], "answer") == pytest.approx(0.4)
    del run["scores"][0]["rates"]["answer"]
    assert task_mean(*typed(run), ["a", "b"], "answer") == pytest.approx(0.4)
    assert task_mean(*typed(run), ["a"], "answer") is None


@pytest.mark.parametrize(
    ("answers", "prompt", "expected"),
    [
        (0.259, 0.279, {}),
        (0.241, 0.221, {}),
        (0.264, 0.25, {"answers": 0.014}),
        (0.25, 0.2, {"prompts": -0.05}),
        (0.2, 0.3, {"answers": -0.05, "prompts": 0.05}),
    ],
)
def test_each_kind_of_token_has_a_tolerance_of_its_own(
    answers: float, prompt: float, expected: dict[str, float]
) -> None:
    run = record("hero", 0.5, score("a", [1, 0], answers=answers), match="split")
    run["rates"] = rates(0.5, prompt=prompt)
    assert misses(*typed(run), ["a"]) == pytest.approx(expected)
    assert misses(*typed(run | {"budget": None}), ["a"]) == {}
    assert misses(*typed(run | {"match": "pooled"}), ["a"]) == {"all": pytest.approx(0.25)}


def test_notes_count_runs_per_kind_of_token() -> None:
    runs = [
        record(
            "hero", 0.25, score("a", [1, 0], skip=0.25, answers=answers), seed=seed, match="split"
        )
        | {"rates": rates(0.25, prompt=prompt)}
        for seed, (answers, prompt) in enumerate([(0.264, 0.2), (0.262, 0.25), (0.25, 0.25)])
    ]
    base = records.dense(score("a", [1, 1]))
    expected = (
        "answers over budget by up to 1.4 in 2 of 3 runs; "
        "prompts under budget by 5.0 in 1 of 3 runs"
    )
    assert frame(base, *runs, tasks=("a",))["note"].tolist() == ["", expected]


@pytest.mark.parametrize(
    ("skip", "by_task", "note"),
    [
        (0.255, 0.25, ""),
        (0.22, 0.25, "all tokens under budget by 3.0"),
        (0.25, 0.27, "mean over tasks over budget by 2.0"),
    ],
)
def test_under_split_a_note_tells_a_skip_off_the_budget_in_another_weight(
    skip: float, by_task: float, note: str
) -> None:
    run = record("hero", 0.25, score("a", [1, 0], skip=by_task, answers=0.25), match="split")
    run["rates"] = rates(skip, prompt=0.25)
    table = frame(records.dense(score("a", [1, 1])), run, tasks=("a",))
    assert table["note"].tolist() == ["", note]


def test_rows_of_two_protocols_share_no_panel_and_static_rows_stand_in_both() -> None:
    static = {"kind": "static", "stochastic": False}
    runs = [
        dense(),
        other(),
        other(match="split"),
        record("cut", 0.25, *other()["scores"], **static),
    ]
    both = panels(*runs)
    assert [panel.match for panel in both] == ["pooled", "split"]
    for panel in both:
        assert [line.row for line in panel.lines] == ["dense", "hero", "cut"]
        assert {record.match for line in panel.lines for record in line.records} == {
            None, panel.match,
        }  # fmt: skip
    # The draws of a line follow from its name, which no protocol changes.
    pooled, split = (panel.samples["retain"]["cut at 25 %"].draws for panel in both)
    assert np.array_equal(pooled, split)


def test_a_suite_by_one_protocol_has_its_panel_alone() -> None:
    assert [panel.match for panel in panels(dense(), other(match="split"))] == ["split"]
    assert [panel.match for panel in panels(dense())] == ["pooled"]


def with_training(threshold: float | None = 0.72, seed: int = 42, **ended: float) -> dict[str, Any]:
    run = other(seed=seed, match="pooled" if "pooled" in ended else "split")
    run["rates"] |= rates(0.25, prompt=0.25)
    for entry in run["scores"]:
        entry["rates"] |= rates(0.25, answer=0.25)
    run["fit"] = run["fit"] | {"trained_skip": ended}
    run["fit"] |= {} if threshold is None else {"threshold": threshold}
    return run


@pytest.mark.parametrize(
    ("run", "note"),
    [
        (with_training(pooled=0.201), ""),
        (
            with_training(pooled=0.002),
            "ended training at 0.2 % skip, threshold 0.72",
        ),
        (with_training(None, pooled=0.31), "ended training at 31.0 % skip"),
        (with_training(prompt=0.25, answer=0.299), ""),
        (
            with_training(prompt=0.1, answer=0.4),
            "ended training at 10.0 % skip of prompts and 40.0 % skip of answer tokens, "
            "threshold 0.72",
        ),
        (
            with_training(prompt=0.22, answer=0.4),
            "ended training at 40.0 % skip of answer tokens, threshold 0.72",
        ),
        (
            with_training(pooled=0.002) | {"rates": rates(0.2)},
            "under budget by 5.0; ended training at 0.2 % skip, threshold 0.72",
        ),
    ],
)
def test_a_budget_met_by_the_threshold_alone_is_noted(run: dict[str, Any], note: str) -> None:
    assert frame(dense(), run)["note"].tolist() == ["", note]


def test_of_several_runs_the_one_that_ended_farthest_off_is_told() -> None:
    runs = [
        with_training(pooled=0.19),
        with_training(0.9, seed=43, pooled=0.01),
        with_training(seed=44, pooled=0.25),
    ]
    note = "ended training at 1.0 % skip, threshold 0.90 (worst of 2 such runs)"
    assert frame(dense(), *runs)["note"].tolist() == ["", note]


def test_layers_name_the_protocol_where_one_applies() -> None:
    both = layer_frame(typed(dense(), other(), other(match="split")))
    assert both["row"].tolist() == ["dense", "hero", "hero"]
    assert both["match"].tolist() == [None, "pooled", "split"]


def test_a_skip_at_the_edge_of_the_tolerance_meets_the_budget() -> None:
    assert met(0.25, 0.28, PROMPT_TOLERANCE)
    assert not met(0.25, 0.2801, PROMPT_TOLERANCE)
