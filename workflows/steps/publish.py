"""Commit a suite's tables and show the main one in a README: `python -m workflows.steps.publish`.

Writes every frame of the report, source.json (which code, machine and records made them) and the
figure of both protocols below reports/reference/SUITE, and renders retain.csv with ranks.csv
between two marks of a README there, which nobody edits by hand. The project's README shows the
leaders of `headline` with the demo's speeds; the demo's costs stand beside those of the cost step
in reports/reference/README.md.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

import pandas as pd

from methods import discover
from methods.core.checkpoint import write_json
from workflows import ROOT
from workflows.jobs import Suite
from workflows.report.figures import METADATA
from workflows.report.figures.data import Data
from workflows.report.figures.protocols import protocols
from workflows.report.figures.style import use
from workflows.report.frames import make_frames
from workflows.report.lead import retain_marks
from workflows.report.page import source
from workflows.report.render import escape_markdown, markdown
from workflows.report.results import gaps, read_results
from workflows.runtime.files import whole_file, write_text
from workflows.runtime.program import run, step_parser
from workflows.runtime.provenance import code_hash
from workflows.stats.comparable import cautions
from workflows.stats.display import (
    DEFINED,
    FLOOR,
    MARKED,
    MATCHES,
    SKIPS,
    Builder,
    Table,
    notes,
    number,
    plus,
    spans,
)
from workflows.stats.tables import protocol_column

REFERENCE = ROOT / "reports" / "reference"
PAGES = (ROOT / "README.md", *sorted(REFERENCE.glob("**/README.md")))
SOURCE = "source.json"
# What the cost step wrote.
COST = "cost_llama32_1b.json"


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = step_parser(__doc__)
    parser.add_argument("--results", required=True, type=Path, metavar="DIR", help="of one suite")
    parser.add_argument("--out", type=Path, metavar="DIR", help="default: reports/reference/SUITE")
    parser.add_argument(
        "--page", type=Path, metavar="FILE", help="default: the README that has marks"
    )
    return parser.parse_args()


def main() -> None:
    """Frames, their source, then the README."""
    args = arguments()
    results = read_results(args.results)
    suite = results.settings["suite"]
    out = args.out or REFERENCE / suite
    page = args.page or page_of(suite)
    read_block(page, suite)
    for name, frame in make_frames(results).items():
        write_text(out / f"{name}.csv", frame.to_csv(index=False))
    with whole_file(out / SOURCE) as file:
        write_json(file, source(results, [*gaps(results), *cautions(results.records)]))
    draw_protocols(out)
    put_block(page, suite, block(out, page))
    if out in (REFERENCE / "headline", REFERENCE / "demo"):
        put_block(ROOT / "README.md", "leaders", leaders_block(REFERENCE))
    if (out.parent / COST).is_file():
        put_block(out.parent / "README.md", "costs", cost_block(out.parent))
    print(f"wrote {out} and its table in {page}")


def stale(folder: Path, suite: Suite) -> list[str]:
    """One sentence for everything that says a published table is older than the checkout.

    Args:
        folder: Of the published frames.
        suite: As the checkout would run it now.
    """
    told = json.loads((folder / SOURCE).read_text(encoding="utf-8"))
    table = pd.read_csv(folder / "retain.csv")
    lines = zip(table["row"], protocol_column(table), strict=True)
    shown = {_named(row, match) for row, match in lines}
    listed = {_named(job.row, job.match) for job in suite.jobs}
    sentences = []
    if listed - shown:
        sentences.append(f"the table lacks rows of the suite: {', '.join(sorted(listed - shown))}")
    if shown - listed:
        sentences.append(f"the suite lacks rows of the table: {', '.join(sorted(shown - listed))}")
    if "code" not in told:
        sentences.append("its records do not say which parts of the code made them")
    changed = [part for part, made in told.get("code", {}).items() if made != [code_hash(part)]]
    if changed:
        sentences.append(f"{', '.join(changed)} changed since records were made")
    return sentences


def _named(row: str, match: str | None) -> str:
    return f"{row} (match each)" if match == "each" else row


def block(folder: Path, page: Path) -> str:
    """The main table of published frames, one per protocol, with its source, as Markdown."""
    names = ("retain", "ranks", "noise")
    retain, ranks, noise = (pd.read_csv(folder / f"{name}.csv") for name in names)
    told = json.loads((folder / SOURCE).read_text(encoding="utf-8"))
    commits = ", ".join(commit[:12] for commit in told["commits"])
    made = (
        f"{told['runs']} runs of the suite `{told['suite']}` on {told['hardware']['processor']}, "
        f"commit {commits}; scores per task, differences and cost beside "
        f"[retain.csv]({os.path.relpath(folder / 'retain.csv', page.parent)})."
    )
    floor = [
        f"Noise floor: `{line['row']}` again at batch size {line['batch_size']} moves "
        f"{line['changed']:,} of {line['items']:,} items."
        for line in noise.to_dict("records")
    ]
    floor += [FLOOR] * bool(floor)
    tables = [
        f"{told_of}\n\n{markdown(short_table(own, ranks))}"
        for match, told_of in MATCHES.items()
        if len(own := retain[retain["match"] == match])
    ]
    below = [f"{escape_markdown(text)}\n" for text in (DEFINED, SKIPS, MARKED, *told["cautions"])]
    return "\n".join([*tables, *below, " ".join([made, *floor])])


def short_table(retain: pd.DataFrame, ranks: pd.DataFrame) -> Table:
    """Retain of one protocol without the columns of tasks, with ranks."""
    keys = ["backbone", "target", "match", "row"]
    both = retain.merge(
        ranks[[*keys, "rank", "rank_low", "rank_high", "tied"]], on=keys, how="left"
    )
    made = Builder()
    made.lead(both)
    for head, name in (("Skip", "skip"), ("Retain", "retain")):
        texts = [plus(v, s) for v, s in zip(both[name], both[f"{name}_std"], strict=True)]
        made.add(head, texts, retain_marks(both) if name == "retain" else None)
        if name == "skip":
            made.skips(both)
            made.numbers(both, {"Net": ("skip_net", "{:.2f}")})
    made.add("95 % interval", spans(both, "retain_low", "retain_high"))
    made.numbers(both, {"Rank": ("rank", "{:.0f}")})
    made.add("95 % interval of the rank", spans(both, "rank_low", "rank_high", "{:.0f}"))
    made.add("Note", notes(both))
    return made.table("short", "Retain", "")


def _limits(name: str) -> tuple[str, str]:
    return f"<!-- table of {name}: made by workflows.steps.publish -->\n", "<!-- end of table -->"


def page_of(name: str) -> Path:
    """The page that has the marks of a table; the project's README where none has."""
    first, _ = _limits(name)
    found = [page for page in PAGES if first in page.read_text(encoding="utf-8")]
    return found[0] if found else PAGES[0]


def read_block(page: Path, name: str) -> tuple[str, str, str]:
    """What stands before, between and behind the marks of a table.

    Raises:
        ValueError: The marks are missing.
    """
    text = page.read_text(encoding="utf-8")
    first, last = _limits(name)
    before, found, rest = text.partition(first)
    between, closed, behind = rest.partition(last)
    if not found or not closed:
        raise ValueError(f"{page} has no line '{first.strip()}' followed by '{last}'")
    return before, between, behind


def put_block(page: Path, name: str, text: str) -> None:
    """Show a table between the marks of that name."""
    before, _, behind = read_block(page, name)
    first, last = _limits(name)
    write_text(page, f"{before}{first}{text}\n{last}{behind}")


def draw_protocols(folder: Path) -> None:
    """The figure of both protocols beside published frames, where they have both."""
    retain, differences = (
        pd.read_csv(folder / f"{name}.csv") for name in ("retain", "differences")
    )
    with use():
        for figure in protocols(Data(retain, differences, pd.DataFrame()), 2).values():
            with whole_file(folder / "protocols.svg") as file:
                figure.savefig(file, format="svg", metadata=METADATA["svg"])


def leaders(retain: pd.DataFrame) -> dict[str, str]:
    """Row -> what it is: HeRo, a control, and the best of its kind where skip is matched by kind.

    Args:
        retain: Lines of one target under ``match: each``.
    """
    known = discover()
    kept = retain.set_index("row")["retain"].sort_values(ascending=False)
    kinds = {
        "the best other router": [
            r for r in kept.index if r in known and known[r].trained and known[r].kind == "dynamic"
        ],
        "the best narrowed once and healed": [r for r in kept.index if "+" in r],
        "the best without training": [r for r in kept.index if r in known and not known[r].trained],
    }
    best = {next(r for r in rows if r != "hero"): told for told, rows in kinds.items()}
    return {"hero": "the paper's", **best, "random-skip": "a control"}


def leaders_block(reference: Path, target: float = 25) -> str:
    """The project's first table, from the frames of `headline` and the demo's speeds."""
    retain = pd.read_csv(reference / "headline/retain.csv")
    speeds = pd.read_csv(reference / "demo/speeds.csv")
    speeds = speeds[(speeds["mode"] == "decode") & speeds["case"].str.startswith("1x")]
    pooled, each = (
        retain[(retain["target"] == target) & (retain["match"] == match)].set_index("row")
        for match in ("pooled", "each")
    )
    told = leaders(each.reset_index())
    rows, fast = list(told), speeds.set_index("row")["speed"]
    made = Builder()
    made.add("Row", [f"{each.loc[row, 'title']}, {told[row]}" for row in rows])
    made.add("Skip where it counts", [f"{skip:.1f}" for skip in pooled.loc[rows, "skip_deciding"]])
    for head, frame in (
        ("Retain, matched as in the paper", pooled.loc[rows]),
        ("Retain, matched where it counts", each.loc[rows]),
    ):
        held = spans(frame, "retain_low", "retain_high")
        kept = zip(frame["retain"], held, strict=True)
        made.add(head, [f"{value:.1f} ({interval})" for value, interval in kept])
    made.add("Speed of decoding", [number(fast.get(row), "{:.2f}") for row in rows])
    demo = json.loads((reference / "demo" / SOURCE).read_text(encoding="utf-8"))
    note = (
        f"At {target:g} % of the parameters, in percent; Retain with its 95 % interval. Skip where "
        "it counts: on answers and generated tokens, when skip is matched over all tokens as in "
        "the paper. Speed: one sequence on a CPU over dense, above 1 is faster; of the demo's "
        f"models, one seed and, where trained, {demo['training']['updates']:,} updates."
    )
    return markdown(made.table("leaders", "Leaders", note))


def cost_block(reference: Path) -> str:
    """Seconds and memory of fits on the demo's backbone and at a true shape, as Markdown."""
    told = json.loads((reference / COST).read_text(encoding="utf-8"))
    demo = pd.read_csv(reference / "demo/costs.csv").set_index("row")
    rows, weights = list(told["rows"]), told["weights_mb"] / 1024
    sizes = [told["rows"][row]["peak_memory_mb"] / 1024 for row in rows]
    made = Builder()
    made.add("Row", rows)
    made.add("Demo, s", [f"{demo.loc[row, 'fit_seconds']:.1f}" for row in rows])
    made.add("Demo, MB", [f"{demo.loc[row, 'fit_memory_mb']:.0f}" for row in rows])
    made.add("1B, s", [f"{told['rows'][row]['seconds']:,.0f}" for row in rows])
    made.add("1B, GB", [f"{size:.1f}" for size in sizes])
    made.add("over its weights", [f"{size / weights:.2f}" for size in sizes])
    commits = dict.fromkeys(told["rows"][row]["commit"][:12] for row in rows)
    asked = told["command"]
    note = (
        f"Shape {asked['shape']}, random weights of {weights:.1f} GB ({asked['dtype']}), "
        f"{asked['documents']} x {asked['length']} calibration tokens, budget {asked['budget']}, "
        f"{asked['threads']} thread on {told['hardware']['processor']}, other work beside; "
        f"commits {', '.join(commits)}."
    )
    return markdown(made.table("costs", "Cost", note))


if __name__ == "__main__":
    run(main)
