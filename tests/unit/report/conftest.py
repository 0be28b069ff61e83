"""A report of made results, shared by what looks at it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import steps
from tests.made_records import write_suite


@pytest.fixture(scope="package")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with ``results`` and the ``report`` made from them."""
    folder = tmp_path_factory.mktemp("numbers")
    results = write_suite(folder / "results")
    steps.call("report", "--results", results, "--out", folder / "report")
    return folder
