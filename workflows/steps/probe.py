"""Write probe rows: `python -m workflows.steps.probe --tasks a,b --rows N --out FILE.jsonl`.

The rows come from the training split of each task (or its validation split, if it has none), never
from scored items, in the form in which the harness feeds them. Nothing is downloaded.
FILE.tasks.json lists the tasks, so that a suite knows which of its tasks were added later.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from methods.core.model.folder import read_config, read_tokenizer
from workflows.evaluation.loading import reasons_not_to_run
from workflows.evaluation.probe import probe_rows
from workflows.evaluation.tasklist import (
    add_limit_argument,
    add_task_arguments,
    limited,
    parse_tasks,
    task_folders,
)
from workflows.evaluation.tasknames import OWN_TASKS, check_names
from workflows.runtime.files import check_place, whole_file, write_text
from workflows.runtime.program import check_positive, run, step_parser
from workflows.suite.jobs import TASK_NAMES


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = step_parser(__doc__)
    parser.add_argument("--tasks", required=True, help="a,b or a JSON list as in a suite")
    add_task_arguments(parser)
    parser.add_argument("--rows", required=True, type=int, metavar="N", help="documents per task")
    parser.add_argument(
        "--backbone",
        type=Path,
        metavar="DIR",
        help="whose chat template tasks with one take; default: none",
    )
    parser.add_argument("--seed", type=int, default=0, help="of the draw of documents")
    add_limit_argument(parser)
    parser.add_argument(
        "--share-prefix", action="store_true",
        help="a context is scored, and counts, once for all its answers",
    )  # fmt: skip
    parser.add_argument("--out", required=True, type=Path, metavar="FILE.jsonl", help="rows")
    return parser.parse_args()


def main() -> None:
    """Check the arguments, build the rows, write them."""
    args = arguments()
    check_place(args.out, ".jsonl")
    check_positive(args, "rows", "limit")
    folders = task_folders(args)
    entries = limited(parse_tasks(args.tasks), args.limit)
    check_names(entries, [OWN_TASKS, *folders])
    tokenizer = None
    if args.backbone is not None:
        tokenizer = read_tokenizer(args.backbone, read_config(args.backbone))
    count = 0
    with whole_file(args.out) as file, file.open("w", encoding="utf-8") as stream:
        reasons = reasons_not_to_run(args.task_data, entries)
        rows = probe_rows(
            entries, folders, args.rows, tokenizer, args.seed, reasons, args.share_prefix
        )
        for row in rows:
            stream.write(json.dumps(row, ensure_ascii=False) + "\n")
            count += 1
        if not count:
            raise ValueError("--tasks names no task that a probe can be made of")
    write_text(args.out.with_suffix(TASK_NAMES), json.dumps([entry.task for entry in entries]))
    print(f"{args.out}: {count} rows")


if __name__ == "__main__":
    run(main)
