"""What moves a number by itself: another batch size in scoring, other arithmetic in training."""

from __future__ import annotations

from typing import Any

import pytest

from tests import made_records
from tests.made_records import missing, record, score, split
from workflows.stats.lines import Panel, make_panels
from workflows.stats.noise import Refit, noise_frame, training_noise_frame

HALF = [1, 0] * 20


def run(row: str, right: int, **changes: Any) -> dict[str, Any]:
    """``right`` of 40 items of one task solved, and half of another's."""
    solved = [1] * right + [0] * (40 - right)
    return record(row, 0.25, score("a", solved), score("b", HALF), **{"budget": 0.25} | changes)


def dense() -> dict[str, Any]:
    return made_records.dense(score("a", [1] * 40), score("b", HALF))


def panels(*records: dict[str, Any]) -> list[Panel]:
    parts = [split(made) for made in records]
    items = {number: frame for number, (_, frame) in enumerate(parts)}
    return make_panels([made for made, _ in parts], items, ("a", "b"), "dense", resamples=99)


def test_the_noise_floor_by_hand() -> None:
    again = dense()
    again["evaluation"]["batch_size"] = 1
    again["scores"][0] = score("a", [0, 0] + [1] * 38)
    plain, items = split(again)
    (found,) = noise_frame(panels(dense()), [plain], {0: items}).to_dict("records")
    assert (found["batch_size"], found["against"]) == (1, 16)
    assert (found["items"], found["changed"]) == (80, 2)
    assert found["retain"] == pytest.approx(100 * (0.95 + 1) / 2)
    assert found["largest"] == pytest.approx(5)


def test_noise_of_another_row_is_refused() -> None:
    for wrong in (run("hero", 30), dense() | {"seed": 7}):
        plain, items = split(wrong)
        said = f"noise record of row '{plain['row']}', seed {plain['seed']}, on 'toy' is not of"
        with pytest.raises(ValueError, match=said):
            noise_frame(panels(dense()), [plain], {0: items})


def refit(own: Any, again: dict[str, Any]) -> Refit:
    """Under AVX2, on two threads."""
    plain, items = split(again)
    plain["fit"] = plain["fit"] | {"cpu_capability": "AVX2", "threads": 2}
    return Refit("avx2", own, plain, items if len(items) else None)


def test_the_training_noise_by_hand() -> None:
    found = panels(dense(), run("hero", 30), run("mod-d", 20), run("mod-d", 24, seed=43))
    _, hero, mod_d = (line.records for line in found[0].lines)
    refits = [refit(hero[0], run("hero", 27)), refit(mod_d[1], run("mod-d", 26, seed=43))]
    refits[1].again["rates"]["all"]["skip"] = 0.24
    first, second = training_noise_frame(found, refits).to_dict("records")
    assert (first["row"], first["target"], first["seed"]) == ("hero", 25, 42)
    assert (first["setting"], first["cpu_capability"], first["threads"]) == ("avx2", "AVX2", 2)
    assert (first["items"], first["changed"]) == (80, 3)
    assert (first["retain"], first["again"], first["difference"]) == (87.5, 83.75, -3.75)
    assert first["skip_difference"] == 0
    assert (second["seed"], second["changed"], second["difference"]) == (43, 2, 2.5)
    assert second["skip_difference"] == pytest.approx(-1)


def test_a_refit_that_is_not_applicable_has_no_line() -> None:
    found = panels(dense(), run("hero", 30))
    (own,) = found[0].lines[1].records
    again = missing("hero", "too small")
    assert training_noise_frame(found, [refit(own, again)]).empty


def test_a_refit_on_other_items_is_refused() -> None:
    found = panels(dense(), run("hero", 30))
    (own,) = found[0].lines[1].records
    again = record("hero", 0.25, score("a", [1] * 39), score("b", HALF))
    with pytest.raises(ValueError, match="noise record of 'hero': its items are not the record's"):
        training_noise_frame(found, [refit(own, again)])
