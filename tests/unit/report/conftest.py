"""One report of made runs, and their frames, for every test that reads them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest

from tests import steps
from tests.records import write_suite
from tests.unit.report.figure_frames import read
from workflows.records.files import read_record
from workflows.report.figures import use
from workflows.report.figures.data import FigureFrames
from workflows.report.seeds import fits


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with ``results`` of both protocols and the ``report`` made from them."""
    folder = tmp_path_factory.mktemp("numbers")
    results = write_suite(folder / "results", ("pooled", "split"))
    seeds = several_seeds(folder / "several", results)
    steps.call("report", "--results", results, "--out", folder / "report", "--between-seeds", seeds)
    return folder


@pytest.fixture(autouse=True)
def style() -> Iterator[None]:
    with use():
        yield


@pytest.fixture(scope="session")
def suite_data(tmp_path_factory: pytest.TempPathFactory) -> FigureFrames:
    return read(write_suite(tmp_path_factory.mktemp("made"), ("pooled", "split")))


def several_seeds(folder: Path, results: Path) -> Path:
    """A published suite of several seeds that knows LoRA's, under one protocol."""
    folder.mkdir()
    source = {
        "training": {"updates": 1500},
        "retain_tasks": ["left", "right"],
        "fits": fits([read_record(file) for file in results.rglob("record.json")]),
    }
    (folder / "source.json").write_text(json.dumps(source))
    line = {"backbone": "toy", "target": None, "match": "split", "row": "lora", "retain_std": 0.75}
    other = line | {"match": "pooled", "row": "hero", "target": 25.0}
    pd.DataFrame([line, other]).to_csv(folder / "retain.csv")
    return folder
