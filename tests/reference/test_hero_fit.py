"""HeRo's fit on a toy: budgets met on validation, controls, a pinned alpha."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from methods import load_method
from methods.base import Fitted, Request
from methods.core.data import Data
from methods.core.model.backbone import load_backbone
from methods.core.model.checkpoint import load
from methods.core.routing.calibration import skip_rates, weigh
from methods.core.routing.routed import router_of
from methods.core.routing.steering import unit_shares
from methods.hero.controls import count_rates
from tests import steps

TRAINING = {
    "updates": 8, "batch_tokens": 60, "learning_rate": 1e-3, "row_length": 30, "adapter_width": 8
}  # fmt: skip


def fitted(
    llama: Path, files: dict[str, Path], workdir: Path, budget: float | None,
    lender: Path | None = None, **params: Any,
) -> tuple[Fitted, float]:  # fmt: skip
    """HeRo fitted to a toy, and its skip rate on the validation documents."""
    backbone = load_backbone(llama)
    data = Data(
        backbone.tokenizer, 64, 32,
        training_file=files["training"], validation_file=files["validation"],
    )  # fmt: skip
    method = load_method("hero", TRAINING | params)
    total = backbone.parameters
    result = method.fit(backbone, data, Request(budget, 3, workdir, lender=lender))
    shares = unit_shares(router_of(result.model).units, total)
    return result, float(skip_rates(result.model, weigh(data.validation(), "pooled")) @ shares)


@pytest.mark.parametrize("variant", ["full", "no-history", "random"])
def test_fit_meets_the_budget_on_validation(
    llama: Path, data_files: dict[str, Path], tmp_path: Path, variant: str
) -> None:
    result, skip = fitted(llama, data_files, tmp_path, 0.2, variant=variant)
    # The draws of a few hundred tokens scatter.
    assert skip == pytest.approx(0.2, abs=0.03 if variant == "random" else 0.01)
    decisions = json.loads(json.dumps(result.decisions, allow_nan=False))
    assert [entry["update"] for entry in decisions["training"]] == list(range(8))
    shares = unit_shares(router_of(result.model).units, load_backbone(llama).parameters)
    if variant == "random":
        # Equal rates, which meet the budget before a threshold is calibrated.
        rate = [pytest.approx(0.2 / float(shares.sum()))]
        assert decisions["rates"] == [rate] * len(shares)
        assert decisions["calibration"][0]["skip"] == pytest.approx(0.2, abs=0.03)
        return
    assert decisions["calibration"][0]["threshold"] == 0.5
    rates = torch.tensor(decisions["bypass_rates"], dtype=torch.float64)
    assert float(rates @ shares) == pytest.approx(skip)
    assert result.structure["threshold"] == router_of(result.model).threshold != 0.5


def test_static_gates_close_whole_blocks(
    llama: Path, data_files: dict[str, Path], tmp_path: Path
) -> None:
    result, skip = fitted(llama, data_files, tmp_path, 0.2, variant="static")
    router = router_of(result.model)
    share = router.units[0].parameters / load_backbone(llama).parameters
    closed = result.structure["closed"]
    assert skip == pytest.approx(closed * share)
    assert abs(skip - 0.2) <= share / 2
    executed = result.model.model(torch.arange(9)[None], use_cache=False).executed[0]
    lowest = router.logits.argsort()[:closed]
    assert not bool(executed[lowest].any())
    assert int(executed.all(dim=1).sum()) == len(router.units) - closed
    # In training the number grows to its target over the first half.
    ran = [entry["executed"] for entry in result.decisions["training"]]
    assert (closed, ran) == (2, [3, 3, 2, 1, 1, 1, 1, 1])


@pytest.mark.parametrize("alpha", [0.0, 3e-3])
def test_a_pinned_alpha_is_neither_steered_nor_calibrated(
    alpha: float, llama: Path, data_files: dict[str, Path], tmp_path: Path
) -> None:
    result, _ = fitted(llama, data_files, tmp_path, None, alpha=alpha)
    assert {entry["alpha"] for entry in result.decisions["training"]} == {alpha}
    assert "calibration" not in result.decisions
    assert result.structure["threshold"] == 0.5
    # Gates start at 0.88: three of them, squared and summed.
    first = result.decisions["training"][0]
    assert first["penalty"] == pytest.approx((3 * 0.8808) ** 2, rel=0.02)
    assert first["skip"] == 0.0


@pytest.fixture(scope="module")
def lender(
    llama: Path, data_files: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """The folder of a fitted HeRo."""
    words = ["--train", data_files["training"], "--validation", data_files["validation"]]
    return steps.fit(
        "hero", llama, tmp_path_factory.mktemp("lender") / "hero", *words, "--budget", 0.2,
        "--seed", 3, "--max-length", 32, "--params", json.dumps(TRAINING),
    )  # fmt: skip


@pytest.mark.parametrize("variant", ["random", "by-kind", "by-token"])
def test_controls_take_the_rates_of_a_fitted_hero(
    variant: str, lender: Path, llama: Path, data_files: dict[str, Path], tmp_path: Path
) -> None:
    if variant != "random":
        with pytest.raises(ValueError, match=f"variant '{variant}' needs a lender, a fitted HeRo"):
            fitted(llama, data_files, tmp_path / "alone", 0.2, variant=variant)
    control, _ = fitted(llama, data_files, tmp_path, 0.2, lender, variant=variant)
    best = min(control.decisions["calibration"], key=lambda step: abs(step["skip"] - 0.2))
    assert best["skip"] == pytest.approx(0.2, abs=0.01)
    assert control.decisions["threshold"] == best["threshold"]
    hero, told = load(lender), json.loads((lender / "decisions.json").read_text())
    texts = Data(hero.tokenizer, 64, 32, training_file=data_files["training"]).training()
    counted = count_rates(hero.model, texts[:2000])
    expected = {
        "random": [[rate] for rate in told["bypass_rates"]],
        "by-kind": [list(both) for both in zip(*counted["kind_rates"], strict=True)],
        "by-token": counted["token_rates"],
    }
    assert control.structure["rates"] == control.decisions["rates"] == expected[variant]
    assert not {"kind_rates", "token_rates"} & told.keys()  # counted for who asks


def test_a_lender_of_other_blocks_is_refused(
    lender: Path, llama: Path, data_files: dict[str, Path], tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=r"routes the layers \[3, 4, 5\], the control \[4, 5\]"):
        fitted(llama, data_files, tmp_path, 0.2, lender, variant="by-kind", candidates=[4, 5])


def test_each_kind_meets_the_budget(
    llama: Path, data_files: dict[str, Path], tmp_path: Path
) -> None:
    backbone = load_backbone(llama)
    data = Data(
        backbone.tokenizer, 64, 32,
        training_file=data_files["training"], validation_file=data_files["validation"],
    )  # fmt: skip
    method = load_method("hero", TRAINING)
    result = method.fit(backbone, data, Request(0.2, 3, tmp_path, "split"))
    shares = [unit.parameters / backbone.parameters for unit in router_of(result.model).units]
    rates = skip_rates(result.model, weigh(data.probe(), "answer"))
    assert float(rates[0] @ torch.tensor(shares).double()) == pytest.approx(0.2, abs=0.01)
    assert set(result.decisions["trained_skip"]) == {"prompt", "answer"}
    assert {"skip_prompt", "skip_answer", "alpha_prompt"} <= set(result.decisions["training"][0])
