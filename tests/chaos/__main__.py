"""Disturb a suite while it runs, and compare its end with an undisturbed run.

A small suite on the demo's backbone has two rows that do not train and one that does. It runs once
undisturbed, then under kills at random moments and under each other fault. After each fault the
same command runs it to its end. Records, items and decisions are compared, without times, memory
and folders. No test runs this, since it takes an hour:

    python -m tests.chaos --kills 100 --out chaos.csv
"""

from __future__ import annotations

import argparse
import csv
import io
import random
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.chaos.faults import FAULTS, KILLS, kill
from tests.chaos.world import World
from workflows.report.display import Cell, Table
from workflows.report.render import markdown
from workflows.runtime.files import write_text

COLUMNS = ("fault", "how", "count", "runs_to_the_end", "outcome")


def faults(world: World, kills: int) -> Iterator[dict[str, object]]:
    """A line of the table per fault."""
    shares = [kills // len(KILLS) + (n < kills % len(KILLS)) for n in range(len(KILLS))]
    for (target, number), share in zip(KILLS, shares, strict=True):
        world.reset()
        count, wrong = kill(world, target, number, share)
        yield line(f"{target} killed", number.name, count, world, wrong)
    for name, fault in FAULTS.items():
        world.reset()
        try:
            how, wrong = fault(world), ""
        except AssertionError as error:
            how, wrong = "", str(error)
        yield line(name, how, 1, world, wrong)


def line(fault: str, how: str, count: int, world: World, wrong: str) -> dict[str, object]:
    """Run to the end, then describe what differs."""
    world.end()
    tries, differs = world.finish()
    outcome = "; ".join(filter(None, [wrong, differs])) or "records equal"
    return dict(zip(COLUMNS, (fault, how, count, tries, outcome), strict=True))


def main() -> None:
    """Try every fault; the table is written after each."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=100, help="in all")
    parser.add_argument("--seed", type=int, default=1, help="of moments and victims")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE.csv", help="the table")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        world = World(Path(folder) / "checkout", random.Random(args.seed))
        print(f"undisturbed: {world.seconds:.0f} s", flush=True)
        lines = []
        for outcome in faults(world, args.kills):
            lines.append(outcome)
            print(outcome, flush=True)
            write(args.out, lines)
    if any(one["outcome"] != "records equal" for one in lines):
        raise SystemExit(1)


def write(out: Path, lines: list[dict[str, object]]) -> None:
    """Write the table as CSV, and as Markdown beside it."""
    stream = io.StringIO()
    writer = csv.DictWriter(stream, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    write_text(out, stream.getvalue())
    cells = [[Cell(str(value)) for value in one.values()] for one in lines]
    words = ("fault", "how", "outcome")
    table = Table("chaos", "Faults", COLUMNS, cells, words)
    write_text(out.with_suffix(".md"), markdown(table))


if __name__ == "__main__":
    main()
