"""What readers are told of records that differ."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.records import code, dense, not_applicable, record, score, typed, write_run
from tests.unit.stats.test_comparable import runs
from workflows.report.cautions import (
    cautions,
    code_differences,
    gap_cautions,
    part_cautions,
)
from workflows.report.results import read_results
from workflows.stats.comparable import check_comparable


def test_equal_runs_need_no_caution() -> None:
    assert cautions(typed(*runs(), not_applicable("slicegpt", "too small"))) == []


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"code": code("hero", **{"methods/core": "e"})},
            "differ in the code of methods/core.",
        ),
        (
            {"fit_code": code("hero", **{"methods/core": "e"})},
            "differ in the code of methods/core when fitted.",
        ),
        ({"dirty": True}, "not committed: hero."),
        (
            {"versions": {"torch": "3", "lm_eval": "0.4"}},
            "differ in version of torch: 2 (dense), 3",
        ),
        ({"hardware": {"processor": "q"}}, "differ in processor"),
        (
            {"evaluation": dense()["evaluation"] | {"batch_size": 4}},
            "differ in batch size: 16 (dense), 4 (hero).",
        ),
    ],
)
def test_what_moves_last_digits_is_said_in_a_sentence(changes: dict[str, Any], words: str) -> None:
    records = runs(**changes)
    check_comparable(typed(*records))
    (sentence,) = cautions(typed(*records))
    assert words in sentence


def test_the_code_of_a_method_is_held_against_that_of_the_same_method() -> None:
    other = {"methods/hero": "e"}
    records = runs(code=code("hero", **other), fit_code=code("hero", **other))
    assert cautions(typed(*records)) == []
    variant = record("hero-no-history", 0.2, score("a", [1, 1]))
    variant |= {"code": code("hero", **other), "fit_code": code("hero"), "stochastic": False}
    assert cautions(typed(*records, variant)) == [
        "The records of 'toy' differ in the code of methods/hero when fitted."
    ]
    assert code_differences(typed(*records, variant)) == [
        "toy, code of methods/hero when fitted: e (hero), m (hero-no-history)"
    ]


def test_data_and_backbones_in_which_parts_differ_are_named() -> None:
    data = {"calibration": {"source": "a/c.txt", "rows": 24}, "probe": {"source": "tasks"}}
    one = {"data": data, "backbones": {"toy": {"path": "p", "dtype": "float32"}}}
    assert part_cautions([one]) == part_cautions([one, one]) == []
    moved = {**data, "calibration": {"source": "b/c.txt", "rows": 24}}
    assert part_cautions([one, {**one, "data": moved}]) == []
    less = {"calibration": {"source": "a/c.txt"}}
    other = {"data": less, "backbones": {"toy": {"path": "p", "dtype": "bfloat16"}}}
    assert part_cautions([one, other]) == [
        "The parts of the suite differ in data.calibration: rows 24; no rows.",
        "The parts of the suite differ in backbones.toy: dtype float32; dtype bfloat16.",
    ]


def test_code_is_told_in_one_sentence_and_once_where_the_fit_differs_too() -> None:
    records = runs()
    records[0]["fit_code"] = code("dense", **{"methods/base.py": "b"})
    records[1] |= {
        "code": code("hero", **{"methods/core": "e"}),
        "fit_code": code("hero", **{"methods/core": "e", "methods/base.py": "e"}),
    }
    (sentence,) = cautions(typed(*records))
    assert sentence == (
        "The records of 'toy' differ in the code of methods/core, methods/base.py when fitted."
    )


def test_a_plain_model_has_no_fit_to_differ() -> None:
    records = runs()
    records[0]["fit_code"] = None
    assert cautions(typed(*records)) == []


def test_other_end_tokens_are_said_in_a_sentence() -> None:
    records = runs()
    for one, tokens in zip(records, ([2], [2, 3]), strict=True):
        one["evaluation"] = one["evaluation"] | {"end_tokens": tokens}
    (sentence,) = cautions(typed(*records))
    assert "differ in end tokens: 2 (dense), 2, 3 (hero)." in sentence


def test_a_caution_counts_rows_where_there_are_many() -> None:
    usual = [record(f"row{n}", 0.2, score("a", [1, 1]), stochastic=False) for n in range(7)]
    other = {"evaluation": dense()["evaluation"] | {"batch_size": 4}}
    (sentence,) = cautions(typed(*usual, runs(**other)[1] | {"row": "odd"}))
    assert sentence == "The records of 'toy' differ in batch size: 16 (7 rows), 4 (odd)."


def test_rows_that_know_no_other_seed_are_named() -> None:
    def run(row: str, seed: int, **changes: Any) -> dict[str, Any]:
        return record(row, 0.2, score("a", [1, 1]), seed=seed, **{"budget": 0.25} | changes)

    two = [run("hero", 42), run("hero", 43)]
    assert cautions(typed(*two, run("shortgpt", 42, stochastic=False))) == []
    (sentence,) = cautions(typed(*two, run("mod-d", 42), run("hero", 42, budget=0.4)))
    assert sentence.startswith("One seed only: mod-d, hero at 40% (pooled). Their")
    assert sentence.endswith("has several. No interval covers another kind of processor.")
    (sentence,) = cautions(
        typed(run("hero", 42), run("mod-d", 42), run("cut", 42, stochastic=False))
    )
    assert sentence.startswith("One seed only: all rows that train or draw. Their own intervals ")


def test_what_is_left_out_on_one_backbone_of_several_names_it(tmp_path: Path) -> None:
    for name, right in (("near", [0, 0]), ("far", [1, 0])):
        backbone = dense()["backbone"] | {"name": name}
        write_run(tmp_path, dense(score("a", [1, 0]), score("b", right), backbone=backbone))
    said = ["Retain on near leaves out b: 'dense' solves none of its items."]
    assert gap_cautions(read_results(tmp_path)) == said
