"""Fit one row on one backbone: `python -m workflows.steps.fit --method shortgpt ...`.

Writes a folder that `methods.load_model` reads; it appears when it is complete. If the row does not
apply to the backbone or the budget, the folder says why and the exit status is 0. With
--processes N, or under torchrun, the processes share each update of a trained row.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import time
from dataclasses import replace
from pathlib import Path

import torch

from methods import Row, find_row, load_method
from methods.base import Fitted, Method, Request
from methods.core.budget import check_budget
from methods.core.data import Data, check_file
from methods.core.jsonfile import parse_json
from methods.core.model.card import CARD, read_card, write_card
from methods.core.model.checkpoint import describe, open_backbone, save
from methods.core.training.snapshots import NAME as SNAPSHOT
from methods.core.training.snapshots import earlier_seconds, tell_other_code
from workflows.records.card import rows_of
from workflows.records.record import PROTOCOLS
from workflows.runtime.processes import process_group, start_processes
from workflows.runtime.program import (
    add_machine_arguments,
    check_positive,
    peak_memory_mb,
    reset_peak_memory,
    run,
    set_up_torch,
    step_parser,
)
from workflows.runtime.provenance import code_hashes, cpu_capability, fit_parts, provenance
from workflows.suite.job import DATA_PARTS

# Decisions of a routed fit that go into its record: what training and calibration reached.
STEERED = ("trained_skip", "threshold")


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = step_parser(__doc__)
    parser.add_argument("--method", required=True, metavar="ROW", help="row, as `rows` lists them")
    parser.add_argument(
        "--backbone", required=True, type=Path, metavar="DIR",
        help="Hugging Face folder, or a static row's model for a trained row without a budget",
    )  # fmt: skip
    parser.add_argument(
        "--revision", help="label of its version where fetch noted none; default: none"
    )
    parser.add_argument(
        "--dtype",
        default="float32",
        help="float32, bfloat16 or float16; a compressed model keeps its own",
    )
    parser.add_argument(
        "--budget",
        help="fraction of the dense parameters to skip, in (0, 1); default: none, the params "
        "decide; has no effect on a row without a budget",
    )
    parser.add_argument(
        "--match",
        choices=PROTOCOLS,
        default=PROTOCOLS[0],
        help="what meets the budget: the mean over all tokens, or prompts and answers each; has no "
        "effect on a row that does not decide per token, or without a budget",
    )
    parser.add_argument("--seed", type=int, default=42, help="seed of the fit")
    parser.add_argument("--params", default="{}", metavar="JSON", help="override the row's")
    parser.add_argument(
        "--lender",
        type=Path,
        metavar="DIR",
        help="a model that a control takes rates of; default: none",
    )
    parser.add_argument(
        "--calibration", type=Path, metavar="FILE", help=".jsonl, or .npy of ids; default: none"
    )
    parser.add_argument(
        "--train", type=Path, metavar="FILE", help=".jsonl, or a folder .tokens; default: none"
    )
    parser.add_argument("--validation", type=Path, metavar="FILE", help=".jsonl; default: none")
    parser.add_argument("--probe", type=Path, metavar="FILE", help=".jsonl; default: --validation")
    parser.add_argument(
        "--max-length", type=int, default=2048,
        help="tokens per document, at most the backbone's window",
    )  # fmt: skip
    parser.add_argument(
        "--processes", type=int, default=1, metavar="N", help="share a trained fit, one GPU each"
    )
    parser.add_argument(
        "--workdir", type=Path, help="checkpoints of this fit alone; default: beside --out"
    )
    parser.add_argument(
        "--out", required=True, type=Path, metavar="DIR", help="folder of the fitted model"
    )
    add_machine_arguments(parser)
    return parser.parse_args()


def main() -> None:
    """Check the arguments, fit, write."""
    args = arguments()
    row = find_row(args.method)
    params = parse_json(args.params, "--params")
    if not isinstance(params, dict):
        raise ValueError(
            f"--params must be a JSON object, such as '{{\"layers\": 3}}': {args.params}"
        )
    method = load_method(args.method, params)
    budget = None if args.budget is None else check_budget(args.budget)
    if not row.budgeted:
        budget = None
    if args.lender is not None and not row.borrows:
        raise ValueError(f"--lender {args.lender}: row '{row.name}' takes no rates of another")
    if args.processes < 1 or (args.processes > 1 and not row.trained):
        raise ValueError(f"--processes is {args.processes}; only a trained row takes more than 1")
    check_data(args, row)
    if args.processes > 1 and "RANK" not in os.environ:
        raise SystemExit(start_processes(args.processes, args.device, "workflows.steps.fit"))
    set_up_torch(args.threads)
    workdir = args.workdir or args.out.parent / f"{args.out.name}.checkpoints"
    request = Request(budget, args.seed, workdir / code_of(row), args.match, args.lender)
    with process_group(args.device, args.out) as (device, folder):
        fit(args, method, request, device, folder)
    if os.environ.get("RANK", "0") == "0":
        # The folder is complete. A later fit could only continue a snapshot by mistake.
        for snapshot in workdir.glob(f"*/{SNAPSHOT}"):
            snapshot.unlink()
        print(f"wrote {args.out}")


def check_data(args: argparse.Namespace, row: Row) -> None:
    """Refuse data that are missing, before the backbone is loaded.

    Raises:
        ValueError: A file does not exist, or a trained row has nothing to train on.
    """
    check_positive(args, "max_length")
    for part in DATA_PARTS:
        file = getattr(args, "train" if part == "training" else part)
        if file is not None:
            check_file(file, part)
    if row.trained and args.train is None:
        raise ValueError(f"no training file was given (--train), and '{row.name}' needs one")


def code_of(row: Row) -> str:
    """A digest of the code of a fit. Only the same code continues a snapshot: a card names one."""
    code = code_hashes(fit_parts(row)) | {"torch": torch.__version__}
    return hashlib.sha256(json.dumps(code, sort_keys=True).encode()).hexdigest()[:12]


def fit(
    args: argparse.Namespace, method: Method, request: Request, device: str, folder: Path
) -> None:
    """Load what the fit starts from, fit the method, write the folder."""
    start = read_card(args.backbone) if (args.backbone / CARD).is_file() else None
    row = find_row(args.method)
    if start is not None and (row.budgeted or not row.trained):
        raise ValueError(
            f"--backbone {args.backbone} is a compressed model; only a trained row without a "
            f"budget can start from one, not '{args.method}'"
        )
    if start is not None and start.not_applicable is not None:
        # The row that it should start from does not apply, so neither does this one.
        params = vars(method.params)
        card = replace(start, row=row.name, params=params, seed=request.seed, start=start.as_start)
        write_card(folder, card)
        return
    backbone = open_backbone(args.backbone, args.dtype, device, args.revision)
    card = describe(args.method, method, backbone, request, args.out)
    reason = method.skip_reason(backbone, request)
    if reason is not None:
        if not isinstance(reason, str):
            raise ValueError(f"row '{row.name}': skip_reason is {reason!r}, must be text or None")
        print(f"{args.method} is not applicable: {reason}")
        write_card(folder, replace(card, not_applicable=reason))
        return
    data = Data(
        tokenizer=backbone.tokenizer,
        vocab_size=backbone.config.vocab_size,
        max_length=args.max_length,
        window=backbone.window,
        calibration_file=args.calibration,
        training_file=args.train,
        validation_file=args.validation,
        probe_file=args.probe,
    )
    tell_other_code(request.workdir)
    # Loading maps the weight files; their pages would count in addition to their copies.
    reset_peak_memory()
    began = time.perf_counter()
    result = method.fit(backbone, data, request)
    if not isinstance(result, Fitted):
        raise ValueError(f"row '{row.name}': fit gives {result!r}, must be a Fitted")
    seconds = time.perf_counter() - began + earlier_seconds(request.workdir)
    names = STEERED if method.kind == "dynamic" else ()
    cost = {
        "seconds": round(seconds, 4),
        "peak_memory_mb": peak_memory_mb(),
        "device": device,
        "threads": args.threads,
        "cpu_capability": cpu_capability(),
        "trained_parameters": sum(
            p.numel() for p in result.model.parameters() if p.requires_grad and method.trained
        ),
        **{name: result.decisions[name] for name in names if name in result.decisions},
    }
    card = replace(card, fit=cost, provenance=provenance(fit_parts(*rows_of(card))))
    save(folder, method, result, card, backbone.tokenizer)


if __name__ == "__main__":
    run(main)
