"""Time and peak memory of fits on random weights of a true shape: no download, no training data.

    python -m workflows.steps.cost --shape llama32_1b --rows shortgpt,slicegpt --out cost.json

Rows run the fit step one after the other, each in its own process, on the same folder of weights.
--workdir keeps the rows that are done, so an interrupted call continues. MB are 2^20 bytes.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path
from platform import node
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM

from methods import find_row
from methods.core.budget import check_budget
from methods.core.model.backbone import shape_config
from methods.core.model.card import read_card
from methods.core.model.shapes import SHAPES
from methods.core.model.tensors import DTYPES
from workflows.evaluation.store import stored_value
from workflows.runtime.files import check_place, whole_file, whole_folder, write_json
from workflows.runtime.program import (
    add_machine_arguments,
    check_positive,
    command_of,
    run,
    set_up_torch,
    step_parser,
)
from workflows.runtime.provenance import code_hashes, fit_parts, package_versions, provenance
from workflows.suite.job import data_parts, data_words


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = step_parser(__doc__)
    parser.add_argument("--shape", required=True, choices=sorted(SHAPES), help="of the weights")
    parser.add_argument("--rows", required=True, help="a,b: rows that train nothing")
    parser.add_argument("--budget", type=float, default=0.25, help="of every row")
    parser.add_argument("--documents", type=int, default=8, help="calibration documents")
    parser.add_argument("--length", type=int, default=512, help="tokens of each")
    parser.add_argument("--dtype", default="float32", choices=sorted(DTYPES), help="of weights")
    parser.add_argument(
        "--workdir",
        type=Path,
        default=Path("results/cost"),
        metavar="DIR",
        help="rows that are done",
    )
    parser.add_argument("--out", required=True, type=Path, metavar="FILE.json", help="the costs")
    add_machine_arguments(parser)
    return parser.parse_args()


def main() -> None:
    """Fit every row, write what each took."""
    args = arguments()
    check_place(args.out)
    check_budget(args.budget)
    check_positive(args, "documents", "length")
    rows = args.rows.split(",")
    for row in rows:
        if find_row(row).trained:
            raise ValueError(f"--rows: '{row}' trains; the time step times training")
    set_up_torch(args.threads)
    home = args.workdir / f"{args.shape}-{args.dtype}"
    backbone = home / "backbone"
    if not backbone.is_dir():
        write_backbone(args, backbone)
    ids = home / f"ids-{args.documents}x{args.length}.npy"
    vocabulary = shape_config(args.shape).vocab_size
    shape = (args.documents, args.length)
    with whole_file(ids) as part, part.open("wb") as stream:
        np.save(stream, np.random.default_rng(0).integers(0, vocabulary, shape))
    costs = {row: cost_of(row, backbone, ids, home, args) for row in rows}
    report = {
        "command": command_of(args),
        "weights_mb": round(sum(f.stat().st_size for f in backbone.iterdir()) / 2**20, 1),
        "rows": costs,
        **provenance(fit_parts(*map(find_row, rows))),
    }
    write_json(args.out, report)
    for row, cost in costs.items():
        if reason := cost.get("not_applicable"):
            print(f"{row:20} does not apply: {reason}")
        else:
            print(f"{row:20} {cost['seconds']:8.1f} s  {cost['peak_memory_mb']:9.1f} MB")


def write_backbone(args: argparse.Namespace, folder: Path) -> None:
    """A Hugging Face folder of random weights."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(shape_config(args.shape), dtype=DTYPES[args.dtype])
    with whole_folder(folder) as part:
        model.save_pretrained(part)


def cost_of(
    row: str, backbone: Path, ids: Path, home: Path, args: argparse.Namespace
) -> dict[str, Any]:
    """What the fit step measured for one row, seconds and MB; kept for the same code and machine.

    Of a row that does not apply, ``not_applicable`` says why.

    Raises:
        ValueError: Its fit failed.
    """
    identity = {
        "code": code_hashes(fit_parts(find_row(row))),
        "versions": package_versions(),
        "device": args.device,
        "threads": args.threads,
        "host": node(),
    }
    file = home / f"{row}-{ids.stem}-{args.budget:g}.json"
    cost = stored_value(file, identity, partial(fit, row, backbone, ids, home / row, args))
    return {name: value for name, value in cost.items() if name != "identity"}


def fit(row: str, backbone: Path, ids: Path, out: Path, args: argparse.Namespace) -> dict[str, Any]:
    """Run the fit step; the model is deleted, as is one that a killed call left."""
    shutil.rmtree(out, ignore_errors=True)
    command = [sys.executable, "-m", "workflows.steps.fit", "--method", row]
    command += ["--backbone", str(backbone), "--budget", str(args.budget)]
    command += data_words(dict.fromkeys(data_parts(find_row(row)), ids))
    command += ["--dtype", args.dtype, "--device", args.device]
    command += ["--threads", str(args.threads), "--out", str(out)]
    process = subprocess.run(command, check=False)
    if process.returncode:
        raise ValueError(f"row '{row}' failed on shape '{args.shape}'; see its message above")
    card = read_card(out)
    shutil.rmtree(out)
    if card.fit is None:
        return {"not_applicable": card.not_applicable}
    return {**card.fit, "commit": card.provenance["commit"]}


if __name__ == "__main__":
    run(main)
