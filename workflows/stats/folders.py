"""Two results folders side by side: the same lines, the same items, other code or machines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

import numpy as np
import pandas as pd

from workflows.stats.comparable import SAME_DOCUMENTS, SAME_HEADLINE, score_difference
from workflows.stats.distances import scale_of
from workflows.stats.lines import Line, Panel
from workflows.stats.resample import RETAIN
from workflows.stats.sampling import difference, interval, paired_difference
from workflows.stats.versus import test_columns


def comparison_frame(first: Sequence[Panel], second: Sequence[Panel]) -> pd.DataFrame:
    """Every line of either folder, on Retain, each task, KL and agreement, in the shared panels.

    Each folder's Retain refers to its own reference. Lines with the same seeds are paired by seed.
    KL and agreement are there if both folders have them.

    Returns:
        Columns backbone, target, match, row, title, measure, a, a_low, a_high, b, b_low, b_high
        (percent, KL in nats, 95 %), difference, low, high (b - a, points or nats), won, lost, test,
        p. Where one folder lacks a line, its columns are empty.

    Raises:
        ValueError: No backbone and protocol are shared, or a score or KL measures different things
            in the two folders.
    """
    lines = [line for one, two in shared_panels(first, second) for line in _lines(one, two)]
    columns = (
        "backbone target match row title measure a a_low a_high b b_low b_high difference low high "
        "won lost test p"
    ).split()
    return pd.DataFrame(lines, columns=columns)


def _lines(one: Panel, two: Panel) -> Iterator[dict[str, Any]]:
    """The lines of one panel."""
    _check(one, two)
    mine, theirs = ({line.name: line for line in panel.done} for panel in (one, two))
    distances = [measure for measure in one.distances if measure in two.distances]
    for name, measure in product(dict.fromkeys([*mine, *theirs]), [*one.samples, *distances]):
        columns = _line(one, mine.get(name), measure, "a")
        columns |= _line(two, theirs.get(name), measure, "b")
        if "a" in columns and "b" in columns:
            columns |= _difference(one, mine[name], two, theirs[name], measure)
        if columns:
            yield columns


def shared_panels(first: Sequence[Panel], second: Sequence[Panel]) -> list[tuple[Panel, Panel]]:
    """Panels of one backbone and one protocol."""
    mine, theirs = ({panel.name: panel for panel in folder} for folder in (first, second))
    pairs = [(panel, theirs[name]) for name, panel in mine.items() if name in theirs]
    if not pairs:
        raise ValueError(
            f"no backbone and protocol in common: {', '.join(mine)} and {', '.join(theirs)}"
        )
    return pairs


def _check(one: Panel, two: Panel) -> None:
    """Refuse two panels whose scores measure different things."""
    for what, mine, theirs in (
        ("score different tasks", *([t for t in p.samples if t != RETAIN] for p in (one, two))),
        ("have other tasks of the Retain", one.retain_tasks, two.retain_tasks),
        ("have other tasks of the measures beside it", one.measure_tasks, two.measure_tasks),
    ):
        if set(mine) != set(theirs):
            raise ValueError(f"the folders {what}: {', '.join(mine)} and {', '.join(theirs)}")
    first, second = (panel.reference.first for panel in (one, two))
    heads, others = first.headlines, second.headlines
    scores = {(s.task, s.metric, s.filter): s for s in first.scores}
    differences = [
        score_difference(heads[task], others[task], SAME_HEADLINE)
        for task in one.samples
        if task in heads
    ]
    for score in second.scores:
        other = scores.get((score.task, score.metric, score.filter), score)
        differences.append(score_difference(other, score))
        if None not in (other.doc_hash, score.doc_hash):
            differences.append(score_difference(other, score, SAME_DOCUMENTS))
    if words := next(filter(None, differences), None):
        raise ValueError(f"the folders were scored {words}")
    texts = [panel.texts for panel in (one, two)]
    if None not in texts and texts[0] != texts[1]:
        raise ValueError("the folders measured KL on different texts (data.fidelity)")


def _line(panel: Panel, line: Line | None, measure: str, side: str) -> dict[str, Any]:
    """One side of a line."""
    if line is None:
        return {}
    sample = panel.sample(line, measure)
    if sample is None:
        return {}
    low, high = interval(sample.draws)
    values = {side: sample.value, f"{side}_low": low, f"{side}_high": high}
    scaled = {name: scale_of(measure) * value for name, value in values.items()}
    return line.labels | {"measure": measure} | scaled


def _difference(one: Panel, mine: Line, two: Panel, theirs: Line, measure: str) -> dict[str, Any]:
    """``theirs`` - ``mine``."""
    before, after = one.sample(mine, measure), two.sample(theirs, measure)
    assert before is not None
    assert after is not None
    scale = scale_of(measure)
    seeds = [[record.seed for record in line.records] for line in (mine, theirs)]
    draws = (paired_difference if seeds[0] == seeds[1] else difference)(before, after)
    low, high = interval(draws)
    return {
        "difference": scale * (after.value - before.value),
        "low": scale * low,
        "high": scale * high,
        **test_columns(theirs, mine, measure, draws),
    }


def equality_frame(first: Sequence[Panel], second: Sequence[Panel]) -> pd.DataFrame:
    """How many runs of both folders are equal, for rows that train and for the others.

    Returns:
        Columns rows ("trained", "untrained"), runs, weights (how many have one hash of weights),
        items (how many have every item scored alike), retain (largest difference of Retain,
        points).
    """
    runs = [run for pair in shared_panels(first, second) for run in _shared_runs(*pair)]
    frame = pd.DataFrame(runs, columns=["key", "rows", "weights", "items", "retain"])
    # A run without a protocol is in the panels of all protocols.
    counts = (
        frame.drop_duplicates("key")
        .groupby("rows")
        .agg(
            runs=("key", "size"),
            weights=("weights", "sum"),
            items=("items", "sum"),
            retain=("retain", "max"),
        )
    )
    return counts.reset_index()


def _shared_runs(one: Panel, two: Panel) -> Iterator[dict[str, Any]]:
    """Every run that is in both panels: its key, whether it trains, and what is equal."""
    mine, theirs = (
        {(line.name, record.seed): (record, run) for line in p.done for record, run in line.pairs}
        for p in (one, two)
    )
    for key in (key for key in mine if key in theirs):
        (record, run), (twin, again) = mine[key], theirs[key]
        trains = record.fit is not None and record.fit.trained_parameters > 0
        yield {
            "key": (one.reference.backbone, record.match, *key),
            "rows": "trained" if trains else "untrained",
            "weights": record.weights_hash == twin.weights_hash,
            "items": all(np.array_equal(run[task], again[task]) for task in run),
            "retain": abs(two.retain(again) - one.retain(run)),
        }
