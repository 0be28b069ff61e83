"""The page of a suite as one file: tables, a figure, script, style and data inside."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jinja2
from markupsafe import Markup

from workflows import ROOT
from workflows.records.record import Record
from workflows.report.cautions import code_differences
from workflows.report.display import Table
from workflows.report.lead import lead_table, verdict
from workflows.report.page_data import page_data
from workflows.report.paper.show import without_record
from workflows.report.published import Frames
from workflows.report.render import html_table
from workflows.report.results import Results
from workflows.report.seeds import fits
from workflows.stats.comparable import code_by_part

PAGES = ROOT / "workflows" / "report"
# One after the other they are the script of the page.
SCRIPTS = ("page.js", "page_figure.js", "page_rows.js")
# Figures in the page. One larger than LARGE bytes, as with hundreds of rows, is a link only.
SHOWN = (
    "retain_over_skip", "both_measures", "differences", "executed_per_layer", "scores_per_task",
)  # fmt: skip
LARGE = 1_000_000


class Links(NamedTuple):
    """Addresses of the index of all suites, and of what was found; empty where nothing says so."""

    home: str = "../index.html"
    readme: str = ""


HERE = Links()


def page(
    frames: Frames,
    tables: Mapping[str, Sequence[Table]],
    origin: Mapping[str, Any],
    results: Results | None = None,
    figures: Path | None = None,
    links: Links = HERE,
    seeds_of: str = "",
) -> str:
    """The page as HTML.

    Args:
        frames: Every table as a frame.
        tables: All but the main one, in the page's order: name -> one per protocol.
        origin: Code, machine and settings: :func:`source`, or source.json of a published suite.
        results: The records of the frames; with them the page has details of each row.
        figures: Folder of figures to show; None where the tables lie beside the page as CSV alone.
        links: To other pages.
        seeds_of: The suite that gives the deviation between seeds for rows with one seed.
    """
    matches = list(dict.fromkeys(frames["retain"]["match"]))
    lead = [lead_table(frames, match, seeds_of) for match in matches]
    reference = str(origin.get("reference_row", "dense"))
    return environment().get_template("index.html").render(
        origin=origin,
        reference=reference,
        verdict=verdict(frames, reference),
        lead=[
            (match, table, html_table(table)) for match, table in zip(matches, lead, strict=True)
        ],
        groups=list(dict.fromkeys(group for table in lead for group in table.groups.values())),
        tables={
            name: [(table, html_table(table)) for table in same] for name, same in tables.items()
        },
        strange=sorted({*frames["retain"]["backbone"]} - {*frames["paper_values"]["backbone"]}),
        home=links.home,
        readme=links.readme,
        beside="" if figures is None else "tables/",
        lacking=without_record(frames["paper_values"]),
        figures=_images(figures),
        data=embed(page_data(frames, results) | {"seeds_of": seeds_of}),
        style=asset("page.css"),
        script=Markup("\n").join(asset(name) for name in SCRIPTS),
    )  # fmt: skip


def environment() -> jinja2.Environment:
    """Templates beside this file; what is not marked safe is escaped."""
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(PAGES), autoescape=True, undefined=jinja2.StrictUndefined
    )


def asset(name: str) -> Markup:
    """A file that goes into the page unchanged."""
    return Markup((PAGES / name).read_text(encoding="utf-8"))


def embed(value: Any) -> Markup:
    """JSON for a script element. Signs are escaped so that no text can end the element."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for sign in "<>&\u2028\u2029":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return Markup(text)


def _images(folder: Path | None) -> dict[str, str]:
    """Name of a figure -> its PNG as an address that needs no file; empty where it is large."""
    images = {}
    files = [] if folder is None else [folder / f"{name}.png" for name in SHOWN]
    for file in (file for file in files if file.is_file()):
        small = file.stat().st_size <= LARGE
        text = base64.b64encode(file.read_bytes()).decode() if small else ""
        images[file.stem] = f"data:image/png;base64,{text}" if small else ""
    return images


def _parts(records: Sequence[Record]) -> list[dict[str, Any]]:
    """Which runs each commit made on each machine, with the hashes of its code and its versions."""
    parts: list[tuple[dict[str, Any], list[Record]]] = []
    for record in records:
        made_by = {name: getattr(record, name) for name in ("commit", "hardware", "versions")}
        same = next((own for origin, own in parts if origin == made_by), None)
        if same is None:
            parts.append((made_by, same := []))
        same.append(record)
    return [
        {
            "runs": len(own),
            "seeds": sorted({record.seed for record in own}),
            **origin,
            "code": code_by_part(own),
        }
        for origin, own in parts
    ]


def source(results: Results, cautions: Sequence[str]) -> dict[str, Any]:
    """Where the numbers of a report come from: code, machine, settings.

    Args:
        results: All records of a suite.
        cautions: Sentences on them.
    """
    records = [record for record in results.records if record.done]
    return {
        "suite": results.settings["suite"],
        "runs": len(records),
        "commits": sorted({str(record.commit) for record in records}),
        "code": code_by_part(records),
        "versions": records[0].versions,
        "hardware": records[0].hardware,
        "parts": _parts(records),
        "code_differences": code_differences(records),
        "cautions": list(cautions),
        "training": results.settings.get("training", {}),
        "retain_tasks": results.settings["retain_tasks"],
        "measure_tasks": results.settings["measure_tasks"],
        "reference_row": results.settings["reference_row"],
        "tokens": records[0].rates["all"].tokens,
        "limits": sorted({s.n for record in records for s in record.scores if s.k is not None}),
        "fits": fits(records),
        "backbones": {
            record.backbone.name: {
                name: getattr(record.backbone, name) for name in ("parameters", "layers", "hash")
            }
            for record in records
        },
    }
