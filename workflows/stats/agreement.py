"""How far two orders of the same rows agree."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import cache
from itertools import zip_longest
from math import comb, sqrt

import numpy as np
from scipy import stats


def kendall(first: Sequence[float], second: Sequence[float]) -> tuple[float, float]:
    """Kendall's tau-b of two rankings and its exact two-sided permutation p.

        tau-b = S / sqrt(pairs apart in first * pairs apart in second)
        S = pairs in the same order - pairs in opposite order
        p = share of all orders of ``first`` with an |S| at least as large

    Args:
        first: One value per row, all different.
        second: One value per row; equal ones are tied.

    Raises:
        ValueError: There are fewer than two rows, ``first`` has ties, or ``second`` only ties.
    """
    if len(first) != len(second) or len(first) < 2:
        raise ValueError("a rank correlation needs two values of each of at least two rows")
    if len(set(first)) < len(first):
        raise ValueError("the first ranking has ties")
    counts = _out_of_order(tuple(sorted(Counter(second).values())))
    apart = len(counts) - 1
    if not apart:
        raise ValueError("all rows are tied in the second ranking")
    tau = float(stats.kendalltau(first, second).statistic)
    score = round(tau * sqrt(comb(len(first), 2) * apart))
    extreme = sum(n for out, n in enumerate(counts) if abs(apart - 2 * out) >= abs(score))
    return tau, extreme / sum(counts)


def _out_of_order(sizes: tuple[int, ...]) -> list[int]:
    """Number of arrangements of tied groups with 0, 1, 2, ... pairs out of order.

    The coefficients of the Gaussian multinomial [n; sizes] (MacMahon), a product of Gaussian
    binomials.
    """
    counts, total = [1], 0
    for size in sizes:
        total += size
        # As Python's integers, which do not overflow.
        more = np.array(_gaussian(total, size), dtype=np.object_)
        counts = np.convolve(np.array(counts, dtype=np.object_), more).tolist()
    return counts


@cache
def _gaussian(n: int, k: int) -> list[int]:
    """Coefficients of the Gaussian binomial: [n, k] = [n - 1, k - 1] + q^k [n - 1, k]."""
    if k in (0, n):
        return [1]
    shifted = [0] * k + _gaussian(n - 1, k)
    return [a + b for a, b in zip_longest(_gaussian(n - 1, k - 1), shifted, fillvalue=0)]
