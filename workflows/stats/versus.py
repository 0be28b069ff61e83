"""Differences of rows on the same items."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

import numpy as np
import pandas as pd

from workflows.stats.distances import MEASURES, SCALES, scale_of
from workflows.stats.lines import Line, Panel
from workflows.stats.paired import holm, items_needed, mcnemar, sign_share
from workflows.stats.resample import RETAIN, Run
from workflows.stats.retain import Floats
from workflows.stats.sampling import difference, interval, items_only


def difference_frame(panels: Sequence[Panel], focus: str | None) -> pd.DataFrame:
    """Every row against the reference and against the row in focus, on Retain and on each task.

    Against the row in focus on every measure beside Retain too; against the reference these are in
    :func:`workflows.stats.frames.measure_frame`.

    Args:
        panels: What is compared.
        focus: Name of a row; None, or no row of a panel: the reference alone.

    Columns: backbone, target, match, row, title, against, measure, items, difference, low, high
    (points, of KL nats per token; 95 %), one_seed (whether that interval covers no seeds of a row
    that has one, since the other tells nothing of seeds), won and lost (items, summed over seeds),
    test, p, p_holm (over the rows of one backbone, target, protocol, opponent and measure),
    items_needed (to see one point). Of KL and agreement, ``items`` are texts and ``items_needed``
    is empty.
    """
    lines = [
        _difference(panel, line, other, measure)
        for panel in panels
        for line, other in _pairs(panel, focus)
        for measure in _measures(panel, line, other)
    ]
    columns = (
        "backbone target match row title against measure items difference low high one_seed "
        "won lost test p p_holm items_needed"
    ).split()
    frame = pd.DataFrame(lines, columns=columns)
    family = ["backbone", "target", "match", "against", "measure"]
    p = frame.groupby(family, dropna=False)["p"]
    return frame.assign(p_holm=p.transform(lambda p: holm(p.to_numpy())))


def differences_of(line: Line, panel: Panel, focus: str | None) -> pd.DataFrame:
    """The lines of :func:`difference_frame` of one line; a row may have several at one target."""
    frame = difference_frame([panel], focus)
    pairs = _pairs(panel, focus)
    owners = [one for one, other in pairs for _ in _measures(panel, one, other)]
    return frame[[one is line for one in owners]]


def _pairs(panel: Panel, focus: str | None) -> Iterator[tuple[Line, Line]]:
    """Each line with the reference, and with the row in focus at its target.

    A row in focus meets a line with its own at the same target, else with the one without a target;
    references meet it at every target.
    """
    others = [line for line in panel.done if line is not panel.reference]
    yield from ((line, panel.reference) for line in others)
    rivals = [line for line in others if line.row == focus]
    for line in others:
        at = [one for one in rivals if one.budget == line.budget]
        at = at or [one for one in rivals if one.budget is None]
        if line.first.kind == "reference":
            at = rivals
        yield from ((line, other) for other in at if other is not line)


def _measures(panel: Panel, line: Line, other: Line) -> list[str]:
    """What a pair is compared by."""
    beside = {} if other is panel.reference else panel.beside
    both = {line.name, other.name}
    return [*panel.samples, *(name for name, by_line in beside.items() if both <= set(by_line))]


def _difference(panel: Panel, line: Line, other: Line, measure: str) -> dict[str, Any]:
    """One line of the frame; ``line`` - ``other``."""
    by_line = panel.by_measure[measure]
    mine, theirs = (by_line[part.name] for part in (line, other))
    draws = difference(theirs, mine)
    low, high = interval(draws)
    scale = scale_of(measure)
    items = _items(panel, line, measure)
    error = 0.0 if measure in SCALES else float(np.std((mine.error - theirs.error).by_items))
    target = other.budget if line.budget is None else line.budget
    return line.labels | {
        "target": None if target is None else 100 * target,
        "against": other.row,
        "measure": measure,
        "items": items,
        "difference": scale * (mine.value - theirs.value),
        "low": scale * low,
        "high": scale * high,
        "one_seed": items_only(mine, theirs),
        **test_columns(line, other, measure, draws),
        "items_needed": items_needed(error, items) if error > 0 else None,
    }


def _items(panel: Panel, line: Line, measure: str) -> int:
    """Items of the tasks of a measure, or texts."""
    if measure in SCALES:
        fidelities = (record.fidelity for record in line.records)
        kind, _ = MEASURES[measure]
        return next(len(one.distances[kind].tokens) for one in fidelities if one is not None)
    tasks = {RETAIN: panel.retain_tasks, **panel.measures.tasks}.get(measure, [measure])
    return sum(len(line.runs[0][task]) for task in tasks)


def test_columns(line: Line, other: Line, measure: str, draws: Floats) -> dict[str, Any]:
    """Columns won, lost, test, p of one measure.

    McNemar's exact test covers items only. It is used for two single runs whose items are right or
    wrong. All else is tested by the draws, which cover seeds as well. Won and lost are sums over
    seeds; a row with a single run is paired with every seed of the other.
    """
    runs = [*line.runs, *other.runs]
    if not all(measure in run and np.isin(run[measure], (0.0, 1.0)).all() for run in runs):
        return {"won": None, "lost": None, "test": "bootstrap", "p": sign_share(draws)}
    pairs = seed_pairs(line, other)
    won = sum(int((mine[measure] > theirs[measure]).sum()) for mine, theirs in pairs)
    lost = sum(int((mine[measure] < theirs[measure]).sum()) for mine, theirs in pairs)
    single = len(runs) == 2
    test, p = ("McNemar", mcnemar(won, lost)) if single else ("bootstrap", sign_share(draws))
    return {"won": won, "lost": lost, "test": test, "p": p}


def seed_pairs(line: Line, other: Line) -> list[tuple[Run, Run]]:
    """Pairs of runs of two lines: by seed, or each with each where no seeds are shared."""
    mine, theirs = (
        {record.seed: run for record, run in part} for part in (line.pairs, other.pairs)
    )
    common = [seed for seed in mine if seed in theirs]
    if len(mine) > 1 and len(theirs) > 1 and common:
        return [(mine[seed], theirs[seed]) for seed in common]
    return list(product(mine.values(), theirs.values()))
