"""The frames of a report, as they stand in its CSV files, and its tables, one per protocol."""

from __future__ import annotations

import dataclasses

from workflows.report.display import Table
from workflows.report.paper.beside import known_backbones, value_frame
from workflows.report.paper.order import agreement_frame, order_frame
from workflows.report.paper.show import order_tables, value_tables
from workflows.report.published import Frames
from workflows.report.results import Results
from workflows.report.seeds import SeedSpread, with_seed_deviation
from workflows.report.suite_tables import (
    MATCHES,
    budget_table,
    cost_table,
    difference_table,
    noise_table,
    rank_table,
    retain_table,
    score_table,
    speed_table,
)
from workflows.stats.frames import (
    budget_frame,
    cost_frame,
    measure_frame,
    retain_frame,
    score_frame,
)
from workflows.stats.noise import noise_frame
from workflows.stats.ranking import rank_frame
from workflows.stats.speeds import speed_frame, with_speed
from workflows.stats.versus import difference_frame

Tables = dict[str, list[Table]]

# Frames that become one table per protocol.
MATCHED = ("retain", "ranks", "differences", "budgets", "costs", "speeds")


def make_frames(results: Results, spread: SeedSpread | None = None) -> Frames:
    """Each of :data:`workflows.report.FRAMES`.

    Args:
        results: Records and what they are compared by.
        spread: How far seeds lie apart, for rows that ran one; None where nothing is known.
    """
    frames = {
        "ranks": rank_frame(results.panels),
        "measures": measure_frame(results.panels),
        "differences": difference_frame(results.panels, results.settings["focus"]),
        "budgets": budget_frame(results.panels),
        "costs": cost_frame(results.panels),
        "speeds": speed_frame(results.panels, results.speeds),
        "noise": noise_frame(results.panels, results.repeats, results.repeat_items),
    }
    retain = with_seed_deviation(
        retain_frame(results.panels), results.records, results.settings["retain_tasks"], spread
    )
    order = order_frame(retain, known_backbones(results.panels))
    frames["paper_order"], frames["paper_agreement"] = order, agreement_frame(order)
    return {
        "retain": retain,
        "scores": score_frame(results.records),
        "paper_values": value_frame(results.panels),
        **{name: frame.round(4) for name, frame in frames.items()},
    }


def make_tables(results: Results, frames: Frames, seeds_of: str = "") -> Tables:
    """All tables, in the page's order: name -> one table per protocol.

    Args:
        results: The records of the frames.
        frames: Of :func:`make_frames`.
        seeds_of: The suite that gives the deviation between seeds for rows with one seed.
    """
    return retain_tables(results, frames, seeds_of) | frame_tables(frames)


def retain_tables(results: Results, frames: Frames, seeds_of: str) -> Tables:
    """The main table per protocol, with the marks of every task."""
    tables: Tables = {}
    for match, own in _by_match(frames):
        panels = [panel for panel in results.panels if panel.match == match]
        both = with_speed(own["retain"], own["speeds"])
        _add(tables, retain_table(both, panels, seeds_of), match)
    return tables


def frame_tables(frames: Frames) -> Tables:
    """Name -> the tables that follow from frames alone, in the page's order; none is empty."""
    titles = dict(zip(frames["retain"]["row"], frames["retain"]["title"], strict=True))
    tables: Tables = {}
    for match, own in _by_match(frames):
        opponents = dict.fromkeys(own["differences"]["against"])
        for table in (
            rank_table(own["ranks"]),
            *[difference_table(own["differences"], name, titles[name]) for name in opponents],
            budget_table(own["budgets"]),
            cost_table(own["costs"]),
            speed_table(own["speeds"]),
        ):
            _add(tables, table, match)
    for table in (noise_table(frames["noise"]), score_table(frames["scores"], titles)):
        tables[table.name] = [table]
    for table in (
        *order_tables(frames["paper_order"], frames["paper_agreement"]),
        *value_tables(frames["paper_values"]),
    ):
        same = tables.setdefault(table.name, [])
        same.append(
            dataclasses.replace(table, name=f"{table.name}_{table.match}") if same else table
        )
    full = {name: [table for table in same if table.lines] for name, same in tables.items()}
    return {name: same for name, same in full.items() if same}


def _by_match(frames: Frames) -> list[tuple[str, Frames]]:
    """Each protocol with the lines of it."""
    return [
        (
            str(match),
            {
                name: frames[name][frames[name]["match"] == match].reset_index(drop=True)
                for name in MATCHED
            },
        )
        for match in dict.fromkeys(frames["retain"]["match"])
    ]


def _add(tables: Tables, table: Table, match: str) -> None:
    """Add a table. Files of the first protocol have the plain names, others an ending."""
    same = tables.setdefault(table.name, [])
    name = f"{table.name}_{match}" if same else table.name
    note = f"{MATCHES[match]} {table.note}"  # type: ignore[index]
    same.append(dataclasses.replace(table, name=name, match=match, note=note))
