r"""Choose learning rates and candidates of trained rows: same grid, updates and data for all.

Each row is tuned for each budget and protocol of its jobs, with the first seed. First every rate of
the grid is tried. A row that chooses among layers (param ``candidates``) then tries the other sets
of layers that hold the budget, at the best rate; if another set wins, also the rates beside it. A
router that LoRA trains with then tries other rates of LoRA relative to its own in the same way. Of
the tries whose model meets the budget, the best one gets the most answers of the validation split
right (its likeliest tokens spell them); of equal ones, the one with the lowest loss on these
answers. Under ``split`` a try that holds the budget on prompts too comes first. A row that cannot
meet the budget is named and left out; if its tries missed it, the step ends with status 2. Scored
items are never used. A healed row starts from the static model that a run of the suite made. A
control keeps the candidates of its lender.

The outcome is a small YAML file to commit, which suites read under `tuned:`. What it holds for
other rows, budgets and protocols stays. --workdir keeps the tries, so that an interrupted call
continues. A rate that holds for few updates may diverge later: try the best ones again at the
suite's own length (--grid with these alone, without --updates).

    python -m workflows.steps.tune --suite workflows/suites/demo_full.yaml --updates 500 \
        --data results/demo_full/data --out workflows/suites/tuned/demo.yaml
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import shutil
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, get_args

import yaml
from torch import Tensor

from methods import load_method
from methods.base import Fitted, Method, Request
from methods.core.budget import LAYER_SETS, LayerSet, routed_layers
from methods.core.data import Data, check_file
from methods.core.jsonfile import read_json
from methods.core.model.backbone import Backbone, empty_backbone
from methods.core.model.checkpoint import open_backbone
from methods.core.model.folder import hash_folder, read_config
from methods.core.routing.calibration import BATCH, skip_rates, weigh
from methods.core.training.loop import DivergedError
from methods.core.training.losses import Answers, score_answers
from methods.core.training.method import RoutedMethod
from workflows.records.record import Protocol
from workflows.runtime.contents import TOKENIZER_FILES, Contents, model_files
from workflows.runtime.devices import claim_device
from workflows.runtime.files import check_place, write_json, write_text
from workflows.runtime.program import (
    add_machine_arguments,
    add_suite_argument,
    check_positive,
    run,
    set_up_torch,
    step_parser,
)
from workflows.runtime.provenance import code_hash, fit_parts
from workflows.suite.config import read_configs
from workflows.suite.job import Job
from workflows.suite.jobs import Suite, read_suite
from workflows.suite.params import defaults
from workflows.suite.tries import DIVERGED, BudgetMissedError, Try, enter, read_outcome, tune

GRID = (3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1)
LORA_GRID = (0.1, 0.3, 1.0, 3.0)
PARTS = ("training", "validation", "probe")


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = step_parser(__doc__)
    add_suite_argument(parser)
    parser.add_argument("--rows", help="a,b; default: the trained rows that are no variants")
    parser.add_argument("--budgets", help="a,b, fractions; default: the suite's")
    parser.add_argument("--match", choices=get_args(Protocol), help="default: the suite's")
    parser.add_argument("--grid", default=",".join(map(str, GRID)), help="learning rates, a,b,c")
    parser.add_argument(
        "--lora-grid",
        default=",".join(map(str, LORA_GRID)),
        help="rates of LoRA beside a router, relative to the router's, a,b,c",
    )
    parser.add_argument("--updates", type=int, help="per try; default: the suite's")
    parser.add_argument("--data", required=True, type=Path, metavar="DIR", help="prepared data")
    parser.add_argument(
        "--workdir",
        type=Path,
        default=Path("results/tune"),
        metavar="DIR",
        help="folder that keeps finished tries",
    )
    parser.add_argument(
        "--out", required=True, type=Path, metavar="FILE.yaml", help="what is chosen"
    )
    add_machine_arguments(parser)
    return parser.parse_args()


def main() -> None:
    """Tune each row for each budget and protocol; write after each."""
    args = arguments()
    config = read_configs(args.suite)
    if args.match is not None:
        config = {**config, "match": args.match}
    # What was tuned before must not enter.
    suite = read_suite({key: value for key, value in config.items() if key != "tuned"})
    if len(suite.config["backbones"]) > 1:
        names = ", ".join(suite.config["backbones"])
        raise ValueError(f"--suite: rows are tuned on one backbone, and it has several ({names})")
    set_up_torch(args.threads)
    rates = above_zero(args.grid, "grid", "learning rates", "1e-3,3e-3")
    shares = above_zero(args.lora_grid, "lora-grid", "shares of a learning rate", "0.3,1")
    check_positive(args, "updates")
    check_place(args.out)
    budgets = args.budgets and numbers(args.budgets, "budgets", "fractions, such as 0.25,0.4")
    jobs = jobs_to_tune(suite, args.rows.split(",") if args.rows else None, budgets)
    check_starts(suite, jobs)
    for file in tuning_files(args.data).values():
        check_file(file, file.stem)
    outcome, missed = read_outcome(args.out), []
    with claim_device(args.device) as args.device:
        for job in jobs:
            reason = why_not(suite, job)
            if reason is not None:
                print(f"{job.row} at a budget of {job.budget}: no try, {reason}")
                continue
            attempt = partial(try_once, suite, job, args)
            try:
                tries = tune(
                    job, rates, layer_sets(suite, job), lora_shares(suite, job, shares), attempt
                )
            except BudgetMissedError as error:
                print(error)
                missed.append(str(error))
                continue
            enter(outcome, job, tries)
            text = yaml.safe_dump(outcome, sort_keys=False)
            write_text(args.out, f"# Written by workflows.steps.tune.\n{text}")
            print(f"wrote {args.out}")
    if missed:
        raise ValueError("; ".join(missed))


def tuning_files(folder: Path) -> dict[str, Path]:
    """Part -> its file; a suite without a probe has none, and rows take the validation texts."""
    files = {part: folder / f"{part}.jsonl" for part in PARTS}
    return {part: file for part, file in files.items() if part != "probe" or file.is_file()}


def numbers(text: str, option: str, form: str) -> list[float]:
    """The numbers of an option, a,b,c.

    Raises:
        ValueError: Not of that form.
    """
    try:
        return [float(word) for word in text.split(",")]
    except ValueError as error:
        raise ValueError(f"--{option} '{text}' must be {form}") from error


def above_zero(text: str, option: str, what: str, example: str) -> list[float]:
    """The numbers of an option, all above 0.

    Raises:
        ValueError: Not of that form.
    """
    values = numbers(text, option, f"{what}, such as {example}")
    if not all(0 < value < math.inf for value in values):
        raise ValueError(f"--{option} '{text}' must be {what} above 0")
    return values


def jobs_to_tune(
    suite: Suite, rows: Sequence[str] | None, budgets: Sequence[float] | None = None
) -> list[Job]:
    """A job for each row, budget and protocol; by default of every trained row, healed ones too.

    Args:
        suite: Its jobs.
        rows: Which rows; None: all that train but variants.
        budgets: Which budgets; None: all. A row without a budget has one job.

    Raises:
        ValueError: One of ``rows`` is not a trained row of the suite, or it has not a budget.
    """
    for budget in budgets or ():
        if budget not in suite.config["budgets"]:
            raise ValueError(f"--budgets: the suite has no {budget} ({suite.config['budgets']})")
    trained = [job for job in suite.jobs if job.method.trained]
    names = list(dict.fromkeys(job.row for job in trained))
    if rows is None:
        derived = {row for row in suite.config["derive"] if row in names}
        healed = {job.row for job in trained if job.start is not None}
        rows = sorted(row for row in names if row not in derived or row in healed)
    for row in rows:
        if row not in names:
            raise ValueError(f"--rows: '{row}' is not a trained row of the suite ({names})")
    chosen: dict[tuple[str, float | None, Protocol | None], Job] = {}
    for row in rows:
        for job in trained:
            if job.row == row and (budgets is None or job.budget in (None, *budgets)):
                chosen.setdefault((row, job.budget, job.match), job)
    return list(chosen.values())


def layer_sets(suite: Suite, job: Job) -> list[LayerSet]:
    """The sets of layers to try in place of a row's own, those that hold its budget.

    None for a row without the param ``candidates`` or with a value of its own, and for a control,
    which keeps the layers of its lender.
    """
    if "candidates" not in defaults(job.method) or "candidates" in job.params or job.lender:
        return []
    count = empty_backbone_of(suite, job).layer_count
    sets: dict[tuple[int, ...], LayerSet] = {}
    for name in LAYER_SETS:
        # Of sets with the same layers, as in shallow models, the first.
        sets.setdefault(tuple(routed_layers(name, count, job.budget)), name)
    sets.pop(tuple(routed_layers("auto", count, job.budget)), None)
    return [name for name in sets.values() if why_not(suite, job, candidates=name) is None]


def lora_shares(suite: Suite, job: Job, shares: Sequence[float]) -> list[float]:
    """The rates of LoRA to try in place of a row's own.

    None for a row without router or LoRA, or with a rate in the suite, which stays.
    """
    derived = suite.config["derive"].get(job.row)
    own = suite.config["params"].get(job.row, {}) if derived is None else derived.get("params", {})
    if "lora_rate" in own:
        return []
    method = load_method(job.method.name, job.params)
    if not isinstance(method, RoutedMethod) or method.lora() is None:
        return []
    return [share for share in shares if share != method.params.lora_rate]


def why_not(suite: Suite, job: Job, **choice: Any) -> str | None:
    """Why a row with these params cannot meet the budget of its job; None: it can."""
    method = load_method(job.method.name, {**job.params, **choice})
    return method.skip_reason(empty_backbone_of(suite, job), request_of(job))


def empty_backbone_of(suite: Suite, job: Job) -> Backbone:
    """The dense model of a job, without its weights."""
    folder = Path(suite.backbone_folder(job.backbone))
    return empty_backbone(read_config(folder), folder)


def request_of(job: Job, snapshots: Path = Path()) -> Request:
    """What the fit of a job is asked for."""
    budget = None if job.start is not None else job.budget
    lender = None if job.lender is None else Path(job.lender.model)
    return Request(budget, job.seed, snapshots, job.match or "pooled", lender)


def check_starts(suite: Suite, jobs: Sequence[Job]) -> None:
    """Refuse a row whose static model or lender is not there yet, before any try.

    Raises:
        ValueError: The first such row.
    """
    for job in jobs:
        for other in filter(None, (job.start, job.lender)):
            if not Path(other.model).is_dir():
                raise ValueError(
                    f"{job.row} starts from {other.model}, which a run of the suite makes first"
                )


def try_once(suite: Suite, job: Job, args: argparse.Namespace, **choice: Any) -> Try:
    """Fit one row with params that are tried, or read the outcome if this was done before."""
    params = {**job.params, **choice}
    if args.updates is not None:
        params["updates"] = args.updates
    start = Path(suite.start_folder(job))
    origin = suite.config["backbones"][job.backbone]
    opened = {"dtype": origin["dtype"], "revision": origin.get("revision")}
    length = suite.config["max_length"]
    identity = _identity(job, params, length, args.data, start, **opened)
    name = "-".join(str(value) for value in choice.values())
    folder = args.workdir / suite.name / job.row / f"{name}-{identity}"
    try_file = folder / "try.json"
    if try_file.is_file():
        return read_json(try_file)
    backbone = open_backbone(start, device=args.device, **opened)
    data = Data(
        tokenizer=backbone.tokenizer,
        vocab_size=backbone.config.vocab_size,
        max_length=length,
        window=backbone.window,
        **{f"{part}_file": file for part, file in tuning_files(args.data).items()},
    )
    method = load_method(job.method.name, params)
    request = request_of(job, folder / "checkpoints")
    outcome: dict[str, Any] = {**choice, "updates": params.get("updates"), "seed": job.seed}
    try:
        fitted = method.fit(backbone, data, request)
        answers = score_answers(fitted.model.eval(), data.validation())
        trace = fitted.decisions.get("calibration", [])
        if request.budget is not None and trace:
            skip = min((one["skip"] for one in trace), key=lambda one: abs(one - request.budget))
            outcome["skip"] = round(skip, 4)
        if job.match == "split" and isinstance(method, RoutedMethod):
            shares = method.shares(empty_backbone_of(suite, job), job.budget)
            outcome["skip_prompt"] = prompt_skip(method, fitted, data, shares)
    except DivergedError as error:
        print(f"{job.row} at {name}: {error}")
        answers = Answers(0.0, DIVERGED)
    outcome |= {"right": round(answers.right, 5), "loss": round(answers.loss, 5)}
    write_json(try_file, outcome)
    shutil.rmtree(folder / "checkpoints", ignore_errors=True)
    print(f"{job.row} at {name}: {outcome}", flush=True)
    return outcome


def prompt_skip(method: Method, fitted: Fitted, data: Data, shares: Tensor) -> float:
    """Skip on the prompts of the probe, a fraction; ``shares`` are of the dense parameters (U,)."""
    batch_size = BATCH if method.batchable() else 1
    rates = skip_rates(fitted.model, weigh(data.probe(), "prompt"), batch_size)[0]
    return round(float(rates @ shares), 4)


def _identity(
    job: Job, params: Mapping[str, Any], max_length: int, data: Path, start: Path, **opened: Any
) -> str:
    """Hash of all that a try depends on: fit, lender, data, code, start model and its dtype."""
    code = [code_hash(part) for part in fit_parts(job.method)]
    files = [*model_files(start, *TOKENIZER_FILES), *tuning_files(data).values()]
    lender = None if job.lender is None else hash_folder(Path(job.lender.model))
    fit = [code, params, max_length, job.budget, job.match, job.seed, hash_folder(start), lender]
    text = json.dumps([fit, opened, Contents().of(files)], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


if __name__ == "__main__":
    run(main)
