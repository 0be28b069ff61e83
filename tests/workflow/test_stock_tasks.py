"""Tasks of lm-eval that the field reports, from a hub on the loopback to the table or a reason."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml

from tests.hub import Hub
from tests.stock_sets import stock_sets, subjects
from tests.toys.models import make_backbone
from tests.toys.texts import make_data
from tests.workflow.conftest import copy_checkout, hub_environment
from workflows.suite.jobs import read_suite

pytestmark = pytest.mark.rehearsal

SHORT = {"until": ["\n"], "do_sample": False, "max_gen_toks": 4}
# Task -> its headline metric.
SCORED = {
    "mmlu": "acc",
    "mmlu_anatomy": "acc",
    "lambada_openai": "acc",
    "truthfulqa_mc1": "acc",
    "truthfulqa_mc2": "acc",
    "sciq": "acc_norm",
    "wikitext": "word_perplexity",
    "triviaqa": "exact_match",
    "bbh_cot_fewshot_boolean_expressions": "exact_match",
}
WRITTEN = ("triviaqa", "bbh_cot_fewshot_boolean_expressions")
NOT_RUN = {
    "logiqa": "its data set is a program (logiqa.py), which the library datasets no longer runs; "
    "point dataset_path of its config to a copy in plain files",
}
if find_spec("langdetect") is None:
    NOT_RUN["ifeval"] = "it needs the Python package 'langdetect', not installed here"


def suite(**changes: Any) -> dict[str, Any]:
    """Two rows on a toy, all the tasks."""
    written = {"config": {"generation_kwargs": SHORT}}
    scored = [
        {"task": task, "metric": metric, "limit": 2} | (written if task in WRITTEN else {})
        for task, metric in SCORED.items()
    ]
    return {
        "suite": "stock",
        "backbones": {"small": {"path": "toy/backbone"}},
        "rows": ["dense", "random-skip"],
        "budgets": [0.25],
        "seeds": [42],
        "tasks": [*({"task": task} for task in NOT_RUN), *scored],
        "data": {
            "calibration": {"source": "toy/data/calibration.jsonl", "rows": 6},
            "probe": {"source": "toy/data/probe.jsonl"},
        },
    } | changes


def run(folder: Path, hub: Hub, *targets: str) -> None:
    """Snakemake to a good end."""
    done = subprocess.run(
        [sys.executable, "-m", "snakemake", *targets, "--cores", "2", "--configfile", "stock.yaml"],
        cwd=folder,
        env=hub_environment(hub, folder / "home"),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=3600,
    )
    logs = "".join(f.read_text()[-1500:] for f in (folder / "results").rglob("*.log"))
    assert done.returncode == 0, done.stdout[-3000:] + logs[-6000:]


def test_each_ends_in_the_table_or_with_a_sentence(tmp_path: Path) -> None:
    folder = copy_checkout(tmp_path / "checkout")
    make_backbone(folder / "toy/backbone", max_position_embeddings=1024)
    make_data(folder / "toy/data")
    (folder / "stock.yaml").write_text(yaml.safe_dump(suite()), encoding="utf-8")
    with Hub(datasets=stock_sets(tmp_path / "hub")).serve() as hub:
        run(folder, hub, "prepare")
        asked = len(hub.requests)
        run(folder, hub)
        assert len(hub.requests) == asked

    scores = pd.read_csv(folder / "reports/stock/tables/scores.csv")
    for _, own in scores.groupby("row"):
        assert set(own["task"]) == set(SCORED)
    page = (folder / "reports/stock/index.html").read_text("utf-8")
    assert "Retain leaves out wikitext" in page
    for task, reason in NOT_RUN.items():
        assert f"{task} is in no table because it was not run" in page
        assert reason.split("'")[0] in page
    records = sorted((folder / "results/stock").rglob("record.json"))
    assert len(records) == 2
    for file in records:
        check_record(file)


def check_record(file: Path) -> None:
    """Reasons, values and items of one run."""
    record = json.loads(file.read_text("utf-8"))
    assert {told["task"]: told["reason"] for told in record["not_run"]} == NOT_RUN
    headline = {s["task"]: s for s in record["scores"] if s["primary"]}
    assert {task: score["metric"] for task, score in headline.items()} == SCORED
    assert all(math.isfinite(score["value"]) for score in record["scores"])
    items = pd.read_parquet(file.with_suffix(".items.parquet"))
    group = items[items["task"] == "mmlu"]
    assert set(group["subtask"]) == {f"mmlu_{name}" for name in subjects()}
    assert group["item"].tolist() == list(range(2 * len(subjects())))
    assert headline["mmlu"]["n"] == len(group)
    assert headline["mmlu"]["value"] == pytest.approx(group["value"].mean())
    # Every token of a text is predicted from those before it, the first from the token in front.
    assert headline["wikitext"]["rates"]["likelihood"]["tokens"] > 1200


@pytest.mark.parametrize(
    ("task", "said"),
    [
        ("mbpp", "task 'mbpp' of lm-eval runs what a model writes without a sandbox"),
        ("truthfulqa", r"'truthfulqa' is a tag, without a score.*truthfulqa_mc1"),
        ("bbh_zeroshot_all", "unknown task 'bbh_zeroshot_all'"),
    ],
)
def test_what_no_machine_can_score_is_refused_with_the_suite(
    task: str, said: str, tmp_path: Path
) -> None:
    make_backbone(tmp_path / "toy/backbone")
    make_data(tmp_path / "toy/data")
    with pytest.raises(ValueError, match=said):
        read_suite(suite(tasks=["sciq", task]), tmp_path)
