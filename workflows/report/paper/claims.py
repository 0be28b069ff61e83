"""What the paper says of its tables, held against them."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

from workflows.report.paper.audit import EIGHT, FORTY, Finding, arc_of, listed, scores_of, table
from workflows.report.paper.printed import (
    ABLATION,
    AVERAGE,
    MAIN,
    MEMORY,
    REFERENCES,
    RETAIN,
    SKIP,
    SWEEP,
    Group,
    groups,
    numbers_of,
)

HERO = "HeRo"
BESIDE = [HERO, "Dense", "LoRA"]


def claims() -> list[Finding]:
    """One finding per statement."""
    return [
        _leads(EIGHT),
        _leads(FORTY),
        _baselines(),
        _history(),
        _full_model(),
        _ablated_skips(),
        _sweep(),
        _memory(),
        _budgets(),
        _noise(),
    ]


def margins(group: Group) -> dict[str, float]:
    """HeRo's lead over the best baseline per benchmark, in points; negative where it is behind."""
    own = scores_of(group, HERO)
    others = [scores_of(group, method) for method in baselines(group)]
    return {task: score - max(other[task] for other in others) for task, score in own.items()}


def baselines(group: Group) -> list[str]:
    """The methods of a group that compete with HeRo."""
    return [method for method in numbers_of(group) if method not in BESIDE]


def column(group: Group, metric: str) -> dict[str, float]:
    """Method -> printed number."""
    return {method: line[metric] for method, line in numbers_of(group).items()}


def spread(values: Mapping[str, float]) -> float:
    """The largest less the smallest."""
    return max(values.values()) - min(values.values())


def _leads(group: Group) -> Finding:
    found = margins(group)
    ahead = {task: points for task, points in found.items() if points > 0}
    closest = min(ahead, key=lambda task: ahead[task])
    behind = [f"{task} ({points:+.2f})" for task, points in found.items() if task not in ahead]
    return Finding(
        f"HeRo leads at {group.percent:g} %",
        f"On {group.place} HeRo leads all baselines on {len(ahead)} of {len(found)} benchmarks; "
        f"the smallest lead is {ahead[closest]:.2f} points ({closest}), behind: {listed(behind)}.",
    )


def _baselines() -> Finding:
    told = [f"{len(baselines(g))} on {g.place}" for g in groups() if g.table == MAIN]
    return Finding(
        "All ten baselines",
        "'Consistently outperformed all 10 baselines' across three backbones: the table has "
        f"{listed(told)}.",
    )


def _history() -> Finding:
    full, without = (scores_of(table(ABLATION), method) for method in (HERO, "w/o History"))
    change = {task: without[task] - score for task, score in full.items()}
    rise = [f"{task} {points:+.2f}" for task, points in change.items() if points > 0]
    fall = sum(points < 0 for points in change.values())
    return Finding(
        "Removing history",
        f"'Consistently degrades performance': {fall} of {len(change)} benchmarks fall, "
        f"{len(rise)} rise ({listed(rise)}).",
    )


def _full_model() -> Finding:
    group = table(ABLATION)
    columns = {task: column(group, task) for task in scores_of(group, HERO)}
    lowest = [task for task, of in columns.items() if min(of, key=lambda m: of[m]) == HERO]
    kept = column(group, RETAIN)
    place = "the highest" if max(kept, key=lambda m: kept[m]) == HERO else "not the highest"
    return Finding(
        "The full model is best",
        f"Its Retain is {place} of its ablation table, its score the lowest of all rows on "
        f"{listed(lowest)}.",
    )


def _ablated_skips() -> Finding:
    skips = column(table(ABLATION), SKIP)
    less = [f"{name} {skip:.2f}" for name, skip in skips.items() if skip < skips[HERO]]
    more = [f"{name} {skip:.2f}" for name, skip in skips.items() if skip > skips[HERO]]
    return Finding(
        "Ablations and skip",
        f"Against {skips[HERO]:.2f} % of the full HeRo, {listed(less)} skip less and "
        f"{listed(more)} more.",
    )


def _sweep() -> Finding:
    group, last = table(SWEEP), REFERENCES[SWEEP]
    kept = column(group, RETAIN)  # in the order of rising alpha
    values, others = list(kept.values()), [method for method in kept if method != last]
    falls = all(later < before for before, later in pairwise(values))
    own, main = numbers_of(group)[last], numbers_of(EIGHT)[HERO]
    same = all(own[name] == main[name] for name in own if name != RETAIN)
    return Finding(
        "Sweep of alpha",
        f"Retain varies by {spread(kept):.2f} points and "
        f"{'falls' if falls else 'does not fall steadily'} as alpha rises "
        f"({', '.join(f'{value:.2f}' for value in values)}); the row at 1e-3 is "
        f"{'' if same else 'not '}the row of the main table again and fits the "
        f"{arc_of(group, last)} of ARC, the others the {arc_of(group, *others)}.",
    )


def _memory() -> Finding:
    group, own = table(MEMORY), REFERENCES[MEMORY]
    kept, mean = column(group, RETAIN), column(group, AVERAGE)
    orders = [sorted(of, key=lambda m: of[m]) for of in (kept, mean)]
    return Finding(
        "Width of the memory",
        f"Retain varies by {spread(kept):.2f} points and the mean score by {spread(mean):.2f}, in "
        f"{'the same' if orders[0] == orders[1] else 'another'} order; the paper's own width "
        f"({own}) has {'the lowest' if orders[0][0] == own else 'not the lowest'} Retain.",
    )


def _budgets() -> Finding:
    told = []
    for group in (group for group in groups() if group.table == MAIN):
        skips = column(group, SKIP)
        others = [skips[method] for method in baselines(group)]
        told.append(
            f"{skips[HERO]:.2f} % beside {min(others):.1f} to {max(others):.1f} % on {group.place}"
        )
    return Finding("Matched budgets", f"HeRo skips {listed(told)}.")


def _noise() -> Finding:
    at = [numbers_of(group)["MoD-D"][RETAIN] for group in (EIGHT, FORTY)]
    return Finding(
        "MoD-D",
        f"It is {'better' if at[1] > at[0] else 'worse'} at 40 % ({at[1]:.2f}) than at 25 % "
        f"({at[0]:.2f}) on {EIGHT.backbone}.",
    )
