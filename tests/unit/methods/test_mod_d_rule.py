"""The competition of MoD-D: who is among the k largest, whatever shares the row."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from methods.core.routing.router import Tokens, Unit
from methods.mod_d import CompetingRouter, MoDD
from methods.mod_d.competition import capacity_for, kth_largest
from tests.toys.routed import build_variant, training_context, winners

SEVERAL = [[0, 1, 2, 3, 4, 5, 6, 7, 8, 9], [0, 1, 2, 0, 1, 2, 3, 0, 0, 1]]


def tokens(positions: Any, valid: Any = None) -> Tokens:
    places = torch.tensor(positions)
    real = torch.ones_like(places, dtype=torch.bool) if valid is None else torch.tensor(valid)
    return Tokens(torch.zeros_like(places), places, real)


def decide(
    weights: Tensor,
    given: Tokens,
    capacity: float,
    compare: str = "strict",
    answers: Tensor | None = None,
    answer_share: float | None = None,
) -> Tensor:
    """Decisions of a router whose linear map reads the weights (B, T) off the input."""
    units = [Unit(1, "ffn", 1)]
    router = CompetingRouter(units, 32, MoDD.Params(compare=compare), capacity, seed=7)
    router.answer_share = answer_share
    with torch.no_grad():
        router.routers[0].weight.zero_()[0, 0] = 1.0
        router.routers[0].bias.zero_()
    hidden = torch.zeros(*weights.shape, 32)
    hidden[..., 0] = weights
    decision, _ = router.gate(0, hidden, None, (given, answers), training_context())
    assert torch.equal(decision.scale, weights)
    return decision.execute


def test_answer_tokens_compete_with_all_of_their_kind() -> None:
    weights = torch.tensor([[5.0, 1.0, 4.0, 9.0, 2.0], [7.0, 6.0, 3.0, 8.0, 0.0]])
    given = tokens([[0, 1, 2, 3, 4], [0, 1, 2, 0, 1]])
    # Deciding: 9 and 2 above, counting one each; 8 and 0 below, counting three each.
    answers = torch.tensor([[0, 0, 0, 1.0, 1.0], [0, 0, 0, 3.0, 3.0]])
    found = decide(weights, given, 0.7, "inclusive", answers, 0.5)
    # Two of three prompt tokens run; 9 and 8 hold 4 of 8 shares, and only what exceeds the weight
    # at which one half is reached runs.
    assert found.tolist() == [[True, False, True, True, False], [True, True, False, False, False]]
    assert decide(weights, given, 0.7, "inclusive", answers, 0.55)[1, 3]
    # Without an aim of their own they compete in their documents.
    pooled = decide(weights, given, 0.7, "inclusive", answers)
    assert torch.equal(pooled, decide(weights, given, 0.7, "inclusive"))


@pytest.mark.parametrize("compare", ["strict", "inclusive"])
@pytest.mark.parametrize("capacity", [0.05, 0.3, 0.5, 0.693, 0.75, 1.0])
@pytest.mark.parametrize("levels", [1000, 3])
def test_winners_by_document(compare: str, capacity: float, levels: int) -> None:
    """Packed documents compete each on its own; three levels of weight make many ties."""
    rng = torch.Generator().manual_seed(4)
    weights = torch.randint(-levels, levels, (2, 10), generator=rng) / 7
    found = decide(weights, tokens(SEVERAL), capacity, compare)
    spans = [[(0, 10)], [(0, 3), (3, 7), (7, 8), (8, 10)]]
    for row, documents in enumerate(spans):
        expected = [
            w
            for start, end in documents
            for w in winners(weights[row, start:end].tolist(), capacity, compare)
        ]
        assert found[row].tolist() == expected


@pytest.mark.parametrize(
    ("compare", "capacity", "expected"),
    [("strict", 0.75, 6), ("inclusive", 0.75, 7), ("strict", 1.0, 9), ("inclusive", 1.0, 10),
     ("strict", 0.7, 6), ("strict", 0.1, 1), ("strict", 0.01, 1), ("strict", 0.2, 1)],
)  # fmt: skip
def test_how_many_of_ten_run(compare: str, capacity: float, expected: int) -> None:
    """Properties 1 and 3: k is the k-th largest itself unless k is 1."""
    weights = torch.randperm(10, generator=torch.Generator().manual_seed(5))[None].float()
    found = decide(weights, tokens(SEVERAL[:1]), capacity, compare)
    assert int(found.sum()) == expected
    assert bool(found[0, weights[0].argmax()])


@torch.no_grad()
def test_decisions_are_made_in_float32() -> None:
    """In bfloat16 most of these weights tie, and the strict comparison would skip all that do."""
    weights = 1 + 1e-3 * torch.arange(10.0)[None]
    assert weights.bfloat16().unique().numel() < 4
    assert int(decide(weights, tokens(SEVERAL[:1]), 0.75).sum()) == 6
    model = build_variant("mod-d-topk", dtype=torch.bfloat16, capacity=0.75)
    assert {p.dtype for p in model.model.router.parameters()} == {torch.float32}
    ids = torch.arange(50)[None]
    output = model.model(ids, use_cache=False)
    assert output.last_hidden_state.dtype == torch.bfloat16
    assert bool((output.executed.sum(dim=2) == 36).all())


@pytest.mark.parametrize("side", ["left", "right"])
def test_pads_do_not_compete(side: str) -> None:
    """Property 6 on the rule itself: pads hold the largest weights and get no seat."""
    weights = torch.tensor([[0.1, 0.5, 0.3, 0.9]])
    big = torch.tensor([[9.0, 8.0, 7.0]])
    if side == "left":
        given = tokens([[0, 0, 0, 0, 1, 2, 3]], [[False] * 3 + [True] * 4])
        padded, real = torch.cat([big, weights], 1), slice(3, 7)
    else:
        given = tokens([[0, 1, 2, 3, 3, 3, 3]], [[True] * 4 + [False] * 3])
        padded, real = torch.cat([weights, big], 1), slice(0, 4)
    taus = kth_largest(padded, given, 0.75, given.valid)
    assert taus.value[0, real].tolist() == pytest.approx([0.3] * 4)
    assert taus.k[0, real].tolist() == [3] * 4
    found = decide(padded, given, 0.75)
    assert found[0, real].tolist() == [False, True, False, True]
    assert int(found.sum()) == 2


@pytest.mark.parametrize("compare", ["strict", "inclusive"])
@pytest.mark.parametrize("share", [0.3, 0.55, 0.72])
def test_a_capacity_runs_the_share_asked_for(share: float, compare: str) -> None:
    lengths = [3, 5, 8, 13, 21, 34, 7, 7, 9] * 20
    capacity = capacity_for(share, lengths, compare)

    def ran(value: float) -> float:
        runs = [sum(winners([float(n) for n in range(m)], value, compare)) for m in lengths]
        return sum(runs) / sum(lengths)

    # It is the smallest that runs so much.
    assert ran(capacity + 1e-6) >= share > ran(capacity - 1e-6)
    assert ran(capacity + 1e-6) == pytest.approx(share, abs=0.03)


def test_a_whole_share_is_not_lost_to_rounding() -> None:
    assert 0.29 * 100 < 29
    weights, given = torch.arange(100.0)[None], tokens([list(range(100))])
    assert int(decide(weights, given, 0.29, "inclusive").sum()) == 29


def test_one_document_of_one_token_runs() -> None:
    assert bool(decide(torch.tensor([[-2.0]]), tokens([[0]]), 0.1).all())
