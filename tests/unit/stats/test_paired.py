"""Tests of two lines against scipy and against hand-computed cases."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from workflows.stats.paired import holm, items_needed, mcnemar, sign_share


@pytest.mark.parametrize(
    ("won", "lost", "p"),
    [
        (0, 0, 1.0),
        (1, 0, 1.0),
        (0, 5, 2 / 2**5),
        (5, 0, 2 / 2**5),
        (1, 4, 2 * (1 + 5) / 2**5),
        (3, 3, 1.0),
    ],
)
def test_mcnemar_by_hand(won: int, lost: int, p: float) -> None:
    assert mcnemar(won, lost) == pytest.approx(p)


def test_mcnemar_is_the_binomial_test_of_scipy() -> None:
    rng = np.random.default_rng(0)
    for won, lost in rng.integers(0, 400, (50, 2)):
        theirs = stats.binomtest(int(won), int(won + lost), 0.5).pvalue
        assert mcnemar(int(won), int(lost)) == pytest.approx(theirs)


def test_mcnemar_rejects_no_more_than_it_may() -> None:
    """Under no difference an exact test stays below its level."""
    rng = np.random.default_rng(4)
    won = rng.binomial(40, 0.5, 4000)
    rejected = np.mean([mcnemar(int(w), int(40 - w)) < 0.05 for w in won])
    assert 0.02 < rejected <= 0.055


def test_holm_by_hand() -> None:
    # Sorted: 0.01 * 4, 0.02 * 3, 0.03 * 2, 0.5 * 1, each at least the one before.
    assert holm([0.02, 0.5, 0.01, 0.03]).tolist() == pytest.approx([0.06, 0.5, 0.04, 0.06])
    assert holm([0.6, 0.7]).tolist() == pytest.approx([1.0, 1.0])
    assert holm([0.03]).tolist() == pytest.approx([0.03])


def test_holm_holds_the_error_of_the_family() -> None:
    rng = np.random.default_rng(1)
    wrong = np.mean([(holm(rng.random(12)) < 0.05).any() for _ in range(4000)])
    assert wrong == pytest.approx(0.05, abs=0.012)


def test_sign_share_by_hand_and_with_its_interval() -> None:
    assert sign_share(np.array([1.0, 2.0, 3.0])) == 2 * 1 / 4
    assert sign_share(np.array([-1.0, 2.0, 3.0])) == 1.0
    assert sign_share(np.zeros(99)) == 1.0
    draws = np.random.default_rng(0).normal(2.0, 1.0, 9999)
    expected = 2 * stats.norm.cdf(-2.0)
    assert sign_share(draws) == pytest.approx(expected, rel=0.15)


def test_items_needed_find_the_difference_in_four_of_five_repetitions() -> None:
    """Two runs that disagree on 10 % of the items, one of them two points better."""
    better, worse = 0.06, 0.04
    spread = np.sqrt(better + worse - (better - worse) ** 2)
    n = items_needed(spread / np.sqrt(500), 500, difference=0.02)
    assert n == pytest.approx((2.8016 * spread / 0.02) ** 2, rel=1e-3)
    rng = np.random.default_rng(2)
    counts = rng.multinomial(n, [better, worse, 1 - better - worse], size=2000)
    z = (counts[:, 0] - counts[:, 1]) / np.sqrt(counts[:, 0] + counts[:, 1])
    assert np.mean(np.abs(z) > 1.96) == pytest.approx(0.8, abs=0.04)
