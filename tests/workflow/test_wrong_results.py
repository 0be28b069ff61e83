"""Results folders that cannot become a table: one sentence, a failing status, nothing written."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from tests import steps
from tests.records import TASKS, dense, half, record, score, write, write_run

Edit = Callable[[Path], None]


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """Dense and HeRo."""
    folder = tmp_path / "results"
    for run in (dense(*half()), record("hero", 0.25, *half())):
        write_run(folder, run)
    return folder


def hero(results: Path) -> Path:
    return results / "toy/hero/b25/s42/record.json"


def changed(path: str, value: Any) -> Edit:
    """Replaces one field of HeRo's record."""

    def edit(results: Path) -> None:
        record = json.loads(hero(results).read_text())
        *parents, last = path.split("/")
        inner: Any = record
        for key in parents:
            inner = inner[int(key) if isinstance(inner, list) else key]
        inner[last] = value
        hero(results).write_text(json.dumps(record))

    return edit


def without(name: str) -> Edit:
    return lambda results: (results / name).unlink()


def fewer_items(results: Path) -> None:
    file = hero(results).with_suffix(".items.parquet")
    pd.read_parquet(file).iloc[1:].to_parquet(file)


def damaged_items(results: Path) -> None:
    hero(results).with_suffix(".items.parquet").write_bytes(b"PAR1 no parquet")


def twins(results: Path) -> None:
    write(results / "other/record.json", record("hero", 0.25, *half()))


def one_task_less(results: Path) -> None:
    hero(results).unlink()
    write_run(results, record("hero", 0.25, half()[0]))


def nothing_solved(results: Path) -> None:
    scores = [score(task, [0] * n) for task, n in TASKS.items()]
    write_run(results, dense(*scores))


def not_json(results: Path) -> None:
    (results / "suite.json").write_text("{")


DENSE = "toy/dense/b0/s42/record"
CASES: dict[str, tuple[Edit, str]] = {
    "no items": (without(f"{DENSE}.items.parquet"), "has no items beside it (record.items.parquet"),
    "broken schema": (
        changed("scores/0/n", 0),
        "hero/b25/s42/record.json breaks the record schema",
    ),
    "prompts": (changed("scores/1/prompt_hash", "q"), "scored on different prompts of 'right'"),
    "other items": (fewer_items, "does not hold the items of record.json"),
    "damaged items": (damaged_items, "arquet"),
    "one run twice": (twins, "are records of one run; name one folder"),
    "a task less": (one_task_less, "'hero at 25 %' was not scored on task 'right'"),
    "nothing solved": (nothing_solved, "'dense' on 'toy' solves nothing, so there is no Retain"),
    "suite": (not_json, "suite.json is not valid JSON"),
}


@pytest.mark.parametrize("case", CASES)
def test_the_report_refuses(case: str, refuse: steps.Refuse, results: Path, tmp_path: Path) -> None:
    edit, words = CASES[case]
    edit(results)
    assert words in refuse("report", "--results", results, "--out", tmp_path / "page")


def test_an_empty_folder(refuse: steps.Refuse, tmp_path: Path) -> None:
    sentence = refuse("report", "--results", tmp_path, "--out", tmp_path / "page")
    assert sentence == f"{tmp_path} holds no record.json"


def test_a_caution_stands_in_everything_that_is_read(
    results: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    changed("dirty", True)(results)
    steps.report_tables(results, tmp_path / "page")
    sentence = "Made from code that was not committed: hero."
    assert f"caution: {sentence}" in capfd.readouterr().err
    assert sentence in (tmp_path / "page/index.html").read_text()
    for name in ("retain", "differences_dense"):
        assert sentence in (tmp_path / f"page/tables/{name}.md").read_text()
        assert sentence in (tmp_path / f"page/tables/{name}.tex").read_text()
