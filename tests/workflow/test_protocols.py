"""By which protocol a budget is met: from the suite into jobs, fits, cards and records."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from methods import random_skip
from methods.base import Fitted, Request
from methods.core.model.card import CARD
from tests import steps
from workflows.suite import commands
from workflows.suite.jobs import Suite, read_suite

CUT = ["--budget", 0.2]


def record_of(model: Path, task_folder: Path, out: Path) -> dict[str, Any]:
    scored = ["--tasks", "toy_choice", "--task-dir", task_folder, "--device", "cpu"]
    steps.call("score", "--model", model, *scored, "--out", out)
    found: dict[str, Any] = json.loads(out.read_text())
    return found


@pytest.mark.parametrize(
    ("row", "arguments", "match"),
    [
        ("random-skip", CUT, "pooled"),
        ("random-skip", [*CUT, "--match", "split"], "split"),
        ("shortgpt", [*CUT, "--match", "split"], None),
        ("dense", ["--match", "split"], None),
    ],
)
def test_a_protocol_stands_in_card_and_record_where_one_applies(
    row: str,
    arguments: list[Any],
    match: str | None,
    llama: Path,
    data_files: dict[str, Path],
    task_folder: Path,
    tmp_path: Path,
) -> None:
    given = [*arguments, "--calibration", data_files["ids"]]
    model = steps.fit(row, llama, tmp_path / "model", *given)
    assert json.loads((model / CARD).read_text())["match"] == match
    assert record_of(model, task_folder, tmp_path / "record.json")["match"] == match


def test_a_plain_model_was_matched_by_no_protocol(
    llama: Path, task_folder: Path, tmp_path: Path
) -> None:
    assert record_of(llama, task_folder, tmp_path / "record.json")["match"] is None


@pytest.mark.parametrize(
    "told", [{}, {"trained_skip": {"prompt": 0.1, "answer": 0.02}, "threshold": 0.72}]
)
def test_the_fit_hears_of_the_protocol_and_the_record_of_how_training_ended(
    told: dict[str, Any],
    llama: Path,
    task_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []
    fit = random_skip.RandomSkip.fit

    def steered(self: Any, backbone: Any, data: Any, request: Request) -> Fitted:
        asked.append(request.match)
        fitted = fit(self, backbone, data, request)
        return Fitted(fitted.model, fitted.structure, fitted.decisions | told)

    monkeypatch.setattr(random_skip.RandomSkip, "fit", steered)
    model = steps.fit("random-skip", llama, tmp_path / "model", *CUT, "--match", "split")
    assert asked == ["split"]
    record = record_of(model, task_folder, tmp_path / "record.json")
    assert {key: record["fit"][key] for key in told} == told
    assert ("threshold" in record["fit"]) == bool(told)


def suite(**changes: Any) -> Suite:
    base = {
        "suite": "tiny",
        "backbones": {"demo": {"path": "workflows/demo/backbone"}},
        "rows": ["dense", "lora", "shortgpt", "hero"],
        "budgets": [0.25],
        "seeds": [42],
        "tasks": ["demo_facts"],
    }
    return read_suite(base | changes)


def folders(jobs: Suite) -> list[tuple[str, str | None]]:
    return [(f"{job.row}/{job.label}", job.match) for job in jobs.jobs]


def test_two_protocols_double_the_rows_that_decide_per_token_and_no_others() -> None:
    derive = {
        "cut+lora": {"from": "shortgpt", "then": "lora"},
        "drawn": {"from": "hero", "lender": "hero"},
        "pinned": {"from": "hero", "params": {"alpha": 0.001}, "budgets": [None]},
    }
    both = suite(derive=derive, match=["pooled", "split"])
    assert folders(both) == [
        ("dense/b0", None), ("lora/b0", None), ("shortgpt/b25", None),
        ("hero/b25", "pooled"), ("hero/b25-split", "split"), ("cut+lora/b25", None),
        ("drawn/b25", "pooled"), ("drawn/b25-split", "split"), ("pinned/bfree", None),
    ]  # fmt: skip
    drawn = both.find("demo", "drawn", "b25-split", "s42")
    assert drawn.waits_for() == ["results/tiny/demo/hero/b25-split/s42/model"]
    words = commands.fit(both, drawn)
    assert "--match split" in words
    assert "--lender results/tiny/demo/hero/b25-split/s42/model" in words
    healed = both.find("demo", "cut+lora", "b25", "s42")
    assert healed.waits_for() == ["results/tiny/demo/shortgpt/b25/s42/model"]
    assert "--match" not in commands.fit(both, healed)


def test_a_suite_by_each_alone_has_no_pooled_run() -> None:
    assert folders(suite(match="split")) == [
        ("dense/b0", None), ("lora/b0", None), ("shortgpt/b25", None), ("hero/b25-split", "split"),
    ]  # fmt: skip
