"""The main table of a published suite as Markdown, with its notes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from workflows.report.display import Builder, Table, spans
from workflows.report.lead import retain_marks
from workflows.report.published import Frames
from workflows.report.render import escape_markdown, markdown
from workflows.report.suite_tables import FLOOR, MARKED, MATCHES, SKIPS, definitions, notes
from workflows.stats.lines import LINE_KEYS


def published_tables(frames: Frames, source: Mapping[str, Any], link: str) -> str:
    """One table per protocol, then definitions, cautions and the source.

    Args:
        frames: As published.
        source: What stands in source.json.
        link: Address of retain.csv.
    """
    retain, noise = frames["retain"], frames["noise"]
    tables = [
        f"{heading}\n\n{markdown(short_table(own, frames['ranks']))}"
        for match, heading in MATCHES.items()
        if len(own := retain[retain["match"] == match])
    ]
    sentences = (*definitions(retain), SKIPS, MARKED, *source["cautions"])
    below = [f"{escape_markdown(text)}\n" for text in sentences]
    commits = ", ".join(commit[:12] for commit in source["commits"])
    parts = source.get("parts", [source])
    processors = " and ".join(sorted({part["hardware"]["processor"] for part in parts}))
    origin = (
        f"{source['runs']} runs of the suite `{source['suite']}` on {processors}, "
        f"commit {commits}; scores per task, differences and cost beside [retain.csv]({link})."
    )
    floor = [
        f"Noise floor: `{line['row']}` again at batch size {line['batch_size']} moves "
        f"{line['changed']:,} of {line['items']:,} items."
        for line in noise.to_dict("records")
    ]
    floor += [FLOOR] * bool(floor)
    return "\n".join([*tables, *below, " ".join([origin, *floor])])


def short_table(retain: pd.DataFrame, ranks: pd.DataFrame) -> Table:
    """Retain of one protocol without the columns of tasks, with ranks."""
    columns_of_rank = [*LINE_KEYS, "rank", "rank_low", "rank_high", "tied"]
    both = retain.merge(ranks[columns_of_rank], on=LINE_KEYS, how="left")
    columns = Builder()
    columns.lead(both)
    columns.seeds(both)
    columns.spread(both, "Skip", "skip")
    columns.skips(both)
    columns.numbers(both, {"Net": ("skip_net", "{:.2f}")})
    columns.spread(both, "Retain", "retain", retain_marks(both))
    columns.add("95 % interval", spans(both, "retain_low", "retain_high"))
    columns.beside(both)
    columns.numbers(both, {"Rank": ("rank", "{:.0f}")})
    columns.add("Rank, 95 % interval", spans(both, "rank_low", "rank_high", "{:.0f}"))
    columns.add("Note", notes(both))
    return columns.table("short", "Retain", "")
