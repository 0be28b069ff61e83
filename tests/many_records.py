"""Two thousand made runs, as many as a page must bear: `python -m tests.many_records DIR`."""

from __future__ import annotations

import json
import sys
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from tests.made_records import dense, record, score, write_run
from tests.told_records import add_texts, routed, write_decisions

FAMILIES = [f"{kind}{number}" for kind in ("router", "cut") for number in range(10)]
ROWS = [f"{family}{end}" for family in ("hero", *FAMILIES[1:]) for end in ("", "-a", "-b", "-c")]
BUDGETS = (0.2, 0.25, 0.3, 0.4, 0.5)
SEEDS = (42, 43, 44, 45, 46)
TASKS = {f"task{number}": 40 for number in range(9)}


def write_many(folder: Path) -> Path:
    """Dense, LoRA, and 20 rows with three variants each at five budgets with five seeds.

    Half of them are routed. First seeds keep the texts of their items.
    """
    rng = np.random.default_rng(3)
    runs = [("dense", None, 42), *(("lora", None, seed) for seed in SEEDS[1:])]
    for row, budget, seed in [*runs, *product(ROWS, BUDGETS, SEEDS)]:
        file = write_run(folder, made(rng, row, budget, seed))
        if seed == SEEDS[0]:
            add_texts(file)
            write_decisions(file)
    settings = {"suite": "many", "retain_tasks": list(TASKS), "reference_row": "dense"}
    (folder / "suite.json").write_text(json.dumps(settings))
    return folder


def made(rng: np.random.Generator, row: str, budget: float | None, seed: int) -> dict[str, Any]:
    """A run whose scores and skip are drawn at random."""
    skip = 0.0 if budget is None else budget + float(rng.normal(0, 0.005))
    scores = [
        score(task, (rng.random(items) < rng.uniform(0.3, 0.9)).astype(float), skip=skip)
        for task, items in TASKS.items()
    ]
    if row == "dense":
        return dense(*scores)
    kind = "reference" if row == "lora" else "static" if row.startswith("cut") else "dynamic"
    told = record(row, skip, *scores, kind=kind, budget=budget, seed=seed)
    if kind == "dynamic":
        routed(told, rng)
    return told | {"method": row.partition("-")[0]}


if __name__ == "__main__":
    write_many(Path(sys.argv[1]))
