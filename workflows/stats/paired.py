"""Paired tests of two lines on the same items, and the items that a difference needs.

The interval of a difference is made in versus.py, by the draws of sampling.py.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from scipy import stats

from workflows.stats.retain import Floats

LEVEL, POWER = 0.05, 0.8
# A difference of so many standard errors is found at LEVEL with POWER.
FOUND = float(stats.norm.ppf(1 - LEVEL / 2) + stats.norm.ppf(POWER))


def mcnemar(won: int, lost: int) -> float:
    """Exact two-sided McNemar test: are ``won`` and ``lost`` items two sides of a fair coin?

        p = min(1, 2 P(X <= min(won, lost))),   X ~ Binomial(won + lost, 1/2)

    Args:
        won: Items that the first line alone solves.
        lost: Items that the second line alone solves.
    """
    return min(1.0, 2 * float(stats.binom.cdf(min(won, lost), won + lost, 0.5)))


def sign_share(draws: Floats) -> float:
    """Two-sided p of a bootstrapped difference: twice the smaller share beyond zero.

    It falls below 5 % where the 95 % percentile interval leaves zero out, and never below
    2 / (B + 1).
    """
    beyond = min(int((draws <= 0).sum()), int((draws >= 0).sum()))
    return min(1.0, 2 * (beyond + 1) / (len(draws) + 1))


def holm(values: Sequence[float]) -> Floats:
    """The p values of one family after Holm's correction.

    adjusted p of the i-th smallest = max over j <= i of min(1, (m - j + 1) p_j)
    """
    p = np.asarray(values, dtype=np.float64)
    order = np.argsort(p, kind="stable")
    products = np.minimum(1.0, p[order] * np.arange(len(p), 0, -1))
    adjusted = np.empty_like(p)
    adjusted[order] = np.maximum.accumulate(products)
    return adjusted


def items_needed(error: float, items: int, difference: float = 0.01) -> int:
    """Items with which a true difference is found at 5 % in four of five repetitions.

        n = items (error (z_0.975 + z_0.8) / difference)^2

    Args:
        error: Standard error of the measured difference over ``items``.
        items: Items of the measurement.
        difference: What is to be seen; 0.01 is one point.
    """
    return math.ceil(items * (error * FOUND / difference) ** 2)
