"""Records whose scores are the paper's printed ones, or a given number of points beside them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from tests.made_records import panels, record, score
from workflows.report.paper.printed import (
    BENCHMARKS,
    SHOTS,
    SKIP,
    Group,
    families,
    model_of,
    numbers_of,
    of_group,
    printed,
)
from workflows.stats.lines import Panel

STATIC = ("ShortGPT", "Shortened-Taylor", "Shortened-PPL", "SliceGPT", "LLM-Pruner", "LaCo")


def runs_of(
    group: Group,
    shift: float = 0.0,
    both: bool = False,
    family: str = "matched",
    **changes: Any,
) -> Iterator[dict[str, Any]]:
    """Records of a group, one per method and seed.

    Args:
        group: Of the paper.
        shift: Points by which every row but dense lies above the paper.
        both: Whether ARC is scored on its validation splits as well.
        family: Which rows of ours.
        changes: Fields of every record but dense's.
    """
    rows = next(own for own in families(group) if own.name == family).rows
    for method, (row, *_) in rows.items():
        spread = deviations(group, method)
        # A printed deviation is that of three seeds: one below, one above the mean.
        for seed, apart in zip((42, 43, 44), (0, -1, 1) if spread else (0,), strict=False):
            values = {
                name: value + apart * spread.get(name, 0.0) + shift * (method != "Dense")
                for name, value in numbers_of(group)[method].items()
            }
            skip = values[SKIP] - shift * (method != "Dense")
            scores = [one for name in values if name in BENCHMARKS for one in
                      scored(name, values[name], both)]  # fmt: skip
            given = {"seed": seed, "backbone": backbone(group)} | kind_of(group, method, family)
            more = changes if method != "Dense" else {}
            yield record(row, skip / 100, *scores, **(given | more))


def deviations(group: Group, method: str) -> dict[str, float]:
    """Metric -> printed deviation; empty where none is printed."""
    own = of_group(printed(), group)
    own = own[(own["method"] == method) & own["std"].notna()]
    return dict(zip(own["metric"], own["std"], strict=True))


def scored(name: str, value: float, both: bool) -> list[dict[str, Any]]:
    """A benchmark's scores: ARC on its test split, or on both."""
    splits = BENCHMARKS[name]
    wanted = list(splits) if both or len(splits) == 1 else ["test"]
    metric = name.split("(")[1].rstrip(")")
    return [
        score(splits[s].tasks[0], solved(value, splits[s].items), metric, shots=SHOTS[name])
        for s in wanted
    ]


def solved(percent: float, items: int) -> list[float]:
    """As many of the items, the first ones, as give the percentage best."""
    k = min(items, max(0, round(percent * items / 100)))
    return [1.0] * k + [0.0] * (items - k)


def kind_of(group: Group, method: str, family: str) -> dict[str, Any]:
    """What a record says of a method."""
    if method in ("Dense", "LoRA"):
        return {"kind": "reference", "budget": None, "stochastic": method == "LoRA"}
    static = method in STATIC
    budget = None if family == "published" else group.percent / 100
    kind = "static" if static else "dynamic"
    return {"kind": kind, "budget": budget, "stochastic": not static}


def backbone(group: Group) -> dict[str, Any]:
    """One of the paper's, by the number of its parameters."""
    plain: dict[str, Any] = record("x", 0.0)["backbone"]
    return plain | {"name": "ours", "parameters": model_of(group.backbone).parameters}


def panels_of(
    runs: Sequence[dict[str, Any]],
) -> list[Panel]:
    """Panels as a report makes them, of few resamples; ARC of the test split in the Retain."""
    tasks = [s["task"] for s in runs[0]["scores"] if not s["task"].endswith("_validation")]
    return panels(*runs, tasks=tasks, resamples=400)
