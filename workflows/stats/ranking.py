"""Which row is best at a target, which is second, and which are tied with the best."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from workflows.stats.lines import Line, Panel
from workflows.stats.resample import RETAIN, difference, interval

DIGITS = 2


@dataclass(frozen=True)
class Mark:
    """How a number is printed: ``place`` 1 is bold, 2 underlined; ``tied``: with the best."""

    place: int = 0
    tied: bool = False


def places(values: Sequence[float], lower_is_better: bool = False) -> list[int]:
    """1 for the best of a column, 2 for the second, else 0, by the printed digits.

    Equal printed numbers share a place; the second is the next smaller printed number.

    Args:
        values: One number per competitor; NaN never gets a place.
        lower_is_better: Whether the smallest is best.
    """
    rounded = np.round(np.asarray(values, dtype=np.float64), DIGITS)
    order = np.unique(rounded[~np.isnan(rounded)])
    best = [float(value) for value in (order if lower_is_better else order[::-1])[:2]]
    return [best.index(value) + 1 if value in best else 0 for value in rounded.tolist()]


def fields(panel: Panel) -> list[list[Line]]:
    """The lines that compete, per target: finished rows with a budget, no references."""
    groups: dict[float, list[Line]] = {}
    for line in panel.done:
        if line.budget is not None and line.first.kind != "reference":
            groups.setdefault(line.budget, []).append(line)
    return list(groups.values())


def marks(panel: Panel) -> dict[tuple[str, str], Mark]:
    """(line, measure) -> its mark, for Retain and every task.

    A headline metric whose lower values are better, such as perplexity, is no mean over items. It
    has no draws, so no row is tied in it.
    """
    marks_of = {}
    heads = panel.reference.first.headlines
    perplexities = [task for task, score in heads.items() if not score.higher_is_better]
    for field in fields(panel):
        for measure, samples in panel.samples.items():
            values = [100 * samples[line.name].value for line in field]
            best = samples[field[int(np.argmax(values))].name]
            for line, place in zip(field, places(values), strict=True):
                apart = difference(samples[line.name], best)
                tied = place != 1 and interval(apart)[0] <= 0
                marks_of[line.name, measure] = Mark(place, tied)
        for task in perplexities:
            values = [_mean_score(line, task) for line in field]
            for line, place in zip(field, places(values, lower_is_better=True), strict=True):
                marks_of[line.name, task] = Mark(place)
    return marks_of


def _mean_score(line: Line, task: str) -> float:
    """Mean of a line's headline metric of a task over seeds."""
    headlines = [record.headlines for record in line.records]
    values = [heads[task].value for heads in headlines if task in heads]
    return float(np.mean(values)) if values else float("nan")


def rank_frame(panels: Sequence[Panel]) -> pd.DataFrame:
    """Rank by Retain among the rows of one backbone, protocol and target, with its 95 % interval.

    Columns: backbone, target, match, row, title, retain, retain_low, retain_high (percent), rank,
    rank_low, rank_high, first (share of resamples in which the row leads, percent), behind,
    behind_low, behind_high (points to the best row), tied (whether that interval reaches zero),
    one_seed (whether that interval covers items only, because one of the two rows has one seed).
    """
    lines = [line for panel in panels for field in fields(panel) for line in _ranks(panel, field)]
    columns = (
        "backbone target match row title retain retain_low retain_high rank rank_low rank_high "
        "first behind behind_low behind_high tied one_seed"
    ).split()
    return pd.DataFrame(lines, columns=columns)


def _ranks(panel: Panel, field: Sequence[Line]) -> Iterator[dict[str, Any]]:
    """The lines of one field."""
    samples = [panel.samples[RETAIN][line.name] for line in field]
    values = np.array([sample.value for sample in samples])
    ranks = stats.rankdata(-values, method="min")
    rank_draws = stats.rankdata([-sample.draws for sample in samples], method="min", axis=0)
    best = int(np.argmax(values))
    for number, (line, sample) in enumerate(zip(field, samples, strict=True)):
        apart = difference(sample, samples[best]) if number != best else np.zeros(1)
        (low, high), behind = interval(sample.draws), interval(apart)
        place = np.quantile(rank_draws[number], [0.025, 0.975], method="nearest")
        yield line.labels | {
            "retain": 100 * sample.value,
            "retain_low": 100 * low,
            "retain_high": 100 * high,
            "rank": int(ranks[number]),
            "rank_low": int(place[0]),
            "rank_high": int(place[1]),
            "first": 100 * float((rank_draws[number] == 1).mean()),
            "behind": 100 * float(values[best] - sample.value),
            "behind_low": 100 * behind[0],
            "behind_high": 100 * behind[1],
            "tied": number != best and behind[0] <= 0,
            "one_seed": line.one_seed or field[best].one_seed,
        }
