"""Which split and how many runs a printed score can come from.

An accuracy over n items is k/n with a whole k; the mean of three runs is k/(3n). A printed number
that no k gives, at its two decimals, was not made so. That a number fits proves nothing alone: of
random numbers with two decimals 3 % fit n = 299, 6 % fit 570, 12 % fit 1,172 and 24 % fit 2,376.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import pandas as pd

from workflows.report.paper.printed import BENCHMARKS, KEYS, SEEDS, printed

HALF = 0.005  # half a unit of the last printed digit of every score
EITHER, UNKNOWN = "either", "unknown"


def hits(value: float, items: int, runs: int = 1) -> int | None:
    """The k of ``k / (items * runs)`` that is printed as ``value`` percent; None if none is."""
    total = items * runs
    k = round(value / 100 * total)
    return k if abs(100 * k / total - value) <= HALF + 1e-9 else None


def splits(value: float, metric: str, runs: int) -> set[str]:
    """The splits of a benchmark on whose lattice a printed score lies."""
    sizes = {name: split.items for name, split in BENCHMARKS[metric].items()}
    return {name for name, items in sizes.items() if hits(value, items, runs) is not None}


def fewest_runs(value: float, metric: str) -> int | None:
    """1 if one run can have printed the score, else 3 if the mean of three can, else None."""
    return next((runs for runs in (1, SEEDS) if splits(value, metric, runs)), None)


def split_of(value: float, metric: str) -> str:
    """The split that a printed score was made on, by the fewest runs that fit.

    Returns:
        Its name; ``either`` where both fit, ``unknown`` where neither does. A benchmark with one
        split was scored on that one.
    """
    if len(BENCHMARKS[metric]) == 1:
        return next(iter(BENCHMARKS[metric]))
    runs = fewest_runs(value, metric)
    found = splits(value, metric, runs) if runs else set()
    return found.pop() if len(found) == 1 else EITHER if found else UNKNOWN


@cache
def evidence() -> pd.DataFrame:
    """One line per printed score and split: the k that gives it.

    Returns:
        Columns of ``KEYS``, method, metric, value, split, items, k (of one run), k_of_three (of the
        mean of three runs), fits (what :func:`split_of` says of the score).
    """
    scores = printed()[printed()["metric"].isin(BENCHMARKS)]
    lines = [
        {name: line[name] for name in (*KEYS, "method", "metric", "value")}
        | {
            "split": name,
            "items": split.items,
            "k": hits(line["value"], split.items),
            "k_of_three": hits(line["value"], split.items, SEEDS),
            "fits": split_of(line["value"], line["metric"]),
        }
        for line in scores.to_dict("records")
        for name, split in BENCHMARKS[line["metric"]].items()
    ]
    return pd.DataFrame(lines).astype({"k": "Int64", "k_of_three": "Int64"})


def chance_single(metric: str) -> float:
    """Share of three-run means that are printed as a single run could be; largest split."""
    items = max(split.items for split in BENCHMARKS[metric].values())
    means = np.round(100 * np.arange(SEEDS * items + 1) / (SEEDS * items), 2)
    return float(np.mean([hits(value, items) is not None for value in means.tolist()]))
