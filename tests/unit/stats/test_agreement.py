"""Kendall's tau and its exact p against counting every order."""

from __future__ import annotations

from itertools import combinations, permutations

import numpy as np
import pytest
from scipy import stats

from workflows.stats.agreement import kendall


def score(first: tuple[float, ...], second: tuple[float, ...]) -> int:
    pairs = combinations(range(len(first)), 2)
    return int(sum(np.sign((first[i] - first[j]) * (second[i] - second[j])) for i, j in pairs))


@pytest.mark.parametrize(
    "second",
    [
        (1, 2, 3, 4, 5),
        (2, 1, 3, 5, 4),
        (1, 1, 3, 2, 5),
        (2, 2, 2, 1, 3),
        (3, 3, 1, 1, 2),
        (1, 1, 2),
    ],
)
def test_against_every_order(second: tuple[float, ...]) -> None:
    first = tuple(float(n) for n in range(len(second)))
    tau, p = kendall(first, second)
    cases = score(first, second)
    all_of_them = [abs(score(order, second)) for order in permutations(first)]
    assert p == pytest.approx(np.mean([s >= abs(cases) for s in all_of_them]))
    assert tau == pytest.approx(stats.kendalltau(first, second).statistic)


def test_without_ties_it_is_the_known_test() -> None:
    rng = np.random.default_rng(3)
    for n in (4, 8, 11, 26):
        first, second = rng.permutation(n).tolist(), rng.permutation(n).tolist()
        expected = stats.kendalltau(first, second, method="exact")
        assert kendall(first, second) == pytest.approx((expected.statistic, expected.pvalue))


@pytest.mark.parametrize(
    ("first", "second", "sentence"),
    [
        ([1], [1], "at least two rows"),
        ([1, 2], [1, 2, 3], "two values of each"),
        ([1, 1], [1, 2], "the first ranking has ties"),
        ([1, 2], [3, 3], "all rows are tied"),
    ],
)
def test_what_has_no_correlation(first: list[float], second: list[float], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        kendall(first, second)
