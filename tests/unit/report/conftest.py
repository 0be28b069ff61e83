"""One report of made runs for every test that reads it."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest

from tests import steps
from tests.records import write_suite
from workflows.records.files import read_record
from workflows.report.seeds import fits


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with ``results`` of both protocols and the ``report`` made from them."""
    folder = tmp_path_factory.mktemp("numbers")
    results = write_suite(folder / "results", ("pooled", "split"))
    seeds = several_seeds(folder / "several", results)
    steps.call("report", "--results", results, "--out", folder / "report", "--between-seeds", seeds)
    return folder


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
