"""Tables, figures and the page, from records alone: `python -m workflows.steps.report ...`.

Reads every record.json below --results with its items, and suite.json where there is one (for the
tasks of the Retain and the reference row). Runs no job and needs no model.
"""

from __future__ import annotations

import argparse
import html
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jinja2
import pandas as pd
from markupsafe import Markup

from methods import ORDER
from workflows.stats.tables import display_frame, layer_frame, retain_frame, score_frame
from workflows.steps.common import ROOT, run, whole_file
from workflows.steps.records import read_record
from workflows.steps.report_figures import draw_all

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
    records, items = read_results(args.results)
    settings = read_settings(args.results, records)
    retain = retain_frame(records, items, settings["retain_tasks"], settings["reference_row"])
    tables, figures = args.out / "tables", args.out / "figures"
    for folder in (tables, figures):
        folder.mkdir(parents=True, exist_ok=True)
    shown = display_frame(retain)
    write(tables / "retain.csv", retain.to_csv(index=False))
    write(tables / "retain.md", markdown(shown))
    write(tables / "retain.tex", shown.to_latex(index=False, escape=True).replace("±", r"$\pm$"))
    write(tables / "scores.csv", score_frame(records).to_csv(index=False))
    draw_all(retain, layer_frame(records), figures)
    write(args.out / "index.html", page(records, settings, shown))
    print(f"wrote {args.out / 'index.html'}")


def read_results(folder: Path) -> tuple[list[dict[str, Any]], dict[int, pd.DataFrame]]:
    """Every record below a folder in the table's order, and the items of those that have some.

    Raises:
        ValueError: There is no record, one breaks the schema, or its items are missing.
    """
    files = sorted(folder.rglob("record.json"))
    if not files:
        raise ValueError(f"{folder} holds no record.json")
    suite = folder / "suite.json"
    if suite.is_file():
        # Runs that a changed suite no longer lists stay on disk and out of the table.
        from workflows.jobs import read_suite

        wanted = {job.folder for job in read_suite(json.loads(suite.read_text("utf-8"))).jobs}
        parts = {"/".join(Path(name).parts[2:]) for name in wanted}
        files = [f for f in files if str(f.parent.relative_to(folder)) in parts] or files
    known = {name: position for position, name in enumerate(ORDER)}
    loaded = [(read_record(file), file) for file in files]
    loaded.sort(key=lambda pair: _position(pair[0], known))
    items = {}
    for number, (record, file) in enumerate(loaded):
        if record["status"] == "ok":
            frame = file.with_suffix(".items.parquet")
            if not frame.is_file():
                raise ValueError(f"{file} has no items beside it ({frame.name} is missing)")
            items[number] = pd.read_parquet(frame)
    return [record for record, _ in loaded], items


def _position(record: dict[str, Any], known: dict[str, int]) -> tuple[Any, ...]:
    order = known.get(record["method"], len(known))
    budget = -1.0 if record["budget"] is None else record["budget"]
    return (record["backbone"]["name"], budget, order, record["row"], record["seed"])


def read_settings(folder: Path, records: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Retain tasks and reference row: the suite's, or every scored task against ``dense``."""
    file = folder / "suite.json"
    if file.is_file():
        settings: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        return settings
    scored = [
        score["task"]
        for record in records
        for score in record.get("scores", [])
        if score["primary"] and score["higher_is_better"]
    ]
    return {
        "suite": records[0]["suite"],
        "retain_tasks": list(dict.fromkeys(scored)),
        "reference_row": "dense",
    }


def write(file: Path, text: str) -> None:
    """Replace a text file whole."""
    with whole_file(file) as temporary:
        temporary.write_text(text, encoding="utf-8")


def markdown(frame: pd.DataFrame) -> str:
    """A frame of text cells as a Markdown table."""
    lines = [list(frame.columns), ["---"] * len(frame.columns), *frame.to_numpy().tolist()]
    return "\n".join("| " + " | ".join(map(str, cells)) + " |" for cells in lines) + "\n"


def page(records: Sequence[dict[str, Any]], settings: dict[str, Any], shown: pd.DataFrame) -> str:
    """The page as HTML."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(PAGES), autoescape=True, undefined=jinja2.StrictUndefined
    )
    done = [record for record in records if record["status"] == "ok"]
    body = "\n".join(
        "<tr>" + "".join(f"<td>{html.escape(str(cell))}</td>" for cell in line) + "</tr>"
        for line in shown.to_numpy().tolist()
    )
    return environment.get_template("index.html").render(
        suite=settings["suite"],
        retain_tasks=settings["retain_tasks"],
        reference_row=settings["reference_row"],
        columns=list(shown.columns),
        body=Markup(body),
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
