"""Whether a published table is older than the checkout."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd

from workflows.report.published import SOURCE
from workflows.runtime.provenance import code_hash
from workflows.stats.frames import protocol_column
from workflows.suite.jobs import Suite


def stale(folder: Path, suite: Suite) -> list[str]:
    """One sentence for each sign that a published table is older than the checkout.

    Args:
        folder: Of the published frames.
        suite: As the checkout would run it now.
    """
    source = json.loads((folder / SOURCE).read_text(encoding="utf-8"))
    table = pd.read_csv(folder / "retain.csv")
    lines = zip(table["row"], protocol_column(table), strict=True)
    rows = {_label(row, match) for row, match in lines}
    jobs = {_label(job.row, job.match) for job in suite.jobs}
    sentences = []
    if jobs - rows:
        sentences.append(f"the table lacks rows of the suite: {', '.join(sorted(jobs - rows))}")
    if rows - jobs:
        sentences.append(f"the suite lacks rows of the table: {', '.join(sorted(rows - jobs))}")
    if "code" not in source:
        sentences.append("its records do not say which parts of the code made them")
    changed = [
        part for part, hashes in source.get("code", {}).items() if hashes != [code_hash(part)]
    ]
    if changed:
        sentences.append(f"{', '.join(changed)} changed since records were made")
    return sentences


def _label(row: str, match: str | None) -> str:
    return f"{row} (match split)" if match == "split" else row
