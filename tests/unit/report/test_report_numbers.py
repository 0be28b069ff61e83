"""Every number of every table, found again in the records and items on disk by plain loops."""

from __future__ import annotations

import json
import math
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from tests import steps
from tests.made_records import TASKS
from workflows.stats.paired import holm

Runs = dict[tuple[str, float | None], list[dict[str, Any]]]


@pytest.fixture(scope="module")
def runs(made: Path) -> Runs:
    """(row, budget) -> finished records by seed, each with ``solved``: task -> item values."""
    found: Runs = {}
    for file in sorted((made / "results").rglob("record.json")):
        record = json.loads(file.read_text())
        if record["status"] == "ok":
            items = pd.read_parquet(file.with_suffix(".items.parquet")).sort_values("item")
            record["solved"] = {
                task: items[items["task"] == task]["value"].to_numpy() for task in TASKS
            }
            found.setdefault((record["row"], record["budget"]), []).append(record)
    return found


def table(made: Path, name: str) -> list[dict[str, Any]]:
    frame = pd.read_csv(made / "report/tables" / f"{name}.csv")
    return frame.astype(object).where(frame.notna(), None).to_dict("records")


def of(runs: Runs, line: dict[str, Any]) -> list[dict[str, Any]]:
    target = line["target"]
    return runs[line["row"], None if target is None else round(target / 100, 6)]


def close(shown: Any, value: float | None, scale: float = 100) -> bool:
    if value is None:
        return shown is None
    return shown is not None and math.isclose(shown, scale * value, abs_tol=6e-5)


def mean(records: list[dict[str, Any]], *path: str) -> float:
    values = []
    for record in records:
        inner: Any = record
        for key in path:
            inner = inner[key]
        values.append(inner)
    return sum(values) / len(values)


def spread(values: list[float], record: dict[str, Any]) -> float | None:
    if not record["stochastic"] or len(values) < 2:
        return None
    middle = sum(values) / len(values)
    return math.sqrt(sum((v - middle) ** 2 for v in values) / (len(values) - 1))


def retains(records: list[dict[str, Any]], runs: Runs) -> list[float]:
    (base,) = runs["dense", None]
    scores = {s["task"]: s["k"] / s["n"] for s in base["scores"]}
    return [
        sum(s["k"] / s["n"] / scores[s["task"]] for s in record["scores"]) / len(scores)
        for record in records
    ]


def test_retain(made: Path, runs: Runs) -> None:
    lines = table(made, "retain")
    assert len(lines) == len(runs) + 1
    for line in lines:
        if line["row"] == "slicegpt":
            assert {name for name, value in line.items() if value is not None} == {
                "backbone", "target", "row", "title", "kind", "seeds", "note",
            }  # fmt: skip
            continue
        records = of(runs, line)
        first = records[0]
        assert (line["seeds"], line["title"], line["kind"]) == (
            len(records), first["title"], first["kind"],
        )  # fmt: skip
        skips = [record["rates"]["all"]["skip"] for record in records]
        assert close(line["skip"], mean(records, "rates", "all", "skip"))
        assert close(line["skip_std"], spread(skips, first))
        assert close(line["skip_net"], mean(records, "rates", "all", "skip_net"))
        assert close(line["skip_authors"], mean(records, "skip_authors"))
        kept = retains(records, runs)
        assert close(line["retain"], sum(kept) / len(kept))
        assert close(line["retain_std"], spread(kept, first))
        assert line["retain_low"] <= line["retain"] <= line["retain_high"]
        for number, task in enumerate(TASKS):
            assert first["scores"][number]["task"] == task
            shares = [r["scores"][number]["k"] / r["scores"][number]["n"] for r in records]
            assert close(line[f"{task}:acc"], sum(shares) / len(shares))


def test_intervals_of_single_runs_against_the_bootstrap_of_scipy(made: Path, runs: Runs) -> None:
    (base,) = runs["dense", None]
    rng = np.random.default_rng(3)
    for line in table(made, "retain"):
        if line["row"] not in ("lora", "shortgpt+lora"):
            continue
        (run,) = of(runs, line)
        kept = np.zeros(9999)
        for task in TASKS:
            pair = (run["solved"][task], base["solved"][task])
            drawn = stats.bootstrap(
                pair, lambda a, b, axis: a.mean(axis) / b.mean(axis), paired=True, vectorized=True,
                rng=rng,
            )  # fmt: skip
            kept += drawn.bootstrap_distribution / len(TASKS)
        expected = 100 * np.quantile(kept, [0.025, 0.975])
        assert [line["retain_low"], line["retain_high"]] == pytest.approx(expected, abs=0.5)


def test_differences(made: Path, runs: Runs) -> None:
    lines = table(made, "differences")
    # lora, hero, random-skip, shortgpt+lora against dense, and all but hero against hero.
    assert len(lines) == 3 * (1 + 2 * 3 + 2 * 3)
    for line in lines:
        target = None if line["target"] is None else round(line["target"] / 100, 6)
        mine = runs.get((line["row"], target)) or runs[line["row"], None]
        theirs = runs[line["against"], target if line["against"] == "hero" else None]
        if line["measure"] == "retain":
            difference = np.mean(retains(mine, runs)) - np.mean(retains(theirs, runs))
            assert line["won"] is None
            assert (line["p"] < 0.05) == (line["low"] > 0 or line["high"] < 0)
            assert line["items"] == sum(TASKS.values())
        else:
            won, lost, p = compare_items(mine, theirs, line["measure"])
            difference = np.mean([r["solved"][line["measure"]].mean() for r in mine]) - np.mean(
                [r["solved"][line["measure"]].mean() for r in theirs]
            )
            assert (line["won"], line["lost"]) == (won, lost)
            single = len(mine) == len(theirs) == 1
            assert line["test"] == ("McNemar" if single else "bootstrap")
            told = line["low"] > 0 or line["high"] < 0
            assert close(line["p"], p, 1) if single else (line["p"] < 0.05) == told
            assert line["items"] == TASKS[line["measure"]]
        assert close(line["difference"], difference)
        assert line["low"] <= line["difference"] <= line["high"]


def compare_items(
    mine: list[dict[str, Any]], theirs: list[dict[str, Any]], task: str
) -> tuple[int, int, float]:
    pairs = [
        (a, b)
        for a, b in product(mine, theirs)
        if a["seed"] == b["seed"] or len(mine) == 1 or len(theirs) == 1
    ]
    counts = [(0, 0)] * len(pairs)
    for number, (a, b) in enumerate(pairs):
        for left, right in zip(a["solved"][task], b["solved"][task], strict=True):
            won, lost = counts[number]
            counts[number] = (won + (left > right), lost + (left < right))
    won, lost = (sum(side) for side in zip(*counts, strict=True))
    return won, lost, stats.binomtest(won, won + lost).pvalue if won + lost else 1.0


def test_holm_of_the_table(made: Path) -> None:
    frame = pd.DataFrame(table(made, "differences"))
    for _, family in frame.groupby(["target", "against", "measure"], dropna=False):
        expected = holm(family["p"].astype(float).tolist())
        assert family["p_holm"].astype(float).tolist() == pytest.approx(list(expected), abs=3e-4)


def test_ranks(made: Path, runs: Runs) -> None:
    lines = table(made, "ranks")
    assert len(lines) == 6
    for line in lines:
        field = {
            row: np.mean(retains(records, runs))
            for (row, budget), records in runs.items()
            if budget == round(line["target"] / 100, 6)
        }
        mine = field[line["row"]]
        assert close(line["retain"], mine)
        assert line["rank"] == 1 + sum(other > mine for other in field.values())
        assert close(line["behind"], max(field.values()) - mine)
        assert line["rank_low"] <= line["rank"] <= line["rank_high"]
        assert line["tied"] == (line["rank"] > 1 and line["behind_low"] <= 0)
    for target in (25, 40):
        shares = [line["first"] for line in lines if line["target"] == target]
        assert sum(shares) == pytest.approx(100, abs=1)


def test_budgets(made: Path, runs: Runs) -> None:
    lines = table(made, "budgets")
    assert len(lines) == len(runs)
    for line in lines:
        records = of(runs, line)
        for name, path in {
            "skip": ("rates", "all", "skip"),
            "skip_net": ("rates", "all", "skip_net"),
            "token_std": ("rates", "all", "skip_std"),
            "skip_prompt": ("rates", "prompt", "skip"),
            "skip_answer": ("rates", "answer", "skip"),
            "skip_authors": ("skip_authors",),
        }.items():
            assert close(line[name], mean(records, *path))
        skips = [record["rates"]["all"]["skip"] for record in records]
        assert close(line["skip_std"], spread(skips, records[0]))
        missed = line["target"] is not None and abs(line["skip"] - line["target"]) > 1
        assert (line["missed"] or "").startswith("under budget by ") == missed
        assert line["skip_generated"] is None


def test_costs(made: Path, runs: Runs) -> None:
    lines = table(made, "costs")
    assert len(lines) == len(runs)
    for line in lines:
        records = of(runs, line)
        first = records[0]
        assert line["trained_parameters"] == first["fit"]["trained_parameters"]
        params = first["params"]
        tokens = params["updates"] * params["batch_tokens"] if params else None
        assert line["training_tokens"] == tokens
        assert close(line["fit_seconds"], mean(records, "fit", "seconds"), 1)
        assert close(line["fit_memory_mb"], mean(records, "fit", "peak_memory_mb"), 1)
        assert close(line["scored_tokens"], mean(records, "rates", "all", "tokens"), 1)
        assert close(line["scoring_seconds"], mean(records, "evaluation", "seconds"), 1)
        assert close(line["scoring_memory_mb"], mean(records, "evaluation", "peak_memory_mb"), 1)
        assert line["device"] == first["evaluation"]["device"]


def test_scores(made: Path, runs: Runs) -> None:
    lines = table(made, "scores")
    assert len(lines) == len(TASKS) * sum(len(records) for records in runs.values())
    for line in lines:
        (record,) = [r for r in runs[line["row"], line["target"]] if r["seed"] == line["seed"]]
        (score,) = [s for s in record["scores"] if s["task"] == line["task"]]
        for name in ("metric", "filter", "value", "k", "n", "stderr"):
            assert line[name] == score[name]
        assert line["skip"] == score["rates"]["all"]["skip"]
        assert line["k"] == record["solved"][line["task"]].sum()


def test_noise(made: Path, runs: Runs) -> None:
    lines = table(made, "noise")
    assert [line["batch_size"] for line in lines] == [1, 8]
    (base,) = runs["dense", None]
    for line in lines:
        file = made / f"results/toy/dense/b0/s42/noise/batch{line['batch_size']}.items.parquet"
        again = pd.read_parquet(file).sort_values("item")
        changed, kept, moved = 0, 0.0, []
        for task, values in base["solved"].items():
            other = again[again["task"] == task]["value"].to_numpy()
            changed += sum(a != b for a, b in zip(values, other, strict=True))
            kept += other.mean() / values.mean() / len(TASKS)
            moved.append(abs(other.mean() - values.mean()))
        assert line["changed"] == changed
        assert close(line["retain"], kept)
        assert close(line["largest"], max(moved))
    assert [line["changed"] for line in lines] == [0, 2]


def test_the_report_is_the_same_bytes_again(made: Path, tmp_path: Path) -> None:
    steps.call("report", "--results", made / "results", "--out", tmp_path)
    files = [file for file in (made / "report").rglob("*") if file.is_file()]
    assert len(files) > 25
    for file in files:
        assert (tmp_path / file.relative_to(made / "report")).read_bytes() == file.read_bytes()
