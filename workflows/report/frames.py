"""The frames of a report, as they stand in its CSV files."""

from __future__ import annotations

from workflows.report.lead import Frames
from workflows.report.paper.beside import known_backbones, value_frame
from workflows.report.paper.order import agreement_frame, order_frame
from workflows.report.results import Results
from workflows.report.seeds import SeedSpread, with_seed_deviation
from workflows.stats.noise import noise_frame
from workflows.stats.ranking import rank_frame
from workflows.stats.speeds import speed_frame
from workflows.stats.tables import (
    budget_frame,
    cost_frame,
    measure_frame,
    retain_frame,
    score_frame,
)
from workflows.stats.versus import difference_frame


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
