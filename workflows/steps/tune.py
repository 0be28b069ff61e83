r"""Choose the learning rate of every trained row of a suite: same grid, updates and data for all.

Each row is fitted once per rate, at the suite's first budget and under its first protocol. Of the
rates whose model meets the budget, the best one gets the most answers of the validation split right
(its likeliest tokens spell them); of equal ones, the one with the lowest loss on these answers.
Scored items are never used. A healed row starts from the static model that a run of the suite made.
The outcome is a small YAML file to commit, which suites read under `tuned:`. --workdir keeps the
tries, so that an interrupted call continues.

    python -m workflows.steps.tune --suite workflows/suites/demo_full.yaml --updates 500 \
        --data results/demo_full/data --out workflows/suites/tuned/demo.yaml
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from methods import load_method
from methods.base import Request
from methods.core.data import Data, check_file
from methods.core.jsonfile import write_json
from methods.core.model.checkpoint import open_backbone
from methods.core.model.folder import hash_folder
from methods.core.training.loop import DivergedError
from methods.core.training.losses import Answers, score_answers
from workflows.runtime.contents import TOKENIZER, Contents, model_files
from workflows.runtime.devices import claim_device
from workflows.runtime.files import check_place, whole_file
from workflows.runtime.program import (
    add_machine_arguments,
    check_positive,
    run,
    set_up_torch,
    step_parser,
)
from workflows.runtime.provenance import code_hash, fit_parts
from workflows.stats.budget import met
from workflows.suite.config import read_configs
from workflows.suite.job import Job
from workflows.suite.jobs import Suite, read_suite

GRID = (3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1)
PARTS = ("training", "validation", "probe")


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = step_parser(__doc__)
    parser.add_argument(
        "--suite", required=True, metavar="FILE.yaml", help="or a name below workflows/suites"
    )
    parser.add_argument("--rows", help="a,b; default: every trained row of the suite")
    parser.add_argument("--grid", default=",".join(map(str, GRID)), help="learning rates, a,b,c")
    parser.add_argument("--updates", type=int, help="per try; default: the suite's")
    parser.add_argument("--data", required=True, type=Path, metavar="DIR", help="prepared data")
    parser.add_argument(
        "--workdir", type=Path, default=Path("results/tune"), metavar="DIR", help="finished tries"
    )
    parser.add_argument(
        "--out", required=True, type=Path, metavar="FILE.yaml", help="the chosen rates"
    )
    add_machine_arguments(parser)
    return parser.parse_args()


def main() -> None:
    """Try every rate, write the best ones."""
    args = arguments()
    config = read_configs([args.suite])
    # Rates that were tuned before must not enter.
    suite = read_suite({key: value for key, value in config.items() if key != "tuned"})
    set_up_torch(args.threads)
    rates = grid(args.grid)
    check_positive(args, "updates")
    check_place(args.out)
    jobs = jobs_to_tune(suite, args.rows.split(",") if args.rows else None)
    check_starts(suite, jobs)
    for part in PARTS:
        check_file(args.data / f"{part}.jsonl", part)
    with claim_device(args.device) as args.device:
        tries = {job.row: [try_rate(suite, job, rate, args) for rate in rates] for job in jobs}
    best = {job.row: best_try(job, tries[job.row]) for job in jobs}
    outcome = {
        "params": {row: {"learning_rate": one["learning_rate"]} for row, one in best.items()},
        "tries": tries,
        "updates": args.updates or suite.config["training"].get("updates"),
        "seed": suite.config["seeds"][0],
    }
    with whole_file(args.out) as file:
        text = yaml.safe_dump(outcome, sort_keys=False)
        file.write_text(f"# Written by workflows.steps.tune from {args.suite}.\n{text}", "utf-8")
    print(f"wrote {args.out}")


def grid(text: str) -> list[float]:
    """Learning rates as numbers.

    Raises:
        ValueError: Not of that form.
    """
    try:
        return [float(word) for word in text.split(",")]
    except ValueError as error:
        raise ValueError(f"--grid '{text}' must be learning rates, such as 1e-3,3e-3") from error


def jobs_to_tune(suite: Suite, rows: Sequence[str] | None) -> list[Job]:
    """The first job of each row; by default of every trained row, healed rows among them.

    Raises:
        ValueError: One of ``rows`` is not a trained row of the suite.
    """
    first = {job.row: job for job in reversed(suite.jobs) if job.method.trained}
    if rows is None:
        derived = suite.config["derive"]
        rows = sorted(r for r, j in first.items() if r not in derived or j.start is not None)
    for row in rows:
        if row not in first:
            raise ValueError(f"--rows: '{row}' is not a trained row of the suite ({list(first)})")
    return [first[row] for row in rows]


def check_starts(suite: Suite, jobs: Sequence[Job]) -> None:
    """Refuse a healed row whose static model is not there yet, before any try.

    Raises:
        ValueError: The first such row.
    """
    for job in jobs:
        start = Path(suite.start_folder(job))
        if job.start is not None and not start.is_dir():
            raise ValueError(f"{job.row} starts from {start}, which a run of the suite makes first")


def best_try(job: Job, tries: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """The try with the most right answers among those that meet the job's budget.

    Raises:
        ValueError: None meets it.
    """
    candidates = [attempt for attempt in tries if met(job.budget, attempt.get("skip", job.budget))]
    if not candidates:
        raise ValueError(f"{job.row}: no learning rate meets the budget {job.budget}")
    return max(candidates, key=lambda attempt: (attempt["right"], -attempt["loss"]))


def try_rate(suite: Suite, job: Job, rate: float, args: argparse.Namespace) -> dict[str, Any]:
    """Fit one row at one rate, or read the outcome if this was done before."""
    params = {**job.params, "learning_rate": rate}
    if args.updates is not None:
        params["updates"] = args.updates
    start = Path(suite.start_folder(job))
    identity = _identity(job, params, suite.config["max_length"], args.data, start)
    folder = args.workdir / suite.name / job.row / f"{rate:g}-{identity}"
    try_file = folder / "try.json"
    if try_file.is_file():
        return dict(json.loads(try_file.read_text(encoding="utf-8")))
    backbone = open_backbone(start, device=args.device)
    data = Data(
        tokenizer=backbone.tokenizer,
        vocab_size=backbone.config.vocab_size,
        max_length=suite.config["max_length"],
        window=backbone.window,
        **{f"{part}_file": args.data / f"{part}.jsonl" for part in PARTS},
    )
    method = load_method(job.method.name, params)
    budget = None if job.start is not None else job.budget
    request = Request(budget, job.seed, folder / "checkpoints", job.match or "pooled")
    outcome: dict[str, Any] = {"learning_rate": rate}
    try:
        fitted = method.fit(backbone, data, request)
        answers = score_answers(fitted.model.eval(), data.validation())
        trace = fitted.decisions.get("calibration", [])
        if budget is not None and trace:
            skip = min((one["skip"] for one in trace), key=lambda one: abs(one - budget))
            outcome["skip"] = round(skip, 4)
    except DivergedError as error:
        print(f"{job.row} at {rate:g}: {error}")
        answers = Answers(0.0, 1e9)
    outcome |= {"right": round(answers.right, 5), "loss": round(answers.loss, 5)}
    folder.mkdir(parents=True, exist_ok=True)
    write_json(try_file, outcome)
    shutil.rmtree(folder / "checkpoints", ignore_errors=True)
    print(f"{job.row} at {rate:g}: {outcome}", flush=True)
    return outcome


def _identity(job: Job, params: Mapping[str, Any], max_length: int, data: Path, start: Path) -> str:
    """Hash of all that a try depends on: fit, start model, data and code."""
    code = [code_hash(part) for part in fit_parts(job.method)]
    files = [*model_files(start, *TOKENIZER), *(data / f"{part}.jsonl" for part in PARTS)]
    fit = [code, params, max_length, job.budget, job.match, job.seed, hash_folder(start)]
    text = json.dumps([fit, Contents().of(files)], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


if __name__ == "__main__":
    run(main)
