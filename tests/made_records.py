"""Records and items as the score step writes them, with values that a test chooses."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from tests.unit.test_records import record as complete
from workflows.records.files import to_record
from workflows.records.record import Record
from workflows.stats.lines import Panel, make_panels

TASKS = {"left": 60, "right": 80}


def rates(skip: float, **kinds: float) -> dict[str, Any]:
    parts = {"all": skip} | kinds
    return {
        kind: {"tokens": 100, "skip": s, "skip_net": s - 0.01, "skip_std": s / 2}
        for kind, s in parts.items()
    }


def score(
    task: str,
    values: Sequence[float],
    metric: str = "acc",
    skip: float = 0.2,
    answers: float | None = None,
    **changes: Any,
) -> dict[str, Any]:
    """One entry of a record, with its ``items`` until :func:`write` or :func:`split` takes them."""
    kinds = {"answer": skip if answers is None else answers}
    return {
        "task": task, "metric": metric, "filter": "none", "primary": True, "higher_is_better": True,
        "value": float(np.mean(values)), "n": len(values), "k": int(sum(values)), "stderr": 0.1,
        "shots": 0, "split": "test", "chat_template": False, "version": 1.0, "prompt_hash": "p",
        "rates": rates(skip, **kinds), "items": list(values),
    } | changes  # fmt: skip


def code(row: str, **changes: str) -> dict[str, str]:
    """Hashes of the code behind a row."""
    return {"methods/core": "c", f"methods/{row}": "m"} | changes


def record(row: str, skip: float, *scores: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """A finished run; by the pooled protocol where one applies."""
    plain = complete()
    applies = changes.get("kind", "dynamic") == "dynamic" and changes.get("budget", 0.25)
    return plain | {
        "suite": "made", "row": row, "method": row, "title": row.title(), "kind": "dynamic",
        "stochastic": True, "match": "pooled" if applies else None, "dirty": False,
        "fit_code": code(row), "code": code(row),
        "fit": {
            "seconds": 2.5, "peak_memory_mb": 300.0, "device": "cpu", "threads": 1,
            "trained_parameters": 0, "cpu_capability": "AVX2",
        },
        "backbone": plain["backbone"] | {"name": "toy"},
        "scores": list(scores), "rates": rates(skip, prompt=skip, likelihood=skip / 2),
        "skip_authors": 0.5, "layers": {"kept": 4, "dense": 4, "removed": []},
        "evaluation": plain["evaluation"] | {
            "batch_size": 16, "max_length": 64, "seconds": 1.5, "peak_memory_mb": 200.0,
        },
        "versions": {"python": "3.11", "torch": "2", "lm_eval": "0.4"},
        "hardware": {"processor": "p", "cores": 2, "accelerator": None},
    } | changes  # fmt: skip


def dense(*scores: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """The reference."""
    given = {"kind": "reference", "stochastic": False, "budget": None, "skip_authors": 0.0}
    return record("dense", 0.0, *scores, **(given | changes))


def missing(row: str, reason: str, **changes: Any) -> dict[str, Any]:
    """A row that is not applicable."""
    made = record(row, 0.0, status="not applicable", reason=reason, **changes)
    for name in ("scores", "not_run", "rates", "skip_authors", "units", "layers", "evaluation"):
        del made[name]
    return made


def split(made: Mapping[str, Any]) -> tuple[Record, pd.DataFrame]:
    """A record as it is read from disk, and its items, in no particular order."""
    lines = [
        {key: s[key] for key in ("task", "metric", "filter")} | {"item": n, "value": float(v)}
        for s in made.get("scores", [])
        for n, v in reversed(list(enumerate(s["items"])))
    ]
    scores = [{k: v for k, v in s.items() if k != "items"} for s in made.get("scores", [])]
    plain = dict(made) | ({"scores": scores} if "scores" in made else {})
    return to_record(plain), pd.DataFrame(lines)


def typed(*runs: Mapping[str, Any]) -> list[Record]:
    """The records without their items."""
    return [split(run)[0] for run in runs]


def panels(*runs: Mapping[str, Any], tasks: Sequence[str], resamples: int) -> list[Panel]:
    """Panels as a report makes them, against ``dense``."""
    parts = [split(run) for run in runs]
    items = {number: frame for number, (_, frame) in enumerate(parts) if len(frame)}
    return make_panels([record for record, _ in parts], items, tasks, "dense", resamples)


def write(file: Path, made: Mapping[str, Any]) -> Path:
    """A record with its items beside it."""
    plain, items = split(made)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(plain.to_json()), encoding="utf-8")
    if len(items):
        items.to_parquet(file.with_suffix(".items.parquet"), index=False)
    return file


def write_run(folder: Path, made: Mapping[str, Any]) -> Path:
    """Where a suite would put it."""
    return write(place_of(folder, made) / "record.json", made)


def place_of(folder: Path, made: Mapping[str, Any]) -> Path:
    """The folder of a run."""
    label = "b0" if made["budget"] is None else f"b{100 * made['budget']:g}"
    label += "-split" if made["match"] == "split" else ""
    return folder / made["backbone"]["name"] / made["row"] / label / f"s{made['seed']}"


def suite(matches: Sequence[str] = ("pooled",)) -> list[dict[str, Any]]:
    """Dense, LoRA, three rows of several seeds at two targets, one that is not applicable.

    HeRo and random-skip run by each of the protocols.
    """
    rng = np.random.default_rng(7)
    hard = {task: rng.random(n) for task, n in TASKS.items()}

    def solved(quality: float, skip: float, apart: float = 0.0) -> list[dict[str, Any]]:
        """Tasks skip ``apart`` fewer and ``apart`` more answer tokens, ``skip`` in the mean."""
        return [
            score(task, (values + rng.normal(0, 0.15, len(values)) < quality).astype(float),
                  skip=skip, answers=skip + sign * apart)
            for (task, values), sign in zip(hard.items(), (-1, 1), strict=True)
        ]  # fmt: skip

    trained = {"params": {"updates": 10, "batch_tokens": 64}}
    trained["fit"] = record("x", 0.0)["fit"] | {"trained_parameters": 1234}
    runs = [dense(*solved(0.9, 0.0))]
    runs.append(record("lora", 0.0, *solved(0.88, 0.0), budget=None, kind="reference", **trained))
    for match, budget in product(matches, (0.25, 0.4)):
        for seed in (42, 43, 44):
            given = {"budget": budget, "seed": seed, "match": match}
            even = solved(0.5, budget)
            runs.append(record("random-skip", budget + 0.001, *even, **given))
            skip, quality = budget - 0.004 + seed / 1e4, 0.8 - budget / 4 + rng.normal(0, 0.03)
            answers = skip - 0.1 if match == "pooled" else skip + (seed - 43) / 50
            hero = record("hero", skip, *solved(quality, answers, 0.03), **given, **trained)
            runs.append(hero | hero_rates(hero, skip))
        cut = {"kind": "static", "stochastic": False, "budget": budget}
        if match == matches[0]:
            runs.append(record("shortgpt+lora", budget - 0.03, *solved(0.72, budget - 0.03), **cut))
    runs.append(missing("slicegpt", "its widths do not fit", kind="static", budget=0.4))
    return runs


def hero_rates(made: Mapping[str, Any], skip: float) -> dict[str, Any]:
    """Pooled, it hides on prompts; each, it skips too few of them once. Seed 43 was trained ill."""
    prompt = skip + 0.05 if made["match"] == "pooled" else skip - 0.02 - (44 - made["seed"]) / 100
    kinds = ("pooled",) if made["match"] == "pooled" else ("prompt", "answer")
    ended = dict.fromkeys(kinds, 0.002 if made["seed"] == 43 else skip)
    return {
        "rates": rates(skip, prompt=prompt, likelihood=skip / 2),
        "fit": made["fit"] | {"trained_skip": ended, "threshold": 0.7 + made["seed"] / 1e4},
    }


def write_suite(folder: Path, matches: Sequence[str] = ("pooled",)) -> Path:
    """The runs of :func:`suite` below ``folder``, two of the noise floor."""
    runs = suite(matches)
    for made in runs:
        write_run(folder, made)
    for size, flips in ((1, 0), (8, 2)):
        again = json.loads(json.dumps(runs[0]))
        again["evaluation"]["batch_size"] = size
        entry = again["scores"][0]
        for _ in range(flips):
            entry["items"][entry["items"].index(1)] = 0.0
        entry["k"], entry["value"] = int(sum(entry["items"])), float(np.mean(entry["items"]))
        write(folder / f"toy/dense/b0/s42/noise/batch{size}.json", again)
    return folder
