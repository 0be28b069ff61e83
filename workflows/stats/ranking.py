"""Which row is best at a target, which is second, and which are tied with the best."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from workflows.stats.lines import Line, Panel
from workflows.stats.measures import ABOVE
from workflows.stats.resample import RETAIN
from workflows.stats.sampling import Sample, difference, interval, items_only

DIGITS = 2
# What the frame of ranks says of a row by one measure, and its columns by Retain and Above chance.
PLACE = (
    "value", "low", "high", "rank", "rank_low", "rank_high", "first", "behind", "behind_low",
    "behind_high", "tied", "one_seed",
)  # fmt: skip
RETAIN_COLUMNS = dict(zip(PLACE, (RETAIN, "retain_low", "retain_high", *PLACE[3:]), strict=True))
ABOVE_COLUMNS = {name: f"above_{name}" for name in PLACE} | {"value": ABOVE}


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
    """Rank by Retain, and by Above chance, among the rows of one backbone, protocol and target.

    Columns: backbone, target, match, row, title, retain, retain_low, retain_high (percent, 95 %
    interval), rank, rank_low, rank_high, first (share of resamples in which the row leads,
    percent), behind, behind_low, behind_high (points to the best row), tied (whether that interval
    reaches zero), one_seed (whether that interval covers no seeds of a row that has one, since the
    other tells nothing of seeds). The same by Above chance, from above_chance and above_low to
    above_one_seed; empty where a panel lacks that measure. overtakes (titles, split by ``; ``, of
    the rows that lead this one by Retain and that it leads by Above chance, where both intervals of
    the difference leave out zero), overtakes_one_seed (the same of these intervals).
    """
    lines = [line for panel in panels for field in fields(panel) for line in _ranks(panel, field)]
    columns = "backbone target match row title".split()
    for names in (RETAIN_COLUMNS, ABOVE_COLUMNS):
        columns += names.values()
    return pd.DataFrame(lines, columns=[*columns, "overtakes", "overtakes_one_seed"])


def _ranks(panel: Panel, field: Sequence[Line]) -> Iterator[dict[str, Any]]:
    """The lines of one field."""
    kinds = [(panel.samples[RETAIN], RETAIN_COLUMNS)]
    if ABOVE in panel.measures.samples:
        kinds.append((panel.measures.samples[ABOVE], ABOVE_COLUMNS))
    entries = [line.labels for line in field]
    for by_line, names in kinds:
        ranks = _places_of([by_line[line.name] for line in field])
        for entry, place in zip(entries, ranks, strict=True):
            entry |= {names[name]: value for name, value in place.items()}
    for line, entry in zip(field, entries, strict=True):
        below = [other for other in field if _overtakes(panel, line, other)]
        retain = panel.samples[RETAIN]
        yield entry | {
            "overtakes": "; ".join(other.first.title for other in below),
            "overtakes_one_seed": any(
                items_only(retain[line.name], retain[other.name]) for other in below
            ),
        }


def _places_of(samples: Sequence[Sample]) -> Iterator[dict[str, Any]]:
    """The columns of ``PLACE`` of each line, by one measure."""
    values = np.array([sample.value for sample in samples])
    ranks = stats.rankdata(-values, method="min")
    rank_draws = stats.rankdata([-sample.draws for sample in samples], method="min", axis=0)
    best = int(np.argmax(values))
    for number, sample in enumerate(samples):
        apart = difference(sample, samples[best]) if number != best else np.zeros(1)
        (low, high), behind = interval(sample.draws), interval(apart)
        place = np.quantile(rank_draws[number], [0.025, 0.975], method="nearest")
        yield {
            "value": 100 * sample.value,
            "low": 100 * low,
            "high": 100 * high,
            "rank": int(ranks[number]),
            "rank_low": int(place[0]),
            "rank_high": int(place[1]),
            "first": 100 * float((rank_draws[number] == 1).mean()),
            "behind": 100 * float(values[best] - sample.value),
            "behind_low": 100 * behind[0],
            "behind_high": 100 * behind[1],
            "tied": number != best and behind[0] <= 0,
            "one_seed": items_only(sample, samples[best]),
        }


def _overtakes(panel: Panel, line: Line, other: Line) -> bool:
    """Whether a line is surely behind another by Retain and surely ahead of it by Above chance."""
    above = panel.measures.samples.get(ABOVE)
    if above is None:
        return False
    retain = panel.samples[RETAIN]
    pairs = (
        (retain[other.name], retain[line.name]),
        (above[line.name], above[other.name]),
    )
    # Intervals cost most; a field of a hundred rows has thousands of pairs.
    if not all(first.value > second.value for first, second in pairs):
        return False
    return all(_leads(first, second) for first, second in pairs)


def _leads(first: Sample, second: Sample) -> bool:
    """Whether the 95 % interval of ``first`` - ``second`` lies above zero."""
    return interval(difference(second, first))[0] > 0
