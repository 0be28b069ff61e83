"""The hash behind the random controls, and the mean they meet."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import chisquare, kstest

from methods import load_method
from methods.base import Request
from methods.core.data import Data
from methods.core.model.backbone import load_backbone
from methods.core.routing.routed import router_of
from methods.core.routing.router import Context, Tokens, Unit
from methods.random_skip import RandomRouter, uniform_hash
from tests.unit.core.routing.test_decoding import Recorder

UNITS = [Unit(n, "ffn", 100) for n in range(6)]
MASK = (1 << 64) - 1


def splitmix(x: int) -> int:
    x = (x + 0x9E3779B97F4A7C15) & MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def slow_hash(seed: int, lane: int, position: int, token: int) -> float:
    mixed = seed
    for part in (lane, position, token):
        mixed = splitmix(mixed ^ splitmix(part))
    return (mixed >> 11) / 2**53


def draw(router: RandomRouter, ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    tokens = Tokens(ids, positions.expand_as(ids), torch.ones_like(ids, dtype=torch.bool))
    return router.start(tokens, torch.empty(0), Context())


def test_splitmix_gives_the_published_numbers() -> None:
    # First outputs of the generator seeded with 1234567, from its author's page.
    assert splitmix(1234567) == 6457827717110365317
    assert splitmix((1234567 + 0x9E3779B97F4A7C15) & MASK) == 3203168211198807973


def test_hash_equals_unsigned_arithmetic() -> None:
    ids = torch.tensor([[0, 1, 59, 128255], [7, 7, 7, 7]])
    positions = torch.tensor([[0, 1, 2, 3], [4096, 9, 8, 0]])
    fast = uniform_hash(42, (5, 31), positions, ids)
    assert fast.shape == (2, 2, 4)
    for row, unit, column in product(range(2), range(2), range(4)):
        position, token = int(positions[row, column]), int(ids[row, column])
        assert fast[row, unit, column].item() == slow_hash(42, (5, 31)[unit], position, token)


def test_hash_takes_ids_of_32_bits_and_any_seed() -> None:
    ids = torch.tensor([[0, 1, 59, 128255]])
    assert torch.equal(uniform_hash(42, [5], ids.int(), ids.int()), uniform_hash(42, [5], ids, ids))
    assert torch.equal(uniform_hash(2**64 + 42, [5], ids, ids), uniform_hash(42, [5], ids, ids))


def test_hash_copies_nothing_from_the_host() -> None:
    ids = torch.arange(4)[None]
    with Recorder() as recorder:
        uniform_hash(42, (5, 31), ids, ids)
    assert len(recorder.seen) > 10
    assert not [name for name, _ in recorder.seen if "lift_fresh" in name]


def test_hash_is_uniform() -> None:
    ids = torch.arange(200)[:, None].expand(200, 100)
    values = uniform_hash(1, [2], torch.arange(100)[None].expand_as(ids), ids).numpy().ravel()
    assert kstest(values, "uniform").pvalue > 1e-3
    assert values.min() >= 0
    assert values.max() < 1


def test_every_argument_matters_and_draws_are_uncorrelated() -> None:
    ids = torch.arange(4000)[None]
    positions = torch.zeros_like(ids)
    base, unit = uniform_hash(1, [2, 3], positions, ids)[0]
    for other in (
        unit,
        uniform_hash(2, [2], positions, ids)[0, 0],
        uniform_hash(1, [2], positions + 1, ids)[0, 0],
        uniform_hash(1, [2], positions, ids + 1)[0, 0],
    ):
        assert abs(np.corrcoef(base, other)[0, 1]) < 0.06


@pytest.mark.parametrize("skipped", [0.0, 0.37, 2.37, 3.0, 5.5, 6.0])
def test_mean_skip_meets_the_request_over_any_stretch(skipped: float) -> None:
    router = RandomRouter(UNITS, seed=3, skips=skipped)
    ids = torch.randint(0, 60, (1, 1000), generator=torch.Generator().manual_seed(0))
    executed = draw(router, ids, torch.arange(1000)[None])
    numbers = (~executed[0]).sum(dim=0).double()
    assert set(numbers.tolist()) <= {float(int(skipped)), float(int(skipped) + 1)}
    for start in (0, 123, 700):
        assert numbers[start : start + 300].mean() == pytest.approx(skipped, abs=2 / 300)


def test_units_are_skipped_equally_often() -> None:
    ids = torch.randint(0, 60, (8, 1000), generator=torch.Generator().manual_seed(0))
    executed = draw(RandomRouter(UNITS, 3, 1.5), ids, torch.arange(1000)[None])
    assert chisquare((~executed).sum(dim=(0, 2)).numpy()).pvalue > 1e-3


def test_embeddings_alone_cannot_be_hashed() -> None:
    tokens = Tokens(None, torch.zeros(1, 1), torch.ones(1, 1, dtype=torch.bool))
    with pytest.raises(ValueError, match="input_ids"):
        RandomRouter(UNITS, 0, 1.0).start(tokens, torch.empty(0), Context())


@pytest.mark.parametrize("row", ["random-skip", "random-skip-layers"])
def test_fit_asks_for_as_many_units_as_the_budget_holds(row: str, llama: Path) -> None:
    backbone = load_backbone(llama)
    total = backbone.parameters
    fitted = load_method(row).fit(backbone, Data(None, 64), Request(0.25, 7, Path()))
    router = router_of(fitted.model)
    sizes = fitted.decisions["unit_parameters"]
    assert len(set(sizes)) == 1
    assert router.skips * sizes[0] == pytest.approx(0.25 * total)
    kinds = {unit.kind for unit in router.units}
    assert kinds == {"ffn" if row == "random-skip" else "block"}
    layers = [unit.layer for unit in router.units]
    assert layers == ([3, 4, 5] if row == "random-skip" else [1, 2, 3, 4])


def test_a_budget_beyond_the_candidates_is_not_applicable(llama: Path) -> None:
    backbone = load_backbone(llama)
    method = load_method("random-skip", {"candidates": [5]})
    assert "less than the budget" in method.skip_reason(backbone, Request(0.25, 0, Path()))
    assert "needs a budget" in method.skip_reason(backbone, Request(None, 0, Path()))
    assert method.skip_reason(backbone, Request(0.05, 0, Path())) is None


@pytest.mark.parametrize("layers", [[], [6], [-1, 2]])
def test_candidates_outside_the_model_are_refused(layers: list[int], llama: Path) -> None:
    method = load_method("random-skip", {"candidates": layers})
    with pytest.raises(ValueError, match="param 'candidates'"):
        method.skip_reason(load_backbone(llama), Request(0.25, 0, Path()))
