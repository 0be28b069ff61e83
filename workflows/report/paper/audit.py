"""The paper's tables held against themselves: every finding is computed from hero_tables.csv."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from workflows.report.paper.lattice import (
    EITHER,
    HALF,
    UNKNOWN,
    chance_single,
    fewest_runs,
    hits,
    split_of,
)
from workflows.report.paper.printed import (
    ABLATION,
    ARC,
    BENCHMARKS,
    KEYS,
    MAIN,
    MEMORY,
    REFERENCES,
    RETAIN,
    SEEDS,
    SEVEN,
    SKIP,
    SWEEP,
    Group,
    benchmarks_of,
    groups,
    model_of,
    numbers_of,
    of_group,
)
from workflows.stats.retain import retain

EIGHT, FORTY = Group(MAIN, "Llama-3.1-8B", "25%"), Group(MAIN, "Llama-3.1-8B", "40%")
# Routed blocks of HeRo: the latter half, at 40 % the latter three quarters.
ROUTED = {"25%": 1 / 2, "40%": 3 / 4}


class Finding(NamedTuple):
    """What a computation on the printed numbers says.

    Args:
        name: Of the subject.
        sentence: For a reader.
    """

    name: str
    sentence: str


@cache
def retains() -> pd.DataFrame:
    """Every printed Retain beside the one that its printed scores give.

    Returns:
        Columns of ``KEYS``, method, printed, recomputed (mean of ratios), of_means (ratio of
        means), difference (printed - recomputed) and bound: the most that rounding of the scores,
        of the reference's and of the Retain itself can make of it. All in percent.
    """
    lines = []
    for group in (group for group in groups() if group.table != MEMORY):
        base = scores_of(group, REFERENCES[group.table])
        for method, line in numbers_of(group).items():
            own = scores_of(group, method)
            found = 100 * float(retain(own, base))
            rounded = [HALF * (1 + own[task] / base[task]) / base[task] for task in base]
            lines.append(
                group.labels
                | {
                    "method": method,
                    "printed": line[RETAIN],
                    "recomputed": found,
                    "of_means": 100 * sum(own.values()) / sum(base.values()),
                    "difference": line[RETAIN] - found,
                    "bound": 100 * float(np.mean(rounded)) + HALF,
                }
            )
    return pd.DataFrame(lines)


@cache
def origins() -> pd.DataFrame:
    """Where each printed score can come from.

    Returns:
        Columns of ``KEYS``, method, metric, value, split (see ``split_of``), runs (the fewest that
        fit; empty where none do).
    """
    lines: list[dict[str, Any]] = [
        group.labels
        | {
            "method": method,
            "metric": metric,
            "value": line[metric],
            "split": split_of(line[metric], metric),
            "runs": fewest_runs(line[metric], metric),
        }
        for group in groups()
        for method, line in numbers_of(group).items()
        for metric in line
        if metric in BENCHMARKS
    ]
    return pd.DataFrame(lines).astype({"runs": "Int64"})


@cache
def bypassed() -> pd.DataFrame:
    """What HeRo's printed skips ask of its router.

    A bypassed FFN saves 3 D F parameters, so that all routed blocks bypassed give the ceiling.

    Returns:
        Columns of ``KEYS``, method, printed, blocks (routed), ceiling (percent of the dense
        parameters), rate (share of the routed blocks that a token bypasses in the mean).
    """
    lines = []
    for group in groups():
        model = model_of(group.backbone)
        blocks = round(model.layers * ROUTED[group.target])
        ceiling = 100 * blocks * 3 * model.width * model.channels / model.parameters
        rows = ["HeRo"] if group.table == MAIN else numbers_of(group)
        for method in rows:
            skip = numbers_of(group)[method][SKIP]
            lines.append(
                group.labels
                | {"method": method, "printed": skip, "blocks": blocks}
                | {"ceiling": ceiling, "rate": skip / ceiling}
            )
    return pd.DataFrame(lines)


def without_arc(group: Group, method: str) -> float:
    """Retain over the benchmarks that have one split, from the printed scores; in percent."""
    rows = (method, REFERENCES[group.table])
    own, base = (
        {task: score for task, score in scores_of(group, row).items() if task not in ARC}
        for row in rows
    )
    return 100 * float(retain(own, base))


def scores_of(group: Group, method: str) -> dict[str, float]:
    """Benchmark -> printed score."""
    line = numbers_of(group)[method]
    return {task: line[task] for task in benchmarks_of(group)}


def findings() -> list[Finding]:
    """All findings on how the numbers were made; those on what is said of them are in claims.py."""
    return [
        _recomputed(),
        _mean_of_ratios(),
        *_arc(),
        _headline(),
        _off_every_lattice(),
        _single_runs(),
        _skips(),
    ]


def _recomputed() -> Finding:
    frame = retains()
    far = frame[frame["difference"].abs() > frame["bound"]]
    told = [
        f"{line['method']} on {place_of(line)} (printed "
        f"{line['printed']:.2f}, recomputed {line['recomputed']:.3f})"
        for line in far.to_dict("records")
    ]
    return Finding(
        "Retain recomputed",
        f"Of {len(frame)} printed Retains with scores, {len(frame) - len(far)} follow from the "
        f"printed scores within rounding; {len(far)} do not: {listed(told)}. A mean over seeds "
        "cannot explain that: the mean of ratios is linear in the scores.",
    )


def _mean_of_ratios() -> Finding:
    frame = retains()
    ratios, means = (
        (frame["printed"] - frame[name]).abs().max() for name in ("recomputed", "of_means")
    )
    return Finding(
        "Mean of ratios",
        f"Retain is a mean of ratios (largest difference {ratios:.3f}), not a ratio of means "
        f"(largest difference {means:.2f}).",
    )


def arc_of(group: Group, *methods: str) -> str:
    """The splits of ARC that rows of a group fit, as words; a score that fits both says nothing."""
    own = of_group(origins(), group)
    own = own[own["method"].isin(methods) & own["metric"].isin(ARC)]
    found = sorted(set(own["split"]) - {EITHER})
    return f"{listed(found)} split{'s' if len(own) > 1 else ''}"


def _arc() -> list[Finding]:
    """Which rows fit which split of ARC."""
    arc = origins()[origins()["metric"].isin(ARC)]
    main, competing = arc["table"] == MAIN, ~arc["method"].isin(["Dense", "LoRA", "HeRo"])
    told = []
    for metric, value in scores_of(EIGHT, "Dense").items():
        if metric not in ARC:
            continue
        test, validation = (BENCHMARKS[metric][name].items for name in ("test", "validation"))
        of = {f"{items:,}": hits(value, items) for items in (validation, test)}
        words = [f"{k}/{n}" if k else f"no k/{n}" for n, k in of.items()]
        told.append(f"{metric} {value:.2f} is {' and '.join(words)}")
    mixed = [
        f"{method} on {Group(*key).place} ({listed([' '.join(pair) for pair in own])})"
        for (*key, method), part in arc[main].groupby([*KEYS, "method"], sort=False)
        if {"test", "validation"} <= set(part["split"])
        and (own := part[["metric", "split"]].to_numpy().tolist())
    ]
    variants = arc[arc["table"].isin([SWEEP, ABLATION])]
    variants = variants[variants["method"] != variants["table"].map(REFERENCES)]
    return [
        Finding(
            "ARC of the dense Llama-3.1-8B",
            f"It fits the {arc_of(EIGHT, 'Dense')}: {listed(told)}.",
        ),
        Finding(
            "ARC of HeRo and the baselines",
            f"On Llama-3.1-8B HeRo's main row fits the {arc_of(EIGHT, 'HeRo')}, dense, by whose "
            f"scores it is divided, the {arc_of(EIGHT, 'Dense')}. Of the baselines' "
            f"{_counted(arc[main & competing])}.",
        ),
        Finding(
            "ARC of sweep and ablations",
            f"Of the {_counted(variants)}; the full HeRo beside them fits the "
            f"{arc_of(table(ABLATION), 'HeRo')}.",
        ),
        Finding("Rows of two splits of ARC", f"They are {listed(mixed)}."),
    ]


def _counted(arc: pd.DataFrame) -> str:
    """How many scores of ARC fit which split."""
    of = arc["split"].value_counts()
    told = [f"{of.get(name, 0)} fit the {name} split" for name in ("test", "validation")]
    rest = f"{of.get(EITHER, 0)} fit both and {of.get(UNKNOWN, 0)} fit neither"
    return f"{len(arc)} scores {', '.join(told)}, {rest}"


def _headline() -> Finding:
    hero, dense = (numbers_of(EIGHT)[name] for name in ("HeRo", "Dense"))
    items = BENCHMARKS[ARC[1]]["validation"].items
    share = dense[ARC[1]] / 100
    error = 100 * float(np.sqrt(share * (1 - share) / items))
    (line,) = [r for r in of_group(retains(), EIGHT).to_dict("records") if r["method"] == "HeRo"]
    return Finding(
        "The headline",
        f"HeRo skips {hero[SKIP]:.2f} % at a Retain of {line['printed']:.2f} (recomputed "
        f"{line['recomputed']:.3f}) with ARC of the {arc_of(EIGHT, 'HeRo')} over that of the "
        f"{arc_of(EIGHT, 'Dense')}; over the other benchmarks its printed scores give "
        f"{without_arc(EIGHT, 'HeRo'):.2f}. Dense's {ARC[1]} rests on {items} "
        f"items, a standard error of {error:.1f} points.",
    )


def _off_every_lattice() -> Finding:
    off = origins()[origins()["runs"].isna()]
    off = off[off["table"] == MAIN]
    told = [
        f"{line['method']} on {place_of(line)}: {line['metric']} {line['value']:.2f}"
        for line in off.to_dict("records")
    ]
    return Finding(
        "On no lattice",
        f"{len(off)} scores of the main table are neither k/n of one run nor of the mean of "
        f"{SEEDS}, on any split: {listed(told, '; ')}.",
    )


def _single_runs() -> Finding:
    frame = origins()[origins()["table"].isin([SWEEP, ABLATION])]
    most = frame.groupby(["table", "method"], sort=False)["runs"].max().reset_index()
    single = most[most["runs"] == 1]["method"].tolist()
    coarse = [name for name in SEVEN if chance_single(name) < 1 / 2]
    rows = [method for method in single if method in numbers_of(table(SWEEP))]
    chance = float(np.prod([chance_single(name) for name in coarse])) ** len(rows)
    return Finding(
        "Single runs",
        f"{listed(single)}: every score is one that a single run gives. Of the sweep, whose "
        f"caption says means over {SEEDS} seeds, that would happen to means of {SEEDS} runs with a "
        f"probability of {chance:.0e}.",
    )


def table(name: str) -> Group:
    """The first group of a table; all but the main one have one group."""
    return next(group for group in groups() if group.table == name)


def _skips() -> Finding:
    told = bypassed().drop_duplicates([*KEYS[1:], "printed"])
    main = told[told["table"] == MAIN]
    rates = [
        f"{line['printed']:.2f} % on {line['backbone']} is {100 * line['rate']:.1f} % of "
        f"{line['blocks']} FFNs (ceiling {line['ceiling']:.2f} %)"
        for line in main.to_dict("records")
    ]
    ceiling = of_group(main, EIGHT)["ceiling"].max()
    wanted = numbers_of(FORTY)["HeRo"][SKIP]
    words = "is not reachable" if wanted > ceiling else "is reachable"
    reached = int((told["rate"] <= 1).sum())
    return Finding(
        "Parameter skip",
        f"{reached} of HeRo's {len(told)} printed skips are reachable with bypassed FFNs alone; "
        f"those of the main table: {listed(rates)}. "
        f"{wanted:.2f} % {words} with the blocks of the 25 % row.",
    )


def place_of(line: Mapping[Any, Any]) -> str:
    """Backbone and target of a line of a frame."""
    return Group(*(line[name] for name in KEYS)).place


def listed(words: list[str], sign: str = ", ") -> str:
    """``a, b and c``; with another sign no ``and``."""
    if len(words) < 2 or sign != ", ":
        return sign.join(words) or "none"
    return f"{', '.join(words[:-1])} and {words[-1]}"
