"""Let a model write texts itself, for its own calibration: one document per row of JSON Lines.

    python -m workflows.steps.texts --model DIR --rows 48 --out FILE.jsonl

A chat model writes conversations, another model texts. The same seed gives the same texts on one
machine.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from tqdm import tqdm

from workflows.evaluation.models import load_any
from workflows.evaluation.own_texts import Writer
from workflows.runtime.devices import claim_device
from workflows.runtime.files import check_place, whole_file
from workflows.runtime.program import (
    add_machine_arguments,
    check_positive,
    run,
    set_up_torch,
    step_parser,
)
from workflows.suite.job import DATA_PARTS, FIDELITY


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = step_parser(__doc__)
    parser.add_argument(
        "--model", required=True, type=Path, metavar="DIR", help="compressed or plain Hugging Face"
    )
    parser.add_argument("--rows", required=True, type=int, metavar="N", help="documents")
    parser.add_argument("--max-length", type=int, default=1024, help="most tokens of a document")
    parser.add_argument("--seed", type=int, default=0, help="of the draws")
    parser.add_argument(
        "--part", choices=(*DATA_PARTS, FIDELITY), default="calibration",
        help="of a suite's data; each part has texts of its own",
    )  # fmt: skip
    parser.add_argument("--out", required=True, type=Path, metavar="FILE.jsonl", help="rows")
    add_machine_arguments(parser)
    return parser.parse_args()


def main() -> None:
    """Check the arguments, load the model, write its texts."""
    args = arguments()
    check_place(args.out, ".jsonl")
    check_positive(args, "rows")
    if args.max_length < 8:
        raise ValueError(f"--max-length is {args.max_length}, must be at least 8")
    set_up_torch(args.threads)
    with (
        claim_device(args.device) as device,
        whole_file(args.out) as file,
        file.open("w", encoding="utf-8") as stream,
    ):
        loaded = load_any(args.model, None, device)
        assert loaded.tokenizer is not None  # load_any refuses such a folder
        writer = Writer(loaded.model, loaded.tokenizer, args.max_length, args.seed, args.part)
        for document in tqdm(writer.texts(args.rows), desc="texts", total=args.rows):
            stream.write(json.dumps(document, ensure_ascii=False) + "\n")
    print(f"{args.out}: {args.rows} documents")


if __name__ == "__main__":
    run(main)
