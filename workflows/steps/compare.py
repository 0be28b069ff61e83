"""Compare two results folders, with intervals: `python -m workflows.steps.compare A B`.

Prints the table as Markdown and how many runs are equal; --out also writes both as CSV
(compare.csv, agreement.csv) and the table as compare.md and compare.tex. Lines are compared on the
same items and under the same protocol, and run by run if their seeds are equal.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from workflows.report.cautions import folder_cautions
from workflows.report.comparison import comparison_table
from workflows.report.render import latex, markdown
from workflows.report.results import read_results
from workflows.runtime.files import check_place, write_text
from workflows.runtime.program import run, step_parser
from workflows.stats.folders import comparison_frame, equality_frame


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = step_parser(__doc__)
    parser.add_argument("first", type=Path, metavar="A", help="results folder, or published suite")
    parser.add_argument("second", type=Path, metavar="B", help="another one")
    parser.add_argument("--out", type=Path, metavar="DIR", help="default: only print")
    return parser.parse_args()


def main() -> None:
    """Read both, compare, print, write."""
    args = arguments()
    if args.out is not None:
        check_place(args.out / "compare.csv")
    first, second = (read_results(folder).panels for folder in (args.first, args.second))
    frame = comparison_frame(first, second).round(4)
    equality = equality_frame(first, second)
    table = comparison_table(frame, equality, [str(args.first), str(args.second)])
    cautions = list(dict.fromkeys(folder_cautions(first, second)))
    for sentence in cautions:
        print(f"caution: {sentence}", file=sys.stderr)
    print(markdown(table), end="")
    if args.out is not None:
        write_text(args.out / "compare.csv", frame.to_csv(index=False))
        write_text(args.out / "agreement.csv", equality.to_csv(index=False))
        write_text(args.out / "compare.md", markdown(table, cautions))
        write_text(args.out / "compare.tex", latex(table, cautions))


if __name__ == "__main__":
    run(main)
