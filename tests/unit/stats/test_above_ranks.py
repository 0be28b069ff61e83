"""Ranks by Above chance beside those by Retain, and rows that the two order otherwise."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from tests import records
from tests.records import record, score
from workflows.report.suite_tables import rank_table
from workflows.stats.lines import Panel
from workflows.stats.ranking import ABOVE_COLUMNS, _places_of, rank_frame
from workflows.stats.sampling import Sample, SamplingError

# Task -> chance. Dense leads chance on a by a tenth of all items, on b by half of them.
CHANCES = {"a": 0.4, "b": 0.5}
# Row -> share of right items per task; all solve the first ones.
SHARES = {"dense": (0.5, 1.0), "x": (0.5, 0.6), "y": (0.4, 0.95)}


def scores(row: str, items: int, chance: float | None = 0.0) -> list[dict[str, Any]]:
    """Both tasks of a row; ``chance`` None: no task has one."""
    return [
        score(
            task, np.arange(items) < share * items - 1e-6,
            chance=None if chance is None else CHANCES[task],
        )
        for task, share in zip(CHANCES, SHARES[row], strict=True)
    ]  # fmt: skip


def panels(items: int, chance: float | None = 0.0, **changes: Any) -> list[Panel]:
    rows = [record(row, 0.25, *scores(row, items, chance), **changes) for row in ("x", "y")]
    return records.panels(
        records.dense(*scores("dense", items, chance)), *rows, tasks=("a", "b"), resamples=999
    )


def lines(frame: pd.DataFrame) -> dict[str, dict[str, Any]]:
    return {line["row"]: line for line in frame.to_dict("records")}


def test_each_measure_has_its_own_ranks() -> None:
    of = lines(rank_frame(panels(2000)))
    # Retain: x (1 + 0.6) / 2, y (0.8 + 0.95) / 2. Above chance: x (1 + 0.2) / 2, y (0 + 0.9) / 2.
    assert [of[row]["retain"] for row in "xy"] == pytest.approx([80, 87.5])
    assert [of[row]["above_chance"] for row in "xy"] == pytest.approx([60, 45])
    assert [of[row]["rank"] for row in "xy"] == [2, 1]
    assert [of[row]["above_rank"] for row in "xy"] == [1, 2]
    assert of["x"]["behind"] == pytest.approx(7.5)
    assert of["y"]["above_behind"] == pytest.approx(15)
    assert of["y"]["above_behind_low"] > 0
    assert of["y"]["above_low"] < 45 < of["y"]["above_high"]
    assert (of["y"]["above_tied"], of["x"]["above_first"] > 95) == (False, True)


def test_a_row_that_only_above_chance_puts_ahead_overtakes() -> None:
    of = lines(rank_frame(panels(2000)))
    assert (of["x"]["overtakes"], of["y"]["overtakes"]) == ("Y", "")
    assert (of["x"]["overtakes_one_seed"], of["y"]["overtakes_one_seed"]) == (True, False)
    of = lines(rank_frame(panels(2000, stochastic=False)))
    assert (of["x"]["overtakes"], of["x"]["overtakes_one_seed"]) == ("Y", False)


def test_an_order_that_an_interval_leaves_open_is_not_told() -> None:
    frame = rank_frame(panels(300))
    of = lines(frame)
    # By Above chance the interval of 15 points reaches zero.
    assert [of[row]["above_rank"] for row in "xy"] == [1, 2]
    assert of["y"]["above_tied"]
    assert frame["overtakes"].tolist() == ["", ""]


def test_without_chance_there_are_ranks_by_retain_alone() -> None:
    frame = rank_frame(panels(2000, chance=None))
    assert frame["rank"].tolist() == [2, 1]
    assert frame[list(ABOVE_COLUMNS.values())].isna().all(axis=None)
    assert frame["overtakes"].tolist() == ["", ""]
    assert "Rank above chance" not in rank_table(frame).columns


def test_the_table_has_both_ranks() -> None:
    table = rank_table(rank_frame(panels(2000)))
    cells = {
        line[0].text: dict(zip(table.columns, [cell.text for cell in line], strict=True))
        for line in table.lines
    }
    assert (cells["X"]["Rank"], cells["X"]["Rank above chance"]) == ("2", "1")
    assert (cells["X"]["Overtakes"], cells["Y"]["Overtakes"]) == ("Y", "–")
    assert cells["Y"]["Behind the best above chance"] == "15.00"
    assert cells["X"]["Differs from the best above chance"] == "–"
    assert cells["Y"]["Differs from the best above chance"] == "yes, of one seed"


def test_a_rank_has_a_95_percent_interval() -> None:
    # In 30 of 1,000 draws two lines change places.
    swapped = np.arange(1000) < 30
    samples = [
        Sample(np.array([draws[-1]]), np.array([draws]), SamplingError(np.array(draws)), draws)
        for draws in (np.where(swapped, 0.1, 0.9), np.full(1000, 0.5))
    ]
    first, second = _places_of(samples)
    for place in (first, second):
        assert (place["rank_low"], place["rank_high"]) == (1, 2)
    assert first["first"] == pytest.approx(97)
