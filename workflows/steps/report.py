"""Tables, figures and the page, from records alone: `python -m workflows.steps.report ...`.

Reads every record.json below --results with its items, and suite.json where there is one (for the
tasks of the Retain and the reference row). Runs no job and needs no model; while a suite runs, it
shows what is there and names what is missing.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import jinja2
import pandas as pd
from markupsafe import Markup

from workflows.report.figures import draw_all
from workflows.report.figures.data import run_frames
from workflows.report.paper.audit import findings
from workflows.report.paper.beside import known_backbones, value_frame
from workflows.report.paper.claims import claims
from workflows.report.paper.order import agreement_frame, order_frame
from workflows.report.paper.show import order_tables, value_tables, without_record
from workflows.report.render import html_table, latex, markdown
from workflows.report.results import Results, gaps, read_results
from workflows.runtime.files import write_text
from workflows.runtime.program import run
from workflows.runtime.provenance import ROOT
from workflows.stats.comparable import cautions, code_by_part
from workflows.stats.display import (
    MATCHES,
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
from workflows.stats.lines import Record
from workflows.stats.noise import noise_frame, training_noise_frame
from workflows.stats.ranking import rank_frame
from workflows.stats.speeds import speed_frame, speed_table, with_speed
from workflows.stats.tables import (
    budget_frame,
    cost_frame,
    layer_frame,
    retain_frame,
    score_frame,
)
from workflows.stats.versus import difference_frame

PAGES = ROOT / "workflows" / "report"
# Frames whose lines are read by protocol.
MATCHED = ("retain", "ranks", "differences", "budgets", "costs", "speeds")
# What is known of the deviation between seeds, for suites that run one.
HEADLINE = ROOT / "reports" / "reference" / "headline" / "retain.csv"


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
    warned = [*gaps(results), *cautions(results.records)]
    tables = make_tables(results, frames)
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
    write_text(args.out / "index.html", page(results, frames, tables, warned))
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
    titles = {record["row"]: record["title"] for record in results.records}
    found: dict[str, list[Table]] = {}
    for match in dict.fromkeys(panel.match for panel in results.panels):
        own = {
            name: frame[frame["match"] == match].reset_index(drop=True)
            for name, frame in frames.items()
            if name in MATCHED
        }
        opponents = dict.fromkeys(own["differences"]["against"])
        tables = [
            retain_table(
                with_speed(own["retain"], own["speeds"]),
                [p for p in results.panels if p.match == match],
            ),
            rank_table(own["ranks"]),
            *[difference_table(own["differences"], name, titles[name]) for name in opponents],
            budget_table(own["budgets"]),
            cost_table(own["costs"]),
            speed_table(own["speeds"]),
        ]
        for table in tables:
            same = found.setdefault(table.name, [])
            # The first protocol keeps the plain names of the files.
            name = f"{table.name}_{match}" if same else table.name
            note = f"{MATCHES[match]} {table.note}"
            same.append(dataclasses.replace(table, name=name, match=match, note=note))
    for table in (
        noise_table(frames["noise"]),
        training_noise_table(frames["training_noise"]),
        score_table(frames["scores"], titles),
    ):
        found[table.name] = [table]
    for table in (
        *order_tables(frames["paper_order"], frames["paper_agreement"]),
        *value_tables(frames["paper_values"]),
    ):
        same = found.setdefault(table.name, [])
        same.append(
            dataclasses.replace(table, name=f"{table.name}_{table.match}") if same else table
        )
    full = {name: [table for table in same if table.lines] for name, same in found.items()}
    return {name: same for name, same in full.items() if same}


def page(
    results: Results,
    frames: Mapping[str, pd.DataFrame],
    tables: Mapping[str, Sequence[Table]],
    warned: list[str],
) -> str:
    """The page as HTML."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(PAGES), autoescape=True, undefined=jinja2.StrictUndefined
    )
    done = [record for record in results.records if record["status"] == "ok"]
    return environment.get_template("index.html").render(
        suite=results.settings["suite"],
        retain_tasks=results.settings["retain_tasks"],
        reference_row=results.settings["reference_row"],
        tables={
            name: [(table, Markup(html_table(table))) for table in same]
            for name, same in tables.items()
        },
        warned=warned,
        lacking=without_record(frames["paper_values"]),
        audited=[*findings(), *claims()],
        strange=sorted(
            {p.reference.backbone for p in results.panels} - set(known_backbones(results.panels))
        ),
        runs=len(done),
        backbones={r["backbone"]["name"]: r["backbone"] for r in done},
        versions=done[0]["versions"],
        commits=sorted({str(r["commit"])[:12] for r in done}),
        codes=code_by_part(done),
        hardware=done[0]["hardware"],
        tokens=done[0]["rates"]["all"]["tokens"],
        limits=sorted({s["n"] for r in done for s in r["scores"] if s["k"] is not None}),
    )


if __name__ == "__main__":
    run(main)
