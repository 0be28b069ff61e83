"""The noise floor: what another batch size of scoring moves by itself."""

from __future__ import annotations

from typing import Any

import pytest

from tests import records
from tests.records import record, score, split
from workflows.stats.lines import Panel
from workflows.stats.noise import noise_frame

HALF = [1, 0] * 20


def run(row: str, right: int, **changes: Any) -> dict[str, Any]:
    """``right`` of 40 items of one task solved, and half of another's."""
    items = [1] * right + [0] * (40 - right)
    return record(row, 0.25, score("a", items), score("b", HALF), **{"budget": 0.25} | changes)


def dense() -> dict[str, Any]:
    return records.dense(score("a", [1] * 40), score("b", HALF))


def panels(*runs: dict[str, Any]) -> list[Panel]:
    return records.panels(*runs, tasks=("a", "b"), resamples=99)


def test_the_noise_floor_by_hand() -> None:
    again = dense()
    again["evaluation"]["batch_size"] = 1
    again["scores"][0] = score("a", [0, 0] + [1] * 38)
    plain, items = split(again)
    (line,) = noise_frame(panels(dense()), [plain], {0: items}).to_dict("records")
    assert (line["batch_size"], line["against"]) == (1, 16)
    assert (line["items"], line["changed"]) == (80, 2)
    assert line["retain"] == pytest.approx(100 * (0.95 + 1) / 2)
    assert line["largest"] == pytest.approx(5)


def test_noise_of_another_row_is_refused() -> None:
    for wrong in (run("hero", 30), dense() | {"seed": 7}, dense() | {"budget": 0.4}):
        plain, items = split(wrong)
        sentence = f"noise record of row '{plain.row}', seed {plain.seed}, on 'toy' is not of"
        with pytest.raises(ValueError, match=sentence):
            noise_frame(panels(dense()), [plain], {0: items})


def test_noise_on_other_items_is_refused() -> None:
    plain, items = split(records.dense(score("a", [1] * 39), score("b", HALF)))
    with pytest.raises(ValueError, match="noise record of 'dense': its items are not the record's"):
        noise_frame(panels(dense()), [plain], {0: items})
