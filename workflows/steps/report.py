"""Tables, figures and the page, from records alone: `python -m workflows.steps.report ...`.

Reads every record.json below --results with its items, and suite.json where there is one (for the
tasks of the Retain and the reference row). Runs no job and needs no model; while a suite runs, it
shows what is there and names what is missing.
"""

from __future__ import annotations

import argparse
import gc
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd

from workflows.report.figures import draw_all
from workflows.report.figures.data import run_frames
from workflows.report.page import page, source
from workflows.report.paper.beside import known_backbones, value_frame
from workflows.report.paper.order import agreement_frame, order_frame
from workflows.report.render import latex, markdown
from workflows.report.results import Results, gaps, read_results
from workflows.report.tables import frame_tables, retain_tables
from workflows.runtime.files import write_text
from workflows.runtime.program import run, step_parser
from workflows.runtime.provenance import ROOT
from workflows.stats.comparable import cautions
from workflows.stats.display import Table
from workflows.stats.lines import Record
from workflows.stats.noise import noise_frame, training_noise_frame
from workflows.stats.ranking import rank_frame
from workflows.stats.speeds import speed_frame
from workflows.stats.tables import (
    budget_frame,
    cost_frame,
    layer_frame,
    retain_frame,
    score_frame,
)
from workflows.stats.versus import difference_frame

# What is known of the deviation between seeds, for suites that run one.
HEADLINE = ROOT / "reports" / "reference" / "headline" / "retain.csv"


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = step_parser(__doc__)
    parser.add_argument("--results", required=True, type=Path, metavar="DIR", help="of one suite")
    parser.add_argument(
        "--out", required=True, type=Path, metavar="DIR", help="page, tables and figures"
    )
    return parser.parse_args()


def main() -> None:
    """Read, compute, write; the page last."""
    args = arguments()
    results = read_results(args.results)
    frames = make_frames(results)
    warned = [*gaps(results), *cautions(results.records)]
    tables = make_tables(results, frames)
    # They stay to the end: while figures come and go, thousands of records are no garbage.
    gc.freeze()
    for sentence in warned:
        print(f"caution: {sentence}", file=sys.stderr)
    for name, frame in frames.items():
        write_text(args.out / "tables" / f"{name}.csv", frame.to_csv(index=False))
    for table in (table for same in tables.values() for table in same):
        write_text(args.out / "tables" / f"{table.name}.md", markdown(table, warned))
        write_text(args.out / "tables" / f"{table.name}.tex", latex(table, warned))
    layers = layer_frame(results.records)
    runs = run_frames(results.records, results.files)
    draw_all(
        frames["retain"], frames["differences"], layers, args.out / "figures",
        speeds=frames["speeds"], **runs,
    )  # fmt: skip
    told = source(results, warned)
    write_text(args.out / "index.html", page(frames, tables, told, results, args.out / "figures"))
    print(f"wrote {args.out / 'index.html'}")


def make_frames(results: Results) -> dict[str, pd.DataFrame]:
    """Every table as a frame: what stands in the CSV files."""
    rounded = {
        "ranks": rank_frame(results.panels),
        "differences": difference_frame(results.panels),
        "budgets": budget_frame(results.panels),
        "costs": cost_frame(results.panels),
        "speeds": speed_frame(results.panels, results.speeds),
        "noise": noise_frame(results.panels, results.repeats, results.repeat_items),
        "training_noise": training_noise_frame(results.panels, results.refits),
    }
    retain = with_seed_deviation(retain_frame(results.panels), results.records)
    order = order_frame(retain, known_backbones(results.panels))
    rounded["paper_order"], rounded["paper_agreement"] = order, agreement_frame(order)
    return {
        "retain": retain,
        "scores": score_frame(results.records),
        "paper_values": value_frame(results.panels),
        **{name: frame.round(4) for name, frame in rounded.items()},
    }


def with_seed_deviation(retain: pd.DataFrame, records: Sequence[Record]) -> pd.DataFrame:
    """The frame with ``seed_std`` of trained rows that ran one seed, from the committed table.

    Returns:
        ``seed_std`` in points; where nothing is known the note says so.
    """
    keys = ["backbone", "target", "match", "row"]
    fits = [(record["backbone"]["name"], record["row"], record["fit"] or {}) for record in records]
    trained = {(name, row) for name, row, fit in fits if fit.get("trained_parameters")}
    known = pd.read_csv(HEADLINE) if HEADLINE.is_file() else retain.head(0)
    found = retain[keys].merge(known[[*keys, "retain_std"]], on=keys, how="left")["retain_std"]
    deviations, notes = [], []
    for line, deviation in zip(retain.to_dict("records"), found, strict=True):
        alone = line["seeds"] == 1 and (line["backbone"], line["row"]) in trained
        silent = ["between seeds: not known"] if alone and pd.isna(deviation) else []
        deviations.append(deviation if alone else None)
        notes.append("; ".join(filter(None, [line["note"], *silent])))
    return retain.assign(seed_std=pd.Series(deviations, dtype=float), note=notes)


def make_tables(results: Results, frames: Mapping[str, pd.DataFrame]) -> dict[str, list[Table]]:
    """The frames as people read them, in the page's order: name -> one table per protocol."""
    return retain_tables(results, frames) | frame_tables(frames)


if __name__ == "__main__":
    run(main)
