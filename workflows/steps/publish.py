"""Publish a suite's tables and the READMEs that quote them: `python -m workflows.steps.publish`.

With --results it writes every frame of the report, the records (records.tar.xz), source.json (the
code and machines that made them) and the figures of both protocols and of both measures into
--reference/SUITE. A suite may have run in parts: --results reports/reference/SUITE results/SUITE
adds new runs to published ones. Then, and also without --results, it writes the paper's tables
above chance into --reference/paper, if that exists, and renders every README that has a template
below --reference.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from workflows.records.archive import ARCHIVE
from workflows.report.cautions import all_cautions
from workflows.report.figures import METADATA, drawings
from workflows.report.figures.data import FigureFrames
from workflows.report.figures.style import use
from workflows.report.page import source
from workflows.report.paper.above import above_frame
from workflows.report.published import REFERENCE, SOURCE
from workflows.report.readme import page_of, render, templates
from workflows.report.results import read_results
from workflows.report.seeds import SeedSpread, add_spread_argument, read_spread
from workflows.report.tables import make_frames
from workflows.runtime.files import delete_others, whole_file, write_json, write_text
from workflows.runtime.program import run, step_parser

PAPER = "paper/paper_above_chance.csv"
# Figures that READMEs show.
SHOWN = ("protocols", "both_measures")


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = step_parser(__doc__)
    parser.add_argument(
        "--results",
        type=Path,
        nargs="+",
        metavar="DIR",
        help="parts of one suite, results folders or published ones; of a run that several have "
        "counts the last (default: no new tables)",
    )
    parser.add_argument(
        "--reference", type=Path, default=REFERENCE, metavar="DIR", help="what is committed"
    )
    add_spread_argument(parser)
    return parser.parse_args()


def main() -> None:
    """Frames and their source, the paper's frame, then the READMEs."""
    args = arguments()
    if args.results:
        print(f"wrote {publish(args.results, args.reference, read_spread(args.between_seeds))}")
    if (args.reference / PAPER).parent.is_dir():
        write_text(args.reference / PAPER, above_frame().to_csv(index=False))
    pages = {page_of(file): render(file, args.reference) for file in templates(args.reference)}
    if not pages and not args.results:
        raise ValueError(f"--reference {args.reference} holds no README.md.jinja")
    for page, text in pages.items():
        write_text(page, text)
        print(f"wrote {page}")


def publish(places: Sequence[Path], reference: Path, spread: SeedSpread | None) -> Path:
    """Write the frames of a suite, its records, their source and their figures.

    Args:
        places: What holds the records, see :func:`workflows.report.places.as_folder`.
        reference: Where published suites lie.
        spread: How far seeds lie apart, for rows that ran one.

    Returns:
        The folder that holds them.
    """
    results = read_results(*places)
    suite = str(results.settings["suite"])
    if not re.fullmatch(r"\w+", suite):
        raise ValueError(f"suite '{suite}': the name of a suite is letters, digits and '_'")
    out = reference / suite
    for name, frame in make_frames(results, spread).items():
        write_text(out / f"{name}.csv", frame.to_csv(index=False))
    write_json(out / SOURCE, source(results, all_cautions(results)))
    results.write_archive(out / ARCHIVE)
    draw_figures(out)
    return out


def draw_figures(folder: Path) -> None:
    """Write the figures of ``SHOWN`` that the published frames have data for, no older ones.

    If the folder has a page, only those that it shows.
    """
    pages = [file.read_text(encoding="utf-8") for file in folder.glob("README.md.jinja")]
    retain, differences = (
        pd.read_csv(folder / f"{name}.csv") for name in ("retain", "differences")
    )
    data = FigureFrames(retain, differences, pd.DataFrame())
    drawn = set()
    with use():
        for name, figure in drawings(data, 2, SHOWN):
            if not all(f"{name}.svg" in page for page in pages):
                continue
            drawn.add(f"{name}.svg")
            with whole_file(folder / f"{name}.svg") as file:
                figure.savefig(file, format="svg", metadata=METADATA["svg"])
    delete_others(folder, [f"{name}*.svg" for name in SHOWN], drawn)


if __name__ == "__main__":
    run(main)
