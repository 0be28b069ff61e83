"""The paper's tables held against themselves: `python -m workflows.steps.audit`.

Prints one sentence per finding, each computed from the printed numbers. With --out it writes them
as audit.md, and what they rest on as CSV: retain.csv (every printed Retain beside the recomputed
one), splits.csv (which k of n items gives each printed score, per split and number of runs) and
skip.csv (what HeRo's printed skips ask of its router).
"""

from __future__ import annotations

import argparse
from pathlib import Path

from workflows.report.paper.audit import bypassed, findings, retains
from workflows.report.paper.claims import claims
from workflows.report.paper.lattice import evidence
from workflows.report.render import escape_markdown
from workflows.runtime.files import write_text
from workflows.runtime.program import run, step_parser


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = step_parser(__doc__)
    parser.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help="for audit.md and the CSV files; default: print alone",
    )
    return parser.parse_args()


def main() -> None:
    """Compute, print, write."""
    out = arguments().out
    text = "".join(
        f"- {escape_markdown(found.name)}: {escape_markdown(found.sentence)}\n"
        for found in (*findings(), *claims())
    )
    print(text, end="")
    if out is None:
        return
    write_text(out / "audit.md", text)
    frames = {"retain": retains(), "splits": evidence(), "skip": bypassed()}
    for name, frame in frames.items():
        write_text(out / f"{name}.csv", frame.round(4).to_csv(index=False))


if __name__ == "__main__":
    run(main)
