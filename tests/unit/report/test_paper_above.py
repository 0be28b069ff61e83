"""The paper's printed tables above chance, against numbers that were worked out by hand."""

from __future__ import annotations

from copy import deepcopy

import pandas as pd
import pytest

from workflows.report.paper import above
from workflows.report.paper.above import above_frame
from workflows.report.paper.printed import (
    BENCHMARKS,
    CHOICES,
    MAIN,
    RETAIN,
    SEVEN,
    Group,
    chance_of,
    numbers_of,
)
from workflows.report.published import REFERENCE
from workflows.steps.publish import PAPER

EIGHT_B = Group(MAIN, "Llama-3.1-8B", "25%")


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    return above_frame()


def main(frame: pd.DataFrame) -> pd.DataFrame:
    same = (frame[list(EIGHT_B.labels)] == list(EIGHT_B)).all(axis=1)
    return frame[same].set_index("method")


@pytest.mark.parametrize(
    ("method", "value"),
    [
        ("ShortGPT", 10.5), ("SliceGPT", 12.4), ("D-LLM", 16.1), ("SkipGPT-Joint", 22.2),
        ("MoD-D", 23.9), ("LLM-Pruner", 42.4), ("LaCo", 47.5), ("SkipGPT-RT", 88.8),
        ("HeRo", 100.4), ("Dense", 100.0),
    ],
)  # fmt: skip
def test_above_chance_of_the_main_table(frame: pd.DataFrame, method: str, value: float) -> None:
    line = main(frame).loc[method]
    assert line["above_chance"] == pytest.approx(value, abs=0.05)
    assert line["retain"] == numbers_of(EIGHT_B)[method][RETAIN]
    assert line["left_out"] == ""
    assert line["bound"] < 0.04


def test_guessing_keeps_half_of_the_retain(frame: pd.DataFrame) -> None:
    dense = [45.20, 79.82, 83.79, 84.74, 67.56, 75.37, 78.26]
    chances = [25, 50, 50, 25, 25, 50, 25]
    expected = 100 * sum(c / d for c, d in zip(chances, dense, strict=True)) / 7
    assert main(frame)["guess"].tolist() == pytest.approx([expected] * 13, abs=1e-4)


def test_what_is_written_has_no_chance() -> None:
    assert list(CHOICES) == SEVEN
    written = [name for name in BENCHMARKS if name not in SEVEN]
    assert [chance_of(name) for name in written] == [0, 0]
    assert (chance_of("PIQA (acc)"), chance_of("ARC-C (acc)")) == (0.5, 0.25)


def of_changed(
    monkeypatch: pytest.MonkeyPatch, method: str, measure: str, value: float
) -> pd.DataFrame:
    """The main table with another printed number."""
    numbers = deepcopy(numbers_of(EIGHT_B))
    numbers[method][measure] = value
    monkeypatch.setattr(above, "numbers_of", lambda group: numbers)
    monkeypatch.setattr(above, "groups", lambda: [EIGHT_B])
    return above_frame().set_index("method")


@pytest.mark.parametrize(("boolq", "left_out"), [(51.7, "BoolQ (acc)"), (51.8, "")])
def test_a_benchmark_without_signal_is_left_out_for_all(
    boolq: float, left_out: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Two standard errors of 3,270 items are 1.75 points.
    frame = of_changed(monkeypatch, "Dense", "BoolQ (acc)", boolq)
    assert set(frame["left_out"]) == {left_out}
    assert frame.loc["Dense", "above_chance"] == 100
    if left_out:
        # ShortGPT's other six: 3 / 20.2, 8.76 / 29.82, 13.05 / 59.74, 6.4 / 42.56, 4.14 / 25.37 and
        # 6.5 / 53.26.
        assert frame.loc["ShortGPT", "above_chance"] == pytest.approx(18.28, abs=0.01)


def test_methods_that_skip_have_ranks_and_say_whom_they_overtake(
    frame: pd.DataFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = main(frame)
    assert lines.loc[["Dense", "LoRA"], "rank"].isna().all()
    assert lines["rank"].dropna().tolist() == lines["above_rank"].dropna().tolist()
    assert set(frame["overtakes"]) == {""}
    # LaCo's 72.38 and LLM-Pruner's 70.38 are less than 73; 72.38 and 72.385 are one number.
    turned = of_changed(monkeypatch, "SliceGPT", RETAIN, 73.0)["overtakes"]
    assert dict(turned[turned != ""]) == {
        "Shortened-PPL": "SliceGPT", "D-LLM": "SliceGPT", "SkipGPT-Joint": "SliceGPT",
        "MoD-D": "SliceGPT", "LLM-Pruner": "SliceGPT", "LaCo": "SliceGPT",
    }  # fmt: skip
    turned = of_changed(monkeypatch, "SliceGPT", RETAIN, 72.385)["overtakes"]
    assert turned["LaCo"] == ""


def test_the_committed_frame_is_what_the_code_makes(frame: pd.DataFrame) -> None:
    assert (REFERENCE / PAPER).read_text() == frame.to_csv(index=False)
