"""Records whose scores are those of a table of the paper."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from tests.records import Run, panels, record, score
from workflows.report.paper.printed import (
    BENCHMARKS,
    PARAMETERS,
    SHOTS,
    SKIP,
    Group,
    families,
    numbers_of,
    of_group,
    printed_frame,
)
from workflows.stats.lines import Panel

STATIC = ("ShortGPT", "Shortened-Taylor", "Shortened-PPL", "SliceGPT", "LLM-Pruner", "LaCo")


def paper_runs(
    group: Group, shift: float = 0.0, both: bool = False, family: str = "matched", **changes: Any
) -> Iterator[Run]:
    """Runs whose scores are those of a table of the paper, one per method and seed.

    Args:
        group: The table.
        shift: Points by which every row but dense lies above the paper.
        both: Whether ARC is scored on its validation splits as well.
        family: Which rows of ours.
        changes: Fields of every run but dense's.
    """
    rows = next(own for own in families(group) if own.name == family).rows
    frame = of_group(printed_frame(), group)
    for method, (row, *_) in rows.items():
        own = frame[(frame["method"] == method) & frame["std"].notna()]
        spread = dict(zip(own["metric"], own["std"], strict=True))
        above = shift * (method != "Dense")
        # A printed deviation is that of three seeds: one below, one above the mean.
        for seed, apart in zip((42, 43, 44), (0, -1, 1) if spread else (0,), strict=False):
            values = {
                name: value + apart * spread.get(name, 0.0)
                for name, value in numbers_of(group)[method].items()
            }
            scores = [
                one
                for name, value in values.items() if name in BENCHMARKS
                for one in benchmark_scores(name, value + above, both)
            ]  # fmt: skip
            labels = {"seed": seed} | paper_labels(group, method, family)
            labels |= changes if method != "Dense" else {}
            yield record(row, values[SKIP] / 100, *scores, **labels)


def benchmark_scores(name: str, percent: float, both: bool) -> list[Run]:
    """Scores of a benchmark, of ARC on its test split or on both; the first items are solved."""
    splits = BENCHMARKS[name]
    runs = []
    for split in splits if both or len(splits) == 1 else ["test"]:
        n = splits[split].items
        k = min(n, max(0, round(percent * n / 100)))
        metric, items = name.split("(")[1].rstrip(")"), [1.0] * k + [0.0] * (n - k)
        runs.append(score(splits[split].tasks[0], items, metric, shots=SHOTS[name]))
    return runs


def paper_labels(group: Group, method: str, family: str = "matched") -> Run:
    """Kind, budget, seed's effect and backbone of a run that stands for a method of the paper."""
    backbone = record("x", 0.0)["backbone"] | {"name": "ours"}
    labels = {"backbone": backbone | {"parameters": PARAMETERS[group.backbone]}}
    if method in ("Dense", "LoRA"):
        return labels | {"kind": "reference", "budget": None, "stochastic": method == "LoRA"}
    budget = None if family == "published" else group.percent / 100
    kind = "static" if method in STATIC else "dynamic"
    return labels | {"kind": kind, "budget": budget, "stochastic": method not in STATIC}


def paper_panels(runs: Sequence[Run]) -> list[Panel]:
    """Panels of such runs; the Retain takes ARC's test split."""
    tasks = [s["task"] for s in runs[0]["scores"] if not s["task"].endswith("_validation")]
    return panels(*runs, tasks=tasks)
