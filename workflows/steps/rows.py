"""Every row with its kind, source, params and their defaults: `python -m workflows.steps.rows`.

`--method` of the fit step and `rows:` of a suite take the name of a row. Params are JSON
(`--params '{"layers": 3}'`); the value after "=" is the default, None leaves it to the method.

With --backbone each row has a line: yes if it runs on this model at --budget, else the reason.
Weights are not read.
"""

from __future__ import annotations

import argparse
import textwrap
from pathlib import Path

from methods import Row, discover, find_row, load_method
from methods.base import Request
from methods.core.budget import check_budget
from methods.core.model.backbone import Backbone, empty_backbone
from methods.core.model.folder import read_config
from workflows.runtime.program import run, step_parser
from workflows.suite.params import defaults

FACTS = ("trained", "stochastic", "budgeted", "causal")


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = step_parser(__doc__)
    parser.add_argument("rows", nargs="*", metavar="ROW", help="these alone; default: every row")
    parser.add_argument(
        "--backbone", type=Path, metavar="DIR", help="which rows run on it; default: describe rows"
    )
    parser.add_argument("--budget", type=float, default=0.25, help="with --backbone")
    return parser.parse_args()


def main() -> None:
    """Read the method files, print."""
    args = arguments()
    rows = list(map(find_row, args.rows) if args.rows else discover().values())
    if args.backbone is None:
        print("\n\n".join(map(row_text, rows)))
        return
    check_budget(args.budget)
    backbone = empty_backbone(read_config(args.backbone), args.backbone)
    width = max(len(row.name) for row in rows)
    for row in rows:
        print(f"{row.name:{width}}  {reason_against(row, backbone, args.budget) or 'yes'}")


def reason_against(row: Row, backbone: Backbone, budget: float) -> str | None:
    """Why a row with its default params does not run on a backbone at a budget, or None."""
    request = Request(budget if row.budgeted else None, 0, Path())
    return load_method(row.name).skip_reason(backbone, request)


def row_text(row: Row) -> str:
    """A row as text."""
    params = {**defaults(row), **row.params}
    facts = [fact if getattr(row, fact) else f"not {fact}" for fact in FACTS]
    lines = {
        "title": row.title_of(params),
        "kind": ", ".join([row.kind, *facts]),
        "source": row.source,
        "params": ", ".join(f"{name}={value!r}" for name, value in params.items()) or "none",
    }
    wrapped = [
        textwrap.fill(text, 100, initial_indent=f"  {name:<8}", subsequent_indent=" " * 10)
        for name, text in lines.items()
    ]
    return "\n".join([row.name, *wrapped])


if __name__ == "__main__":
    run(main)
