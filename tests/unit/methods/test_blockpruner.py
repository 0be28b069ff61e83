"""BlockPruner against a naive search over models that are cut by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from transformers import PreTrainedModel

from methods import load_method, load_model
from methods.base import Fitted, Request
from methods.core.jsonfile import read_json
from methods.core.model.backbone import count, layers
from methods.core.model.checkpoint import DECISIONS
from methods.core.model.ledger import Ledger, Tally
from tests import steps
from tests.near import ROUNDING
from tests.slow_perplexity import slow_perplexity
from tests.toys import static
from tests.toys.models import make_model, wrap
from tests.toys.texts import ids_of

TEXTS = ids_of([9, 3, 14, 2, 9, 1, 11])
OUTPUT = {"attention": "self_attn.o_proj", "ffn": "mlp.down_proj"}
# Of 59,808 parameters: four projections and a norm, three projections and a norm.
SIZES = {"attention": 3104 / 59808, "ffn": 6176 / 59808}


def fit(model: PreTrainedModel, budget: float | None = None, **params: Any) -> Fitted:
    return static.fit("blockpruner", model, TEXTS, budget, **params)


def silence(model: PreTrainedModel, *blocks: tuple[str, int]) -> PreTrainedModel:
    """Attentions and FFNs that add nothing: what they return is multiplied by zero."""
    for kind, number in blocks:
        nn.init.zeros_(layers(model)[number].get_submodule(OUTPUT[kind]).weight)
        if (bias := layers(model)[number].get_submodule(OUTPUT[kind]).bias) is not None:
            nn.init.zeros_(bias)
    return model


def naive(kind: str, kinds: list[str], number: int) -> tuple[list[Any], list[dict[Any, float]]]:
    """Order of removal, and per round block -> perplexity of a model that is silent there."""
    removed: list[tuple[str, int]] = []
    rounds = []
    total = len(layers(make_model(kind)))
    for _ in range(number):
        left = [(one, n) for one in kinds for n in range(total) if (one, n) not in removed]
        scores = {
            block: slow_perplexity(silence(make_model(kind), *removed, block), TEXTS)
            for block in left
        }
        removed.append(min(left, key=lambda block: scores[block]))
        rounds.append(scores)
    return removed, rounds


@pytest.mark.parametrize(
    ("kind", "kinds"),
    [("llama", "both"), ("mistral", "both"), ("tied", "attention"), ("qwen2", "ffn")],
)
def test_order_and_scores_equal_the_naive_search(kind: str, kinds: str) -> None:
    chosen = ["attention", "ffn"] if kinds == "both" else [kinds]
    removed, rounds = naive(kind, chosen, 3)
    decisions = fit(make_model(kind), blocks=3, kinds=kinds).decisions
    assert decisions["removed_blocks"] == [list(block) for block in removed]
    for found, expected in zip(decisions["scores"], rounds, strict=True):
        given = {
            (one, n): score
            for one, scores in found.items()
            for n, score in enumerate(scores)
            if score is not None
        }
        assert given.keys() == expected.keys()
        assert [given[block] for block in expected] == pytest.approx(
            [*expected.values()], rel=ROUNDING
        )


def test_a_silent_branch_scores_the_present_perplexity_exactly() -> None:
    blocks = [("attention", 2), ("attention", 4), ("ffn", 1), ("ffn", 4)]
    scores = fit(silence(make_model(), *blocks), blocks=1).decisions["scores"][0]
    dense = slow_perplexity(silence(make_model(), *blocks), TEXTS)
    found = [scores[kind][number] for kind, number in blocks]
    assert found == [found[0]] * 4
    assert found[0] == pytest.approx(dense, rel=ROUNDING)


def test_of_equal_blocks_attention_goes_first_then_the_lower_layer() -> None:
    # Nothing but the embedding is left, so every removal scores the same.
    model = silence(make_model(), *((kind, n) for kind in OUTPUT for n in range(6)))
    removed = fit(model, blocks=8).decisions["removed_blocks"]
    assert removed == [["attention", n] for n in range(6)] + [["ffn", 0], ["ffn", 1]]


def test_orders_are_prefixes_and_the_budget_takes_the_nearest() -> None:
    order = fit(make_model(), blocks=12).decisions["removed_blocks"]
    assert len(order) == 12
    shares = [sum(SIZES[kind] for kind, _ in order[:number]) for number in range(13)]
    for budget in (0.12, 0.25, 0.40, 0.55):
        fitted = fit(make_model(), budget)
        number = min(range(13), key=lambda n: abs(shares[n] - budget))
        assert fitted.decisions["removed_blocks"] == order[:number]
        assert len(fitted.decisions["scores"]) == number
        trace = fitted.decisions["budget_search"]
        assert [row["skip"] for row in trace] == pytest.approx(shares[: len(trace)])
        # Not a round more than the budget asks for.
        assert trace[-2]["skip"] < budget <= trace[-1]["skip"]
        tally = Tally(Ledger.of(fitted.model, 59808, 6))
        tally.add(None, 5)
        assert tally.rates().skip == pytest.approx(shares[number])
        left = sum(p.numel() for p in fitted.model.parameters())
        assert left == 59808 - round(59808 * shares[number])


def test_some_budget_takes_the_last_block_back() -> None:
    """Both sides of the nearest are met: a search that passed the budget by more, and by less."""
    ends = [fit(make_model(), budget) for budget in (0.12, 0.25, 0.40, 0.55)]
    back = {len(f.decisions["budget_search"]) - 1 - len(f.decisions["scores"]) for f in ends}
    assert back == {0, 1}


def test_structure_says_which_layers_lost_what() -> None:
    fitted = fit(make_model(), blocks=5)
    for kind in OUTPUT:
        gone = [n for one, n in fitted.decisions["removed_blocks"] if one == kind]
        assert fitted.structure[kind] == sorted(gone)


def test_kinds_and_protected_layers_stay() -> None:
    backbone = wrap(make_model())
    assert count(backbone.model) == 59808
    decisions = fit(make_model(), blocks=3, kinds="attention", protect=[2, 1]).decisions
    assert sorted(decisions["removed_blocks"]) == [["attention", n] for n in (2, 3, 4)]
    assert all(score is None for found in decisions["scores"] for score in found["ffn"])
    with pytest.raises(ValueError, match="param 'blocks' is 4, must be from 0 to 3"):
        fit(make_model(), blocks=4, kinds="attention", protect=[2, 1])
    with pytest.raises(ValueError, match="param 'blocks' is 13, must be from 0 to 12"):
        fit(make_model(), blocks=13)
    method = load_method("blockpruner", {"kinds": "attention"})
    assert "less than the budget" in str(method.skip_reason(backbone, Request(0.4, 0, Path())))
    assert method.skip_reason(backbone, Request(0.2, 0, Path())) is None
    assert "param 'blocks'" in str(method.skip_reason(backbone, Request(None, 0, Path())))


def test_layers_of_two_kinds_keep_their_attention() -> None:
    backbone, request = wrap(make_model("qwen2")), Request(0.25, 0, Path())
    assert "layer_types" in str(load_method("blockpruner").skip_reason(backbone, request))
    assert load_method("blockpruner", {"kinds": "ffn"}).skip_reason(backbone, request) is None


def test_the_last_score_is_that_of_the_model_on_disk(llama: Path, tmp_path: Path) -> None:
    texts = np.array(ids_of([16] * 5))
    np.save(tmp_path / "ids.npy", texts)
    arguments = ["--budget", 0.4, "--calibration", tmp_path / "ids.npy"]
    out = steps.fit("blockpruner", llama, tmp_path / "out", *arguments)
    last = read_json(out / DECISIONS)["scores"][-1]
    lowest = min(score for kind in OUTPUT for score in last[kind] if score is not None)
    assert slow_perplexity(load_model(out), texts.tolist()) == pytest.approx(lowest, rel=ROUNDING)


@pytest.mark.parametrize("params", [{"samples": 0}, {"length": 0}, {"protect": [-1, 0]}])
def test_wrong_numbers_are_refused_by_name(params: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"param '{next(iter(params))}' is"):
        load_method("blockpruner", params)


def test_nothing_removed_is_the_identity() -> None:
    ids = torch.tensor(ids_of([9, 9]))
    with torch.no_grad():
        same = fit(make_model(), blocks=0).model(ids).logits
        assert torch.equal(same, make_model()(ids).logits)
