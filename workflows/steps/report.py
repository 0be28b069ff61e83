"""Make tables, figures and the page from records alone: `python -m workflows.steps.report ...`.

Reads every record.json below --results with its items, and suite.json if there is one (for the
tasks of the Retain and the reference row). Runs no job and needs no model. While a suite still
runs, it shows the records that exist and names those that are missing.
"""

from __future__ import annotations

import argparse
import gc
import sys
from pathlib import Path

from workflows.report.cautions import all_cautions
from workflows.report.figures import draw_all
from workflows.report.figures.data import run_frames
from workflows.report.page import page, source
from workflows.report.render import latex, markdown
from workflows.report.results import read_results
from workflows.report.seeds import add_spread_argument, read_spread
from workflows.report.tables import make_frames, make_tables
from workflows.runtime.files import delete_earlier, write_text
from workflows.runtime.program import run, step_parser
from workflows.stats.frames import layer_frame


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = step_parser(__doc__)
    parser.add_argument(
        "--results", required=True, type=Path, metavar="DIR", help="of one suite, or published"
    )
    parser.add_argument(
        "--out", required=True, type=Path, metavar="DIR", help="page, tables and figures"
    )
    add_spread_argument(parser)
    return parser.parse_args()


def main() -> None:
    """Read, compute, write; the page last."""
    args = arguments()
    spread = read_spread(args.between_seeds)
    results = read_results(args.results)
    frames = make_frames(results, spread)
    seeds_of = "" if spread is None else spread.label(results.settings)
    sentences = all_cautions(results)
    tables = make_tables(results, frames, seeds_of)
    # Thousands of records stay to the end: the collector need not look at them for every figure.
    gc.freeze()
    for sentence in sentences:
        print(f"caution: {sentence}", file=sys.stderr)
    written = set()
    for name, frame in frames.items():
        written.add(f"{name}.csv")
        write_text(args.out / "tables" / f"{name}.csv", frame.to_csv(index=False))
    for table in (table for group in tables.values() for table in group):
        for ending, form in ((".md", markdown), (".tex", latex)):
            written.add(f"{table.name}{ending}")
            write_text(args.out / "tables" / f"{table.name}{ending}", form(table, sentences))
    # Those of an earlier form of the suite.
    delete_earlier(args.out / "tables", written)
    layers = layer_frame(results.records)
    runs = run_frames(results.records, results.files)
    draw_all(
        frames["retain"], frames["differences"], layers, args.out / "figures",
        speeds=frames["speeds"], **runs,
    )  # fmt: skip
    origin = source(results, sentences)
    figures = args.out / "figures"
    write_text(
        args.out / "index.html", page(frames, tables, origin, results, figures, seeds_of=seeds_of)
    )
    print(f"wrote {args.out / 'index.html'}")


if __name__ == "__main__":
    run(main)
