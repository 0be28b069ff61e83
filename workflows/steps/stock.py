"""Score a suite's dense backbone beside lm-eval's own model class, item by item.

    python -m workflows.steps.stock --suite demo --limit 30 --out stock.csv

Both read the first items of every task with the same prompts. A line of the CSV file has, for one
task, the largest difference of two log-likelihoods (nats) and the number of items that score
otherwise. Perplexities of files are left out: lm-eval has none.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import pandas as pd
from tqdm import tqdm

from workflows.evaluation.tasklist import TaskEntry, limited
from workflows.runtime.files import check_place, whole_file
from workflows.runtime.program import (
    add_suite_argument,
    check_positive,
    run,
    set_up_torch,
    step_parser,
)
from workflows.suite.config import read_configs
from workflows.suite.jobs import Suite, read_suite


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = step_parser(__doc__)
    add_suite_argument(parser)
    parser.add_argument("--backbone", help="of the suite; default: its first")
    parser.add_argument(
        "--limit", type=int, default=200, metavar="N",
        help="first N items of each task, an entry may have fewer",
    )  # fmt: skip
    parser.add_argument("--threads", type=int, default=1, help="CPU threads of torch")
    parser.add_argument("--out", required=True, type=Path, metavar="FILE.csv", help="the table")
    return parser.parse_args()


def main() -> None:
    """Check the arguments, score twice, write, print what differs most."""
    args = arguments()
    check_place(args.out, ".csv")
    check_positive(args, "limit")
    suite = read_suite(read_configs(args.suite))
    name = args.backbone or next(iter(suite.config["backbones"]))
    if name not in suite.config["backbones"]:
        names = ", ".join(suite.config["backbones"])
        raise ValueError(f"--backbone '{name}' is not in the suite (it has: {names})")
    set_up_torch(args.threads)
    entries = [entry for entry in suite.entries if not entry.is_perplexity]
    table = score_twice(suite, name, limited(entries, args.limit))
    with whole_file(args.out) as file:
        table.to_csv(file, index=False)
    print(
        f"{table['items'].sum()} items of {len(table)} tasks: log-likelihoods differ by at most "
        f"{table['log_likelihood'].max():.2g} nats, {table['answers'].sum()} items score otherwise"
    )
    print(f"wrote {args.out}")


def score_twice(suite: Suite, name: str, entries: list[TaskEntry]) -> pd.DataFrame:
    """A line per task, on the CPU; lm-eval's class reads the folder through transformers alone.

    Raises:
        ValueError: The backbone is not there, or a task cannot be scored.
    """
    from lm_eval.models.huggingface import HFLM
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from workflows.evaluation.beside_stock import differences
    from workflows.evaluation.harness import CountingLM
    from workflows.evaluation.loading import task_manager
    from workflows.evaluation.models import harness_arguments, load_any

    folder, config = Path(suite.backbone_folder(name)), suite.config
    length = config["backbones"][name].get("max_length")
    size = config["batch_size"]
    ours = CountingLM(
        **harness_arguments(load_any(folder, None, "cpu")),
        batch_size=size,
        max_length=length,
        share_prefix=config["share_prefix"],
    )
    stock = HFLM(
        pretrained=AutoModelForCausalLM.from_pretrained(
            folder, dtype="float32", trust_remote_code=False
        ),
        tokenizer=AutoTokenizer.from_pretrained(folder, trust_remote_code=False),
        batch_size=size,
        max_length=length,
    )
    task_folders = [Path(config["task_folder"])] if "task_folder" in config else []
    manager = task_manager(entries, task_folders)
    found = tqdm(differences(ours, stock, entries, manager), desc="tasks", total=len(entries))
    return pd.DataFrame(found)


if __name__ == "__main__":
    run(main)
