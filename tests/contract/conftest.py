"""Fits and folders that all tests of the contract share."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.contract.fits import Runs
from tests.contract.folders import Folders


@pytest.fixture(scope="session")
def runs(
    tmp_path_factory: pytest.TempPathFactory,
    backbones: dict[str, Path],
    data_files: dict[str, Path],
) -> Runs:
    return Runs(tmp_path_factory.mktemp("contract"), backbones, data_files)


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory, data_files: dict[str, Path]) -> Folders:
    return Folders(tmp_path_factory.mktemp("folders"), data_files)
