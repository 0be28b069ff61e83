"""One report of made runs for every test that reads it."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from tests import steps
from tests.made_records import write_suite


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with ``results`` of both protocols and the ``report`` made from them."""
    folder = tmp_path_factory.mktemp("numbers")
    results = write_suite(folder / "results", ("pooled", "each"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("workflows.report.frames.HEADLINE", headline(folder / "headline.csv"))
        steps.call("report", "--results", results, "--out", folder / "report")
    return folder


def headline(file: Path) -> Path:
    """A committed table of several seeds that knows LoRA's, under one protocol."""
    line = {"backbone": "toy", "target": None, "match": "each", "row": "lora", "retain_std": 0.75}
    pd.DataFrame([line, line | {"match": "pooled", "row": "hero", "target": 25.0}]).to_csv(file)
    return file
