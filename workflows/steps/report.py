"""Tables, figures and the page, from records alone: `python -m workflows.steps.report ...`.

Reads every record.json below --results with its items, and suite.json where there is one (for the
tasks of the Retain and the reference row). Runs no job and needs no model.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path

import jinja2
import pandas as pd
from markupsafe import Markup

from workflows.report.figures import draw_all
from workflows.report.render import html_table, latex, markdown
from workflows.report.results import Results, read_results
from workflows.runtime.files import write_text
from workflows.runtime.program import run
from workflows.runtime.provenance import ROOT
from workflows.stats.comparable import cautions
from workflows.stats.display import (
    Table,
    budget_table,
    cost_table,
    difference_table,
    noise_table,
    rank_table,
    retain_table,
    score_table,
    training_noise_table,
)
from workflows.stats.noise import noise_frame, training_noise_frame
from workflows.stats.ranking import rank_frame
from workflows.stats.tables import (
    budget_frame,
    cost_frame,
    layer_frame,
    retain_frame,
    score_frame,
)
from workflows.stats.versus import difference_frame

PAGES = ROOT / "workflows" / "report"


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--results", required=True, type=Path, metavar="DIR")
    parser.add_argument("--out", required=True, type=Path, metavar="DIR")
    return parser.parse_args()


def main() -> None:
    """Read, compute, write; the page last."""
    args = arguments()
    results = read_results(args.results)
    frames = make_frames(results)
    warned = cautions(results.records)
    tables = make_tables(results, frames)
    for sentence in warned:
        print(f"caution: {sentence}", file=sys.stderr)
    for name, frame in frames.items():
        write_text(args.out / "tables" / f"{name}.csv", frame.to_csv(index=False))
    for table in tables.values():
        write_text(args.out / "tables" / f"{table.name}.md", markdown(table, warned))
        write_text(args.out / "tables" / f"{table.name}.tex", latex(table, warned))
    layers = layer_frame(results.records)
    draw_all(frames["retain"], frames["differences"], layers, args.out / "figures")
    write_text(args.out / "index.html", page(results, tables, warned))
    print(f"wrote {args.out / 'index.html'}")


def make_frames(results: Results) -> dict[str, pd.DataFrame]:
    """Every table as a frame: what stands in the CSV files."""
    rounded = {
        "ranks": rank_frame(results.panels),
        "differences": difference_frame(results.panels),
        "budgets": budget_frame(results.panels),
        "costs": cost_frame(results.panels),
        "noise": noise_frame(results.panels, results.repeats, results.repeat_items),
        "training_noise": training_noise_frame(results.panels, results.refits),
    }
    return {
        "retain": retain_frame(results.panels),
        "scores": score_frame(results.records),
        **{name: frame.round(4) for name, frame in rounded.items()},
    }


def make_tables(results: Results, frames: Mapping[str, pd.DataFrame]) -> dict[str, Table]:
    """The frames as people read them, in the page's order."""
    titles = {record["row"]: record["title"] for record in results.records}
    opponents = dict.fromkeys(frames["differences"]["against"])
    tables = [
        retain_table(frames["retain"], results.panels),
        rank_table(frames["ranks"]),
        *[difference_table(frames["differences"], name, titles[name]) for name in opponents],
        noise_table(frames["noise"]),
        training_noise_table(frames["training_noise"]),
        budget_table(frames["budgets"]),
        cost_table(frames["costs"]),
        score_table(frames["scores"], titles),
    ]
    return {table.name: table for table in tables if table.lines}


def page(results: Results, tables: Mapping[str, Table], warned: list[str]) -> str:
    """The page as HTML."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(PAGES), autoescape=True, undefined=jinja2.StrictUndefined
    )
    done = [record for record in results.records if record["status"] == "ok"]
    return environment.get_template("index.html").render(
        suite=results.settings["suite"],
        retain_tasks=results.settings["retain_tasks"],
        reference_row=results.settings["reference_row"],
        tables={name: (table, Markup(html_table(table))) for name, table in tables.items()},
        warned=warned,
        runs=len(done),
        backbones={r["backbone"]["name"]: r["backbone"] for r in done},
        versions=done[0]["versions"],
        commits=sorted({str(r["commit"])[:12] for r in done}),
        codes=sorted({r["code_hash"] for r in done}),
        hardware=done[0]["hardware"],
        tokens=done[0]["rates"]["all"]["tokens"],
        limits=sorted({s["n"] for r in done for s in r["scores"] if s["k"] is not None}),
    )


if __name__ == "__main__":
    run(main)
