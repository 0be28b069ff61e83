"""Made results with what a page shows behind a number: texts, routes and decisions, all nasty."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from tests.made_records import write_suite
from workflows.records import SAMPLE

NASTY = "</script><script>document.title = 'broken'</script><b>&amp; \u2028 ]]> {{ x }}"
TOKENS = ["<s>", "in", " <i>fact", "</script>", "of", "of", " answer"]
UNITS = [(0, "attention", 2), (0, "ffn", 2), (3, "ffn", 1)]


def write_told(folder: Path) -> Path:
    """The runs of :func:`tests.made_records.suite` of both protocols, told to the end."""
    write_suite(folder, ("pooled", "split"))
    rng = np.random.default_rng(5)
    for file in sorted(folder.rglob("record.json")):
        record = json.loads(file.read_text())
        if record["status"] == "ok":
            add_texts(file)
        if record["row"] == "hero":
            routed(record, rng)
            write_decisions(file)
        file.write_text(json.dumps(record))
    return folder


def add_texts(file: Path) -> None:
    frame = file.with_suffix(".items.parquet")
    items = pd.read_parquet(frame)
    texts = [sample(line) for line in items.to_dict("records")]
    items.assign(**{SAMPLE: texts}).to_parquet(frame, index=False)


def sample(line: dict[Any, Any]) -> str:
    """``left`` compares two choices, ``right`` has an answer written."""
    told: dict[str, Any] = {"prompt": f"{NASTY} {line['item']}", "target": 1}
    if line["task"] == "left":
        told |= {"choices": [NASTY, " right"], "scores": [-1.5, -1.5 + line["value"] - 0.5]}
    else:
        told |= {"target": "yes", "text": "yes" if line["value"] else NASTY}
    return json.dumps(told)


def routed(record: dict[str, Any], rng: np.random.Generator) -> None:
    """Three units in two of four layers, and what they ran for a prompt of each task."""
    ran = rng.integers(0, 2, (2, len(UNITS), len(TOKENS)))
    record["units"] = [
        {"layer": layer, "kind": kind, "parameters": size, "executed": float(share)}
        for (layer, kind, size), share in zip(UNITS, ran.mean(axis=(0, 2)), strict=True)
    ]
    record["routes"] = [
        {
            "task": task, "tokens": TOKENS, "first_answer": 5,
            "executed": ["".join(map(str, unit)) for unit in part.tolist()],
        }
        for task, part in zip(("left", "right"), ran, strict=True)
    ]  # fmt: skip


def write_decisions(file: Path) -> None:
    """A curve, a number per layer, a word and what is too long to be shown."""
    training = [{"update": n, "loss": 3 / (n + 1), "skip": n / 400} for n in range(100)]
    file.with_suffix(".decisions.json").write_text(
        json.dumps(
            {
                "training": training,
                "scores": [0.5, 0.25, 0.125, 1.0],
                "threshold": 0.75,
                "calibration": [{"threshold": 0.5, "skip": 0.3}, {"threshold": 0.75, "skip": 0.25}],
                "removed_layers": [NASTY],
                "rates": [[n, n] for n in range(200)],
            }
        )
    )
