"""What a suite will cost, per row and in total, before anything runs: all derived, none measured.

Each method states what its fit takes; the plan multiplies by texts and updates. It does not
subtract what routed tokens skip in training, so that routed rows take less than it says.

    python -m workflows.steps.plan --suite llama31_8b
    python -m workflows.steps.plan --suite llama31_8b overlays/alpha --out plan.json

Files merge in their order as Snakemake's --configfile does: mappings key by key, lists replaced. A
bare name is a file below workflows/suites.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from workflows.runtime.files import check_place, write_json
from workflows.runtime.program import add_suite_argument, run, step_parser
from workflows.suite.config import read_configs
from workflows.suite.jobs import read_suite
from workflows.suite.plan import plan
from workflows.suite.plan_text import plan_lines


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = step_parser(__doc__)
    add_suite_argument(parser)
    parser.add_argument("--out", type=Path, metavar="FILE.json", help="default: only print")
    return parser.parse_args()


def main() -> None:
    """Count, print, write."""
    args = arguments()
    if args.out is not None:
        check_place(args.out, ".json")
    costs = plan(read_suite(read_configs(args.suite)))
    print("\n".join(plan_lines(costs)))
    if args.out is not None:
        write_json(args.out, costs)
        print(f"wrote {args.out}")


if __name__ == "__main__":
    run(main)
