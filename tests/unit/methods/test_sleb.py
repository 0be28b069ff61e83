"""SLEB against a naive search: a model built by hand for every trial of every round."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from methods import load_method, load_model
from methods.base import Fitted, Request
from methods.core.data import Batch, Document, batches
from methods.core.jsonfile import read_json
from methods.core.model.backbone import layers
from methods.core.model.checkpoint import DECISIONS
from methods.core.model.ledger import Ledger, Tally
from methods.core.surgery.greedy import Part, greedy_rounds
from tests import steps
from tests.near import ROUNDING
from tests.slow_perplexity import slow_perplexity
from tests.toys import static
from tests.toys.models import keep_layers, make_model, wrap
from tests.toys.static import silence
from tests.toys.texts import calibration_data, ids_of

TEXTS = ids_of([9, 3, 14, 2, 9, 1, 11])


def fit(model: PreTrainedModel, budget: float | None = None, **params: Any) -> Fitted:
    return static.fit("sleb", model, TEXTS, budget, **params)


def naive(kind: str, number: int, free: list[int]) -> tuple[list[int], list[dict[int, float]]]:
    """Order of removal, and per round block -> perplexity without it."""
    removed: list[int] = []
    rounds = []
    for _ in range(number):
        scores = {}
        for block in free:
            if block not in removed:
                dense = make_model(kind)
                gone = [*removed, block]
                kept = [n for n in range(len(layers(dense))) if n not in gone]
                scores[block] = slow_perplexity(keep_layers(dense, kept), TEXTS)
        removed.append(min(scores, key=lambda block: (scores[block], block)))
        rounds.append(scores)
    return removed, rounds


@pytest.mark.parametrize("kind", ["llama", "qwen2", "tied"])
@pytest.mark.parametrize("protect", [[1, 1], [0, 0]])
def test_order_and_scores_equal_the_naive_search(kind: str, protect: list[int]) -> None:
    model = make_model(kind)
    total = len(layers(model))
    free = list(range(protect[0], total - protect[1]))
    removed, rounds = naive(kind, 2, free)
    decisions = fit(model, layers=2, protect=protect).decisions
    assert decisions["removed_layers"] == removed
    for found, expected in zip(decisions["scores"], rounds, strict=True):
        assert [n for n in range(total) if found[n] is not None] == sorted(expected)
        assert [found[n] for n in expected] == pytest.approx([*expected.values()], rel=ROUNDING)


def test_later_rounds_measure_the_model_that_is_left() -> None:
    decisions = fit(make_model(), layers=3, protect=[0, 0]).decisions
    first = sorted(range(6), key=decisions["scores"][0].__getitem__)[:3]
    assert decisions["removed_layers"] != first


def test_the_first_round_is_the_criterion_of_shortened_llama() -> None:
    once = load_method("shortened-ppl", {"layers": 1, "protect": False}).fit(
        wrap(make_model()), calibration_data(TEXTS), Request(None, 0, Path())
    )
    again = fit(make_model(), layers=1, protect=[0, 0])
    assert again.decisions["scores"] == [once.decisions["scores"]]
    assert again.decisions["removed_layers"] == once.decisions["removed_layers"]


def test_orders_are_prefixes_and_a_budget_takes_the_nearest() -> None:
    five = fit(make_model(), layers=4).decisions["removed_layers"]
    assert fit(make_model(), layers=2).decisions["removed_layers"] == five[:2]
    # A block holds 15.5 %.
    for budget, number in ((0.25, 2), (0.40, 3)):
        fitted = fit(make_model(), budget)
        assert fitted.structure == {"removed_layers": five[:number]}
        tally = Tally(Ledger.of(fitted.model, 59808, 6))
        tally.add(None, 5)
        assert load_method("sleb").authors_skip(tally.rates()) == pytest.approx(number / 6)
        assert tally.rates().skip == pytest.approx(number * 9280 / 59808)


def test_the_last_score_is_that_of_the_model_on_disk(llama: Path, tmp_path: Path) -> None:
    texts = np.array(ids_of([16] * 5))
    np.save(tmp_path / "ids.npy", texts)
    arguments = ["--budget", 0.4, "--calibration", tmp_path / "ids.npy"]
    out = steps.fit("sleb", llama, tmp_path / "out", *arguments)
    scores = read_json(out / DECISIONS)["scores"]
    last = min(score for score in scores[-1] if score is not None)
    assert slow_perplexity(load_model(out), texts.tolist()) == pytest.approx(last, rel=ROUNDING)


def test_a_block_that_adds_nothing_scores_the_present_perplexity() -> None:
    dense = slow_perplexity(silence(make_model(), 3), TEXTS)
    scores = fit(silence(make_model(), 3), layers=1).decisions["scores"][0]
    assert scores[3] == pytest.approx(dense, rel=ROUNDING)


def test_of_equal_blocks_the_lower_goes_first() -> None:
    removed = fit(silence(make_model(), 1, 2, 3, 4), layers=4).decisions["removed_layers"]
    assert removed == [1, 2, 3, 4]


def test_documents_per_batch_do_not_change_the_order() -> None:
    def order(size: int) -> list[int]:
        texts: list[Batch] = list(batches([Document(ids, 0) for ids in TEXTS], size))
        blocks = [Part("block", n) for n in range(6)]
        return [best.layer for best, _ in greedy_rounds(make_model(), texts, blocks)]

    assert order(1) == order(3) == order(7)
    assert sorted(order(7)) == list(range(6))


def test_no_more_blocks_go_than_are_unprotected() -> None:
    with pytest.raises(ValueError, match="param 'layers' is 5, must be at most 4: 'protect' keeps"):
        fit(make_model(), layers=5)
    backbone = wrap(make_model())
    method = load_method("sleb")
    assert method.skip_reason(backbone, Request(0.5, 0, Path())) is None
    reason = method.skip_reason(backbone, Request(0.8, 0, Path()))
    assert "the budget takes 5 layers, param 'protect' leaves 4" in str(reason)
    assert "how many layers" in str(method.skip_reason(backbone, Request(None, 0, Path())))


@pytest.mark.parametrize("params", [{"samples": 0}, {"length": 0}, {"protect": [1]}])
def test_wrong_numbers_are_refused_by_name(params: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"param '{next(iter(params))}' is"):
        load_method("sleb", params)


def test_a_score_that_is_no_number_is_refused() -> None:
    model = make_model()
    torch.nn.init.constant_(layers(model)[0].mlp.up_proj.weight, float("inf"))
    with pytest.raises(ValueError, match="without block 1 the perplexity is no number"):
        fit(model, layers=1)
