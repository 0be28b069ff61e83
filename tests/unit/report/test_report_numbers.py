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

from tests.records import TASKS
from workflows.stats.paired import holm

Runs = dict[tuple[str, float | None, str | None], list[dict[str, Any]]]
MATCHES = ("pooled", "split")


@pytest.fixture(scope="module")
def runs(site: Path) -> Runs:
    """(row, budget, match) -> finished records by seed; ``solved``: task -> item values."""
    records_of: Runs = {}
    for file in sorted((site / "results").rglob("record.json")):
        record = json.loads(file.read_text())
        if record["status"] == "ok":
            items = pd.read_parquet(file.with_suffix(".items.parquet")).sort_values("item")
            record["solved"] = {
                task: items[items["task"] == task]["value"].to_numpy() for task in TASKS
            }
            key = record["row"], record["budget"], record["match"]
            records_of.setdefault(key, []).append(record)
    return records_of


def table(site: Path, name: str) -> list[dict[str, Any]]:
    file = site / "report/tables" / f"{name}.csv"
    frame = pd.read_csv(file, float_precision="round_trip")
    return frame.astype(object).where(frame.notna(), None).to_dict("records")


def of(runs: Runs, line: dict[str, Any]) -> list[dict[str, Any]]:
    """The records of a line: of its protocol, or those that are one under both."""
    target = None if line["target"] is None else round(line["target"] / 100, 6)
    lines = [runs.get((line["row"], target, match)) for match in (line["match"], None)]
    (records,) = [records for records in lines if records]
    return records


def panel(runs: Runs, match: str) -> dict[tuple[str, float | None], list[dict[str, Any]]]:
    """(row, budget) -> records of one protocol's panel."""
    return {
        (row, budget): records
        for (row, budget, own), records in runs.items()
        if own in (match, None)
    }


def close(number: Any, value: float | None, scale: float = 100) -> bool:
    if value is None:
        return number is None
    return number is not None and math.isclose(number, scale * value, abs_tol=6e-5)


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
    (base,) = runs["dense", None, None]
    scores = {s["task"]: s["k"] / s["n"] for s in base["scores"]}
    return [
        sum(s["k"] / s["n"] / scores[s["task"]] for s in record["scores"]) / len(scores)
        for record in records
    ]


def test_retain(site: Path, runs: Runs) -> None:
    lines = table(site, "retain")
    assert len(lines) == sum(len(panel(runs, match)) + 1 for match in MATCHES)
    for line in lines:
        if line["row"] == "slicegpt":
            assert {name for name, value in line.items() if value is not None} == {
                "backbone", "target", "match", "row", "title", "kind", "seeds", "note",
            }  # fmt: skip
            continue
        records = of(runs, line)
        first = records[0]
        labels = len(records), first["title"], first["kind"]
        assert (line["seeds"], line["title"], line["kind"]) == labels
        assert close(line["skip"], mean(records, "rates", "all", "skip"))
        run_retains = retains(records, runs)
        assert close(line["retain"], sum(run_retains) / len(run_retains))
        assert close(line["retain_std"], spread(run_retains, first))
        assert line["retain_low"] <= line["retain"] <= line["retain_high"]
        for number, task in enumerate(TASKS):
            assert first["scores"][number]["task"] == task
            shares = [r["scores"][number]["k"] / r["scores"][number]["n"] for r in records]
            assert close(line[f"{task}:acc"], sum(shares) / len(shares))


def answer_skips(records: list[dict[str, Any]]) -> list[float]:
    """Per record the mean over tasks of the skip on the tokens whose output is scored."""
    task_skips = []
    for record in records:
        skips = [score["rates"]["answer"]["skip"] for score in record["scores"]]
        task_skips.append(sum(skips) / len(skips))
    return task_skips


def test_notes_say_which_kind_of_token_missed_its_budget_in_how_many_runs(
    site: Path, runs: Runs
) -> None:
    for line in table(site, "retain"):
        if line["row"] == "hero":
            expected = missed(of(runs, line), line["match"])
            assert expected or line["match"] == "pooled"
            threshold = ", threshold 0.70"
            words = {"pooled": "0.2 % skip", "split": "0.2 % skip of prompts and "}[line["match"]]
            words += {"pooled": "", "split": "0.2 % skip of answer tokens"}[line["match"]]
            notes = [*expected, f"ended training at {words}{threshold} in 1 of 3 runs"]
            assert line["note"] == "; ".join(notes)


def missed(records: list[dict[str, Any]], match: str) -> list[str]:
    """Sentences about kinds of token that lie off by more than their tolerance, none if pooled."""
    notes: dict[str, list[float]] = {}
    for record, answers in zip(records, answer_skips(records), strict=True):
        excess = {
            "answers": (answers - record["budget"], 0.01),
            "prompts": (record["rates"]["prompt"]["skip"] - record["budget"], 0.03),
            "mean over tasks": (
                mean(record["scores"], "rates", "all", "skip") - record["budget"],
                0.01,
            ),
        }
        if match == "pooled":
            excess = {}
            assert abs(record["rates"]["all"]["skip"] - record["budget"]) <= 0.01
        for kind, (points, tolerance) in excess.items():
            if abs(points) > tolerance:
                side = "over" if points > 0 else "under"
                notes.setdefault(f"{kind} {side} budget by", []).append(100 * abs(points))
    return [
        f"{kind} {'up to ' if max(off) - min(off) > 0.1 else ''}{max(off):.1f} in "
        f"{len(off)} of 3 runs"
        for kind, off in sorted(notes.items())
    ]


def test_the_deviation_between_seeds_stands_beside_rows_of_one_seed(site: Path) -> None:
    rows = set()
    for line in table(site, "retain"):
        silent = "between seeds: not known" in (line["note"] or "")
        rows.add((line["row"], line["match"], line["seed_std"], silent))
    # HeRo ran three seeds, shortgpt+lora and random-skip trained nothing.
    assert {one for one in rows if one[2] is not None or one[3]} == {
        ("lora", "split", 0.75, False), ("lora", "pooled", None, True),
    }  # fmt: skip
    page = (site / "report/index.html").read_text()
    assert '<td class="n">± 0.75</td>' in page
    assert f"over the seeds of {site / 'several'}, for rows" in page


def test_intervals_of_single_runs_against_the_bootstrap_of_scipy(site: Path, runs: Runs) -> None:
    (base,) = runs["dense", None, None]
    rng = np.random.default_rng(3)
    for line in table(site, "retain"):
        if line["row"] not in ("lora", "shortgpt+lora"):
            continue
        (run,) = of(runs, line)
        retains = np.zeros(9999)
        for task in TASKS:
            pair = (run["solved"][task], base["solved"][task])
            result = stats.bootstrap(
                pair, lambda a, b, axis: a.mean(axis) / b.mean(axis), paired=True, vectorized=True,
                rng=rng,
            )  # fmt: skip
            retains += result.bootstrap_distribution / len(TASKS)
        expected = 100 * np.quantile(retains, [0.025, 0.975])
        assert [line["retain_low"], line["retain_high"]] == pytest.approx(expected, abs=0.5)


def test_differences(site: Path, runs: Runs) -> None:
    lines = [n for n in table(site, "differences") if n["measure"] in (*TASKS, "retain")]
    # lora, hero, random-skip, shortgpt+lora against dense, and all but hero against hero.
    assert len(lines) == 2 * 3 * (1 + 2 * 3 + 2 * 3)
    for line in lines:
        own = panel(runs, line["match"])
        target = None if line["target"] is None else round(line["target"] / 100, 6)
        mine = own.get((line["row"], target)) or own[line["row"], None]
        theirs = own[line["against"], target if line["against"] == "hero" else None]
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
            compared = line["low"] > 0 or line["high"] < 0
            assert close(line["p"], p, 1) if single else (line["p"] < 0.05) == compared
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


def test_holm_of_the_table(site: Path) -> None:
    frame = pd.DataFrame(table(site, "differences"))
    for _, family in frame.groupby(["target", "match", "against", "measure"], dropna=False):
        expected = holm(family["p"].astype(float).tolist())
        assert family["p_holm"].astype(float).tolist() == pytest.approx(list(expected), abs=3e-4)


def test_ranks(site: Path, runs: Runs) -> None:
    lines = table(site, "ranks")
    assert len(lines) == 2 * 6
    for line in lines:
        field = {
            row: np.mean(retains(records, runs))
            for (row, budget), records in panel(runs, line["match"]).items()
            if budget == round(line["target"] / 100, 6)
        }
        mine = field[line["row"]]
        assert close(line["retain"], mine)
        assert line["rank"] == 1 + sum(other > mine for other in field.values())
        assert close(line["behind"], max(field.values()) - mine)
        assert line["rank_low"] <= line["rank"] <= line["rank_high"]
        assert line["tied"] == (line["rank"] > 1 and line["behind_low"] <= 0)
    for target, match in product((25, 40), MATCHES):
        field = [one for one in lines if (one["target"], one["match"]) == (target, match)]
        shares = [line["first"] for line in field]
        assert len(shares) == 3
        assert sum(shares) == pytest.approx(100, abs=1)


def test_budgets(site: Path, runs: Runs) -> None:
    lines = table(site, "budgets")
    assert len(lines) == sum(len(panel(runs, match)) for match in MATCHES)
    for line in lines:
        records = of(runs, line)
        for name, path in {
            "skip": ("rates", "all", "skip"),
            "skip_net": ("rates", "all", "skip_net"),
            "token_std": ("rates", "all", "skip_std"),
            "skip_prompt": ("rates", "prompt", "skip"),
            "skip_likelihood": ("rates", "likelihood", "skip"),
            "skip_authors": ("skip_authors",),
        }.items():
            assert close(line[name], mean(records, *path))
        for kind, column in (("all", "skip_std"), ("prompt", "skip_prompt_std")):
            skips = [record["rates"][kind]["skip"] for record in records]
            assert close(line[column], spread(skips, records[0]))
        assert close(line["skip_answer"], sum(answer_skips(records)) / len(records))
        assert close(line["skip_answer_std"], spread(answer_skips(records), records[0]))
        if line["row"] == "hero":
            assert (line["missed"] or "") == "; ".join(missed(records, line["match"]))
        else:
            off = line["target"] is not None and abs(line["skip"] - line["target"]) > 1
            assert (line["missed"] or "").startswith("under budget by ") == off
        assert line["skip_generated"] is None
