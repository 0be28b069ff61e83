"""The frames of a report, as they stand in its CSV files."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from workflows import ROOT
from workflows.report.lead import Frames
from workflows.report.paper.beside import known_backbones, value_frame
from workflows.report.paper.order import agreement_frame, order_frame
from workflows.report.results import Results
from workflows.stats.lines import Record
from workflows.stats.noise import noise_frame
from workflows.stats.ranking import rank_frame
from workflows.stats.speeds import speed_frame
from workflows.stats.tables import budget_frame, cost_frame, retain_frame, score_frame
from workflows.stats.versus import difference_frame

# What is known of the deviation between seeds, for suites that run one.
HEADLINE = ROOT / "reports" / "reference" / "headline" / "retain.csv"


def make_frames(results: Results) -> Frames:
    """Each of :data:`workflows.report.FRAMES`."""
    rounded = {
        "ranks": rank_frame(results.panels),
        "differences": difference_frame(results.panels),
        "budgets": budget_frame(results.panels),
        "costs": cost_frame(results.panels),
        "speeds": speed_frame(results.panels, results.speeds),
        "noise": noise_frame(results.panels, results.repeats, results.repeat_items),
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
