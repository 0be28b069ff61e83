"""What the tune step refuses."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tests import steps
from tests.workflow.test_tune import CONFIG
from workflows import ROOT


@pytest.mark.parametrize(
    ("row", "sentence"),
    [
        ("healed", "healed starts from results/tuning/demo/shortgpt/b25/s42/model, which a run"),
        ("shortgpt", "--rows: 'shortgpt' is not a trained row of the suite"),
    ],
)
def test_what_cannot_be_tuned_is_refused(
    row: str, sentence: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "suite.yaml"
    file.write_text(yaml.safe_dump(CONFIG))
    refuse = steps.Refuse(capfd, tmp_path)
    fixed = ["--suite", file, "--data", ROOT, "--workdir", tmp_path / "w", "--device", "cpu"]
    assert sentence in refuse("tune", *fixed, "--rows", row, "--out", tmp_path / "tuned.yaml")
