"""What every row that decides per token promises under ``match: split``.

One row alone: ``pytest -n0 tests/contract -k my-row``.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from methods import discover, load_method
from methods.base import Request
from methods.core.data import Data
from methods.core.model.backbone import load_backbone
from methods.core.routing.calibration import skip_rates, weigh
from methods.core.routing.routed import router_of
from methods.core.routing.steering import unit_shares
from tests.contract.fits import QUICK, SEED, budget_of
from tests.toys.texts import VOCABULARY, write_jsonl
from workflows.suite.job import data_parts

ROWS = discover()


@pytest.mark.parametrize("row", [row for row in ROWS if ROWS[row].is_matched(0.25)])
def test_answer_tokens_meet_the_budget(
    row: str, llama: Path, data_files: dict[str, Path], tmp_path: Path
) -> None:
    backbone, budget = load_backbone(llama), budget_of(row)
    total = backbone.parameters
    files = {f"{part}_file": data_files[part] for part in data_parts(ROWS[row])}
    data = Data(backbone.tokenizer, VOCABULARY, 64, **files)
    method = load_method(row, QUICK.get(row, {}))
    fitted = method.fit(backbone, data, Request(budget, SEED, tmp_path, "split"))
    router = router_of(fitted.model)
    assert router is not None
    shares = unit_shares(router.units, total)
    (rates,) = skip_rates(fitted.model.eval(), weigh(data.probe(), "answer"))
    # The grain of a toy: of 96 answer tokens one moves the rate by 0.0016 at most.
    assert float(rates @ shares) == pytest.approx(budget, abs=0.005)
    if ROWS[row].trained:
        assert set(fitted.decisions["trained_skip"]) == {"prompt", "answer"}


@pytest.mark.parametrize("row", ["hero", "mod-d"])
def test_probe_texts_without_prompts_are_refused(
    row: str, llama: Path, data_files: dict[str, Path], tmp_path: Path
) -> None:
    backbone = load_backbone(llama)
    probe = write_jsonl(tmp_path / "probe.jsonl", [{"fed": "a b c"}])
    data = Data(
        backbone.tokenizer, VOCABULARY, 64, training_file=data_files["training"], probe_file=probe
    )
    with pytest.raises(ValueError, match="'split' needs probe documents with prompts"):
        load_method(row).fit(backbone, data, Request(0.25, SEED, tmp_path, "split"))
