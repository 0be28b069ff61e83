"""Nothing that is fitted, calibrated or tuned reads what is scored; fidelity has its own texts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from itertools import accumulate, islice
from pathlib import Path
from typing import Any

import pytest

from workflows import ROOT
from workflows.demo.corpus import items
from workflows.steps import tune
from workflows.steps.data import read_source
from workflows.suite.config import read_configs
from workflows.suite.job import DATA_PARTS, FIDELITY
from workflows.suite.jobs import Suite, read_suite

PARTS = (*DATA_PARTS, FIDELITY)


@pytest.fixture(scope="module")
def suite() -> Suite:
    return read_suite(read_configs(["demo"]))


@pytest.fixture(scope="module")
def rows(suite: Suite) -> dict[str, list[dict[str, Any]]]:
    """Part -> its rows, as the data step writes them."""
    parts = {}
    for part in PARTS:
        spec = suite.config["data"][part]
        first = spec.get("skip", 0)
        source = read_source(spec, part, Path("/nowhere"))
        parts[part] = list(islice(source, first, first + spec["rows"]))
        assert len(parts[part]) == spec["rows"]
    return parts


@pytest.fixture(scope="module")
def scored(suite: Suite) -> set[str]:
    """Prompts of all items that the suite scores."""
    assert all(entry.split == "test" and not entry.config for entry in suite.entries)
    folder = ROOT / "workflows/evaluation/tasks/demo"
    bases = {folder / f"{entry.task}.yaml" for entry in suite.entries}
    assert not any("test_split" in file.read_text() for file in bases)
    assert all("test_split: test" in f.read_text() for f in folder.glob("_*_yaml"))
    return {item["prompt"] for entry in suite.entries for item in items(entry.task, "test")}


def beginnings(row: dict[str, Any]) -> Iterator[str]:
    """Every beginning of the text that a model reads, word by word."""
    text = row.get("fed", f"{row['prompt']} {row.get('completion', '')}")
    return accumulate(text.split(), lambda one, word: f"{one} {word}")


@pytest.mark.parametrize("part", PARTS)
def test_no_text_of_a_suite_begins_with_a_scored_prompt(
    part: str, rows: dict[str, list[dict[str, Any]]], scored: set[str]
) -> None:
    found = {start for row in rows[part] for start in beginnings(row) if start in scored}
    assert not found
    # What such a text would be.
    item = next(iter(scored))
    assert item in beginnings({"prompt": item, "completion": "answer"})


@pytest.mark.parametrize("part", DATA_PARTS)
def test_the_texts_of_fidelity_are_in_no_other_part(
    part: str, rows: dict[str, list[dict[str, Any]]]
) -> None:
    own = {row["prompt"] for row in rows[FIDELITY]}
    assert len(own) == len(rows[FIDELITY])
    assert not own & {start for row in rows[part] for start in beginnings(row)}


def test_neither_fits_nor_the_tune_step_read_the_texts_of_fidelity(suite: Suite) -> None:
    assert {*tune.PARTS} <= {*DATA_PARTS}
    assert all(FIDELITY not in suite.data_files(job) for job in suite.jobs)


@pytest.mark.parametrize(("skip", "overlap"), [(1799, True), (1800, False)])
def test_the_probe_of_a_world_counts_texts_of_which_an_item_has_several(
    skip: int, overlap: bool
) -> None:
    config = read_configs(["demo"])
    del config["data"]["validation"]
    config["data"]["probe"] |= {"source": "demo", "skip": 900, "rows": 900}
    config["data"]["fidelity"] |= {"source": "demo", "skip": skip, "rows": 450}
    seed = config["data"]["probe"].get("seed")
    config["data"]["fidelity"] |= {} if seed is None else {"seed": seed}
    said = "data.fidelity: data.probe takes texts of demo too"
    with pytest.raises(ValueError, match=said) if overlap else nullcontext():
        read_suite(config)


@pytest.mark.parametrize("other", [{"split": "test"}, {"column": "body"}, {"revision": "b"}])
def test_a_file_has_no_splits_and_columns_and_one_text_by_any_name(
    other: dict[str, Any], tmp_path: Path
) -> None:
    (tmp_path / "texts.jsonl").write_text('{"text": "a"}\n')
    (tmp_path / "link.jsonl").symlink_to("texts.jsonl")
    config = read_configs(["demo"])
    source = str(tmp_path / "texts.jsonl")
    config["data"]["training"] = {"source": source, "revision": "a"}
    config["data"]["fidelity"] = {"source": str(tmp_path / "link.jsonl"), **other}
    with pytest.raises(ValueError, match="data.fidelity: data.training takes texts of"):
        read_suite(config)


@pytest.mark.parametrize(
    ("other", "fidelity", "overlap"),
    [
        ({"rows": 50}, {"skip": 50}, False),
        ({"rows": 51}, {"skip": 50}, True),
        ({"skip": 98}, {"skip": 50, "rows": 48}, False),
        ({"skip": 97}, {"skip": 50, "rows": 48}, True),
        ({}, {"skip": 50, "rows": 48}, True),
        ({"rows": 50, "seed": 1}, {"skip": 50}, True),
        ({"rows": 51, "column": "messages"}, {"skip": 50}, False),
        ({"rows": 51, "column": "text"}, {"skip": 50}, True),
        ({"rows": 51, "revision": "a"}, {"skip": 50}, True),
        ({"rows": 51, "revision": "a"}, {"skip": 50, "revision": "b"}, False),
        ({"split": "train"}, {"split": "train[:100]"}, True),
        ({"split": "train"}, {"split": "test"}, False),
    ],
)
def test_parts_of_one_source_that_may_hold_texts_of_fidelity_are_refused(
    other: dict[str, Any], fidelity: dict[str, Any], overlap: bool
) -> None:
    data = {
        part: {"source": "hub:own/texts", **spec}
        for part, spec in (("training", other), ("fidelity", fidelity))
    }
    config = read_configs(["demo"])
    config["data"] |= data
    said = "data.fidelity: data.training takes texts of hub:own/texts too"
    with pytest.raises(ValueError, match=said) if overlap else nullcontext():
        read_suite(config)
