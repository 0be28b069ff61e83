"""Every row with its kind, source, params and their defaults: `python -m workflows.steps.rows`.

`--method` of the fit step and `rows:` of a suite take the name of a row. Params are JSON
(`--params '{"layers": 3}'`); the value after "=" is the default, None leaves it to the method.
"""

from __future__ import annotations

import argparse
import textwrap

from methods import Row, discover, find_row
from workflows.runtime.program import run, step_parser
from workflows.suite.params import defaults

FACTS = ("trained", "stochastic", "budgeted", "causal")


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = step_parser(__doc__)
    parser.add_argument("rows", nargs="*", metavar="ROW", help="these alone; default: every row")
    return parser.parse_args()


def main() -> None:
    """Read the method files, print."""
    names = arguments().rows
    rows = map(find_row, names) if names else discover().values()
    print("\n\n".join(map(row_text, rows)))


def row_text(row: Row) -> str:
    """A row as text."""
    params = {**defaults(row), **row.params}
    facts = [fact if getattr(row, fact) else f"not {fact}" for fact in FACTS]
    lines = {
        "title": row.title.format(**params),
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
