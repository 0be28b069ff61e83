"""A report of two thousand runs: what it costs, and how large its page is."""

from __future__ import annotations

import json
import time
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from tests import steps
from tests.records import add_routes, add_texts, dense, record, score, write_decisions, write_run

# Seconds of one core: twice what a quiet one should take, for clocks that slow down under load.
SECONDS = 120
BYTES = 20_000_000
FAMILIES = [f"{kind}{number}" for kind in ("router", "cut") for number in range(10)]
ROWS = [f"{family}{end}" for family in ("hero", *FAMILIES[1:]) for end in ("", "-a", "-b", "-c")]
BUDGETS = (0.2, 0.25, 0.3, 0.4, 0.5)
SEEDS = (42, 43, 44, 45, 46)
TASKS = {f"task{number}": 40 for number in range(9)}


def write_many(results: Path) -> Path:
    """Dense, LoRA, and 20 rows with three variants each at five budgets with five seeds.

    Half of them are routed. First seeds have the texts of their items.
    """
    rng = np.random.default_rng(3)
    references = [("dense", None, 42), *(("lora", None, seed) for seed in SEEDS[1:])]
    for row, budget, seed in [*references, *product(ROWS, BUDGETS, SEEDS)]:
        skip = 0.0 if budget is None else budget + float(rng.normal(0, 0.005))
        scores = [
            score(task, (rng.random(items) < rng.uniform(0.3, 0.9)).astype(float), skip=skip)
            for task, items in TASKS.items()
        ]
        kind = "reference" if budget is None else "static" if row.startswith("cut") else "dynamic"
        labels = {"method": row.partition("-")[0], "kind": kind, "budget": budget, "seed": seed}
        run = dense(*scores) if row == "dense" else record(row, skip, *scores, **labels)
        if kind == "dynamic":
            add_routes(run, rng)
        file = write_run(results, run)
        if seed == SEEDS[0]:
            add_texts(file)
            write_decisions(file)
    settings = {"suite": "many", "retain_tasks": list(TASKS), "reference_row": "dense"}
    (results / "suite.json").write_text(json.dumps(settings))
    return results


@pytest.mark.long
def test_two_thousand_runs_make_a_page_in_time_and_of_a_size_to_send(tmp_path: Path) -> None:
    results = write_many(tmp_path / "results")
    assert len(list(results.rglob("record.json"))) == len(ROWS) * len(BUDGETS) * len(SEEDS) + 5
    before = time.process_time()
    steps.call("report", "--results", results, "--out", tmp_path / "report")
    assert time.process_time() - before < SECONDS
    assert (tmp_path / "report/index.html").stat().st_size < BYTES
