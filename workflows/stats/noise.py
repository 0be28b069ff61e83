"""The noise floor: how much another batch size changes the scores of the same model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from workflows.records.record import Record
from workflows.stats.lines import Panel, item_values
from workflows.stats.resample import Run
from workflows.stats.retain import retain


def noise_frame(
    panels: Sequence[Panel], repeats: Sequence[Record], items: Mapping[int, pd.DataFrame]
) -> pd.DataFrame:
    """The reference scored again, compared with its own record.

    Args:
        panels: The lines of each backbone.
        repeats: Records of the reference at other batch sizes.
        items: Index of a repeat -> its frame of items.

    Returns:
        Columns backbone, row, batch_size, against (batch size of the record), items, changed
        (items that are now right or now wrong), retain (percent), largest (change of a task's
        score in points).

    Raises:
        ValueError: A repeat is of another row, or its items are not the record's.
    """
    lines = []
    for number, repeat in enumerate(repeats):
        record, run, retain_tasks = _reference(panels, repeat)
        again = _same_items(items[number], repeat, run)
        means, base = (
            {task: float(part[task].mean()) for task in retain_tasks} for part in (again, run)
        )
        changes = [abs(float(again[task].mean() - run[task].mean())) for task in run]
        lines.append(
            {
                "backbone": repeat.backbone.name,
                "row": repeat.row,
                "batch_size": repeat.evaluation.batch_size,
                "against": record.evaluation.batch_size,
                "items": sum(len(values) for values in run.values()),
                "changed": sum(int(np.sum(again[task] != run[task])) for task in run),
                "retain": 100 * float(retain(means, base)),
                "largest": 100 * max(changes),
            }
        )
    columns = "backbone row batch_size against items changed retain largest".split()
    return pd.DataFrame(lines, columns=columns)


def _same_items(frame: pd.DataFrame, repeat: Record, run: Run) -> Run:
    """Item values of a repeat. Its items must be those of the run that it repeats."""
    again = item_values(frame, repeat)
    if {task: len(values) for task, values in again.items()} != {
        task: len(values) for task, values in run.items()
    }:
        raise ValueError(f"noise record of '{repeat.row}': its items are not the record's")
    return again


def _reference(panels: Sequence[Panel], repeat: Record) -> tuple[Record, Run, Sequence[str]]:
    """The record that a repeat repeats, with its items and the tasks of the Retain."""
    for panel in panels:
        for record, run in panel.reference.pairs:
            if record.key == repeat.key:
                return record, run, panel.retain_tasks
    raise ValueError(
        f"a noise record of row '{repeat.row}', seed {repeat.seed}, on "
        f"'{repeat.backbone.name}' is not of this table's reference"
    )
