"""Which fits are repeated under other arithmetic, and one sentence per mistake."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml

from workflows import ROOT
from workflows.jobs import Suite, read_suite
from workflows.runtime.arithmetic import ARITHMETIC


def suite(**training_noise: Any) -> Suite:
    """Rows of several targets and seeds, one of them healed."""
    noise = {"training_noise": training_noise} if training_noise else {}
    return read_suite(
        {
            "suite": "tiny",
            "backbones": {"demo": {"path": "workflows/demo/backbone"}},
            "rows": ["dense", "shortgpt", "hero"],
            "derive": {"cut+lora": {"from": "shortgpt", "then": "lora"}},
            "budgets": [0.25, 0.4],
            "seeds": [42, 43],
            "tasks": ["demo_facts"],
        }
        | noise
    )


def test_the_first_target_and_seed_of_a_row_are_fitted_again() -> None:
    assert suite(rows=["hero", "cut+lora"], under=["avx2", "two-threads"]).refit_files() == [
        f"results/tiny/demo/{row}/b25/s42/noise/fit-{name}.json"
        for row in ("hero", "cut+lora")
        for name in ("avx2", "two-threads")
    ]
    assert suite().refit_files() == []


def test_the_schema_knows_the_settings_of_the_code() -> None:
    schema = yaml.safe_load((ROOT / "workflows/schemas/config.schema.yaml").read_text())
    known = schema["properties"]["training_noise"]["properties"]["under"]["items"]["enum"]
    assert known == list(ARITHMETIC)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (
            {"rows": ["shortgpt"], "under": ["avx2"]},
            "training_noise.rows: 'shortgpt' is no trained row here (hero, cut+lora)",
        ),
        ({"rows": ["hreo"], "under": ["avx2"]}, "training_noise.rows: 'hreo' is no trained row"),
        (
            {"rows": ["hero"], "under": ["sse"]},
            "training_noise.under.0: 'sse' is not one of ['avx2', 'baseline', 'two-threads']",
        ),
        ({"rows": ["hero"]}, "training_noise: 'under' is a required property"),
        ({"rows": [], "under": ["avx2"]}, "training_noise.rows: "),
    ],
)
def test_a_mistake_is_named(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=re.escape(f"suite config, {sentence}")):
        suite(**given)
