"""Write an index over all suites, and pages of published tables: `python -m workflows.steps.site`.

Writes DIR/index.html, which links the pages of suites below DIR (default: reports), and a page
beside each set of committed tables in DIR/reference. Runs no job; a static host can serve them.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from workflows import ROOT
from workflows.report.lead import verdict
from workflows.report.page import Links, asset, environment, page
from workflows.report.places import read_suite_file
from workflows.report.published import Frames, read_frames
from workflows.report.seeds import read_spread
from workflows.report.tables import frame_tables
from workflows.runtime.files import write_text
from workflows.runtime.program import run, step_parser

RESULTS = ROOT / "results"


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = step_parser(__doc__)
    parser.add_argument(
        "--reports", type=Path, default=ROOT / "reports", metavar="DIR", help="pages of suites"
    )
    return parser.parse_args()


def main() -> None:
    """The pages of published tables, then the index."""
    args = arguments()
    pages = sorted(args.reports.glob("*/index.html"))
    sources = sorted(args.reports.glob("reference/*/source.json"))
    if not pages and not sources:
        raise ValueError(f"--reports {args.reports} holds no page of a suite")
    entries = [
        entry(
            file.parent, args.reports, read_frames(file.parent / "tables"),
            read_suite_file(RESULTS / file.parent.name),
        )
        for file in pages
    ]  # fmt: skip
    references, spread = [], read_spread(None)
    for file in sources:
        frames, origin = read_frames(file.parent), json.loads(file.read_text(encoding="utf-8"))
        seeds_of = "" if spread is None else spread.label(origin)
        # The README beside a suite, or the one of all.
        names = ("README.md", "../README.md")
        readme = next((name for name in names if (file.parent / name).is_file()), "")
        links = Links("../../index.html", readme)
        text = page(frames, frame_tables(frames), origin, links=links, seeds_of=seeds_of)
        write_text(file.parent / "index.html", text)
        references.append(entry(file.parent, args.reports, frames, origin))
    index = environment().get_template("suites.html").render(
        parts=[("Made here", entries), ("Published", references)], style=asset("page.css")
    )  # fmt: skip
    write_text(args.reports / "index.html", index)
    print(f"wrote {args.reports / 'index.html'}: {len(entries)} made, {len(references)} published")


def entry(
    folder: Path, reports: Path, frames: Frames, settings: Mapping[str, Any]
) -> dict[str, Any]:
    """The entry of a suite in the index; its settings name the reference row."""
    retain = frames["retain"]
    return {
        "suite": folder.name,
        "link": f"{folder.relative_to(reports).as_posix()}/index.html",
        "verdict": verdict(frames, settings.get("reference_row", "dense")),
        "rows": retain["row"].nunique(),
        "backbones": list(dict.fromkeys(retain["backbone"])),
    }


if __name__ == "__main__":
    run(main)
