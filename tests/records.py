"""Runs as the score step writes them, with values that a test chooses.

A run is the JSON of a record whose scores also hold their ``items``; :func:`split` parts the two.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from workflows.records import SAMPLE
from workflows.records.files import to_record
from workflows.records.record import FORMAT, SCORED, Record
from workflows.stats.lines import Panel, make_panels

Run = dict[str, Any]

TASKS = {"left": 60, "right": 80}
# Texts that would break a page if it did not escape them.
NASTY = "</script><script>document.title = 'broken'</script><b>&amp; \u2028 ]]> {{ x }}"
TOKENS = ["<s>", "in", " <i>fact", "</script>", "of", "of", " answer"]
UNITS = [(0, "attention", 2), (0, "ffn", 2), (3, "ffn", 1)]


def rates(skip: float, **kinds: float) -> Run:
    return {
        kind: {"tokens": 100, "skip": s, "skip_net": s - 0.01, "skip_std": s / 2}
        for kind, s in {"all": skip, **kinds}.items()
    }


def score(
    task: str,
    items: Sequence[float],
    metric: str = "acc",
    skip: float = 0.2,
    answers: float | None = None,
    **changes: Any,
) -> Run:
    """One entry of ``scores``, with its items."""
    return {
        "task": task, "metric": metric, "filter": "none", "primary": True, "higher_is_better": True,
        "value": float(np.mean(items)), "n": len(items), "k": int(sum(items)), "stderr": 0.1,
        "chance": 0.25, "shots": 0, "split": "test", "chat_template": False, "version": 1.0,
        "prompt_hash": "p", "items": list(items),
        "rates": rates(skip, answer=skip if answers is None else answers),
    } | changes  # fmt: skip


def half() -> list[Run]:
    return [score(task, [1, 0] * (n // 2)) for task, n in TASKS.items()]


def code(row: str, **changes: str) -> dict[str, str]:
    """Hashes of the code of a row."""
    return {"methods/core": "c", f"methods/{row}": "m"} | changes


def record(row: str, skip: float, *scores: Run, **changes: Any) -> Run:
    """A finished run of a dynamic row; by the pooled protocol where one applies."""
    applies = changes.get("kind", "dynamic") == "dynamic" and changes.get("budget", 0.25)
    return {
        "format": FORMAT, "status": "ok", "reason": None, "suite": "made", "row": row,
        "method": row, "title": row.title(), "kind": "dynamic", "stochastic": True, "params": {},
        "start": None, "budget": 0.25, "match": "pooled" if applies else None, "seed": 42,
        "backbone": {
            "name": "toy", "path": "/p", "revision": None, "hash": "0123456789abcdef",
            "parameters": 10, "layers": 1,
        },
        "fit": {
            "seconds": 2.5, "peak_memory_mb": 300.0, "device": "cpu", "threads": 1,
            "cpu_capability": "AVX2", "trained_parameters": 0,
        },
        "fit_code": code(row), "weights_hash": None, "scores": list(scores), "not_run": [],
        "rates": rates(skip, prompt=skip, likelihood=skip / 2), "skip_authors": 0.5, "units": [],
        "layers": {"kept": 4, "dense": 4, "removed": []},
        "evaluation": {
            "batch_size": 16, "equal_lengths": False, "share_prefix": False, "max_length": 64,
            "end_tokens": [2], "device": "cpu", "threads": 1, "seconds": 1.5,
            "peak_memory_mb": 200.0,
        },
        "versions": {"python": "3.11", "torch": "2", "lm_eval": "0.4"}, "commit": None,
        "dirty": False, "code": code(row),
        "hardware": {"processor": "p", "cores": 2, "accelerator": None},
    } | changes  # fmt: skip


def distance(
    tokens: Sequence[int], kl: Sequence[float], agreement: Sequence[int], skip: float = 0.2
) -> Run:
    """Sums over the tokens of each text."""
    return {
        "skip": skip, "tokens": list(tokens), "kl": list(kl), "agreement": list(agreement),
    }  # fmt: skip


def fidelity(kl: float, skip: float, seed: int = 0) -> Run:
    """A run about ``kl`` nats from the dense model: twelve texts, a third of their tokens answers.

    Runs of one seed lie apart from others of the same ``kl``.
    """
    rng = np.random.default_rng(seed)
    lengths, distances = 3 * np.arange(3, 15), {}
    for kind, tokens in (("all", lengths), ("answer", lengths // 3)):
        sums = kl * tokens * rng.uniform(0.5, 1.5, len(tokens))
        agreed = np.round(tokens * np.exp(-kl * rng.uniform(0.2, 0.8, len(tokens)))).astype(int)
        distances[kind] = distance(tokens.tolist(), sums.tolist(), agreed.tolist(), skip)
    return {"texts": "0123456789abcdef", "seconds": 0.5, "distances": distances}


def dense(*scores: Run, **changes: Any) -> Run:
    """The reference."""
    own = {"kind": "reference", "stochastic": False, "budget": None, "skip_authors": 0.0}
    return record("dense", 0.0, *scores, **(own | changes))


def not_applicable(row: str, reason: str, **changes: Any) -> Run:
    run = record(row, 0.0, status="not applicable", reason=reason, **changes)
    return {name: value for name, value in run.items() if name not in SCORED}


def split(run: Run) -> tuple[Record, pd.DataFrame]:
    """The record, and its items in no particular order."""
    scores = run.get("scores", [])
    lines = [
        {key: s[key] for key in ("task", "metric", "filter")}
        | {"item": n, "value": float(v), "choice": int(v)}
        for s in scores
        for n, v in enumerate(s["items"])
    ]
    mixed = pd.DataFrame(lines).sample(frac=1, random_state=run["seed"] + len(run["row"]))
    plain = [{name: value for name, value in s.items() if name != "items"} for s in scores]
    return to_record(run | ({"scores": plain} if scores else {})), mixed.reset_index(drop=True)


def typed(*runs: Run) -> list[Record]:
    return [split(run)[0] for run in runs]


def panels(
    *runs: Run,
    tasks: Sequence[str] = ("a", "b"),
    resamples: int = 400,
    measure_tasks: Sequence[str] | None = None,
) -> list[Panel]:
    """Panels as a report makes them, against ``dense``."""
    parts = [split(run) for run in runs]
    items = {number: frame for number, (_, frame) in enumerate(parts) if len(frame)}
    records = [record for record, _ in parts]
    return make_panels(records, items, tasks, "dense", measure_tasks, resamples)


def write(file: Path, run: Run) -> Path:
    """The record, with its items beside it."""
    record, items = split(run)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(record.to_json()), encoding="utf-8")
    if len(items):
        items.to_parquet(file.with_suffix(".items.parquet"), index=False)
    return file


def write_run(results: Path, run: Run) -> Path:
    """The record where a suite puts it."""
    return write(run_folder(results, run) / "record.json", run)


def run_folder(results: Path, run: Run) -> Path:
    label = "b0" if run["budget"] is None else f"b{100 * run['budget']:g}"
    label += "-split" if run["match"] == "split" else ""
    return results / run["backbone"]["name"] / run["row"] / label / f"s{run['seed']}"


def suite(matches: Sequence[str] = ("pooled",)) -> list[Run]:
    """Dense, LoRA, three rows of several seeds at two targets, one that is not applicable.

    HeRo and random-skip run by each of the protocols.
    """
    rng = np.random.default_rng(7)
    hard = {task: rng.random(n) for task, n in TASKS.items()}

    def solved(quality: float, skip: float, apart: float = 0.0) -> list[Run]:
        """Tasks skip ``apart`` fewer and ``apart`` more answer tokens, ``skip`` in the mean."""
        return [
            score(task, (values + rng.normal(0, 0.15, len(values)) < quality).astype(float),
                  skip=skip, answers=skip + sign * apart)
            for (task, values), sign in zip(hard.items(), (-1, 1), strict=True)
        ]  # fmt: skip

    trained = {"params": {"updates": 10, "batch_tokens": 64}}
    trained["fit"] = record("x", 0.0)["fit"] | {"trained_parameters": 1234}
    runs = [dense(*solved(0.9, 0.0), fidelity=fidelity(0, 0))]
    free = {"budget": None, "kind": "reference", "fidelity": fidelity(0.05, 0)}
    runs.append(record("lora", 0.0, *solved(0.88, 0.0), **free, **trained))
    for match, budget in product(matches, (0.25, 0.4)):
        for seed in (42, 43, 44):
            labels = {"budget": budget, "seed": seed, "match": match}
            labels["fidelity"] = fidelity(budget, budget, seed)
            even = solved(0.5, budget)
            runs.append(record("random-skip", budget + 0.001, *even, **labels))
            skip, quality = budget - 0.004 + seed / 1e4, 0.8 - budget / 4 + rng.normal(0, 0.03)
            answers = skip - 0.1 if match == "pooled" else skip + (seed - 43) / 50
            hero = record("hero", skip, *solved(quality, answers, 0.03), **labels, **trained)
            runs.append(hero | hero_rates(hero, skip))
        cut = {"kind": "static", "stochastic": False, "budget": budget}
        cut["fidelity"] = fidelity(2 * budget, budget - 0.03)
        if match == matches[0]:
            runs.append(record("shortgpt+lora", budget - 0.03, *solved(0.72, budget - 0.03), **cut))
    runs.append(not_applicable("slicegpt", "its widths do not fit", kind="static", budget=0.4))
    return runs


def hero_rates(run: Run, skip: float) -> Run:
    """Pooled, HeRo skips on prompts; split, it skips too few of them once.

    Training of seed 43 ended far from the budget.
    """
    prompt = skip + 0.05 if run["match"] == "pooled" else skip - 0.02 - (44 - run["seed"]) / 100
    kinds = ("pooled",) if run["match"] == "pooled" else ("prompt", "answer")
    ended = dict.fromkeys(kinds, 0.002 if run["seed"] == 43 else skip)
    return {
        "rates": rates(skip, prompt=prompt, likelihood=skip / 2),
        "fit": run["fit"] | {"trained_skip": ended, "threshold": 0.7 + run["seed"] / 1e4},
    }


def write_suite(results: Path, matches: Sequence[str] = ("pooled",)) -> Path:
    """The runs of :func:`suite`, and two of the noise floor."""
    runs = suite(matches)
    for run in runs:
        write_run(results, run)
    for size, flips in ((1, 0), (8, 2)):
        repeat = json.loads(json.dumps(runs[0]))
        repeat["evaluation"]["batch_size"] = size
        entry = repeat["scores"][0]
        for _ in range(flips):
            entry["items"][entry["items"].index(1)] = 0.0
        entry["k"], entry["value"] = int(sum(entry["items"])), float(np.mean(entry["items"]))
        write(results / f"toy/dense/b0/s42/noise/batch{size}.json", repeat)
    return results


def write_full_suite(results: Path) -> Path:
    """The runs of :func:`suite` by both protocols, with texts, and HeRo's routes and decisions."""
    write_suite(results, ("pooled", "split"))
    rng = np.random.default_rng(5)
    for file in sorted(results.rglob("record.json")):
        run = json.loads(file.read_text())
        if run["status"] == "ok":
            add_texts(file)
        if run["row"] == "hero":
            add_routes(run, rng)
            write_decisions(file)
        file.write_text(json.dumps(run))
    return results


def add_texts(file: Path) -> None:
    """Texts of the items of a record: ``left`` compares two choices, else an answer is written."""

    def sample(line: Mapping[Any, Any]) -> str:
        texts: Run = {"prompt": f"{NASTY} {line['item']}", "target": 1}
        if line["task"] == "left":
            texts |= {"choices": [NASTY, " right"], "scores": [-1.5, -1.5 + line["value"] - 0.5]}
        else:
            texts |= {"target": "yes", "text": "yes" if line["value"] else NASTY}
        return json.dumps(texts)

    items = pd.read_parquet(frame := file.with_suffix(".items.parquet"))
    samples = [sample(line) for line in items.to_dict("records")]
    items.assign(**{SAMPLE: samples}).to_parquet(frame, index=False)


def add_routes(run: Run, rng: np.random.Generator) -> None:
    """Three units in two of four layers, and what they ran for a prompt of each task."""
    ran = rng.integers(0, 2, (2, len(UNITS), len(TOKENS)))
    run["units"] = [
        {"layer": layer, "kind": kind, "parameters": size, "executed": float(share)}
        for (layer, kind, size), share in zip(UNITS, ran.mean(axis=(0, 2)), strict=True)
    ]
    run["routes"] = [
        {
            "task": task, "tokens": TOKENS, "first_answer": 5,
            "executed": ["".join(map(str, unit)) for unit in part.tolist()],
        }
        for task, part in zip(TASKS, ran, strict=True)
    ]  # fmt: skip


def write_decisions(file: Path) -> None:
    """A curve, a number per layer, a word, and a list that is too long for the page."""
    decisions = {
        "training": [{"update": n, "loss": 3 / (n + 1), "skip": n / 400} for n in range(100)],
        "scores": [0.5, 0.25, 0.125, 1.0],
        "threshold": 0.75,
        "calibration": [{"threshold": 0.5, "skip": 0.3}, {"threshold": 0.75, "skip": 0.25}],
        "removed_layers": [NASTY],
        "rates": [[n, n] for n in range(200)],
    }
    file.with_suffix(".decisions.json").write_text(json.dumps(decisions))


def line(frame: pd.DataFrame, **keys: Any) -> dict[str, Any]:
    """The only line of a frame with these values."""
    for name, value in keys.items():
        frame = frame[frame[name] == value]
    (found,) = frame.to_dict("records")
    return found
