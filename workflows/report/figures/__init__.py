"""The figures of a report, drawn from frames alone, as a paper prints them.

Each is drawn at the width of two columns, and of one below ``one_column``, as PDF (fonts embedded),
SVG (text as text) and PNG (300 dpi). A new figure is a function in a module here and a line of
``FIGURES``; one whose data a suite does not have is not made.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from workflows.report.figures.curves import training
from workflows.report.figures.data import Data
from workflows.report.figures.forest import differences
from workflows.report.figures.heat import executed_per_layer, scores_per_task
from workflows.report.figures.protocols import protocols
from workflows.report.figures.scatter import retain_over_skip, time_over_skip
from workflows.report.figures.style import use
from workflows.report.figures.sweeps import alpha_sweep, memory_width
from workflows.report.figures.tokens import token_map

# Name -> from the data and a number of columns, 1 or 2, to figures by the suffix of the name.
FIGURES: Mapping[str, Callable[[Data, int], Mapping[str, Figure]]] = {
    "retain_over_skip": retain_over_skip,
    "protocols": protocols,
    "differences": differences,
    "scores_per_task": scores_per_task,
    "executed_per_layer": executed_per_layer,
    "token_map": token_map,
    "training": training,
    "alpha_sweep": alpha_sweep,
    "memory_width": memory_width,
    "time_over_skip": time_over_skip,
}
FOLDERS = {2: ".", 1: "one_column"}
# No dates in the files: the same records give the same bytes.
METADATA: Mapping[str, dict[str, Any]] = {
    "png": {"Software": None}, "svg": {"Date": None}, "pdf": {"CreationDate": None},
}  # fmt: skip


def draw_all(
    retain: pd.DataFrame,
    differences: pd.DataFrame,
    layers: pd.DataFrame,
    folder: Path,
    **more: pd.DataFrame,
) -> None:
    """Write every figure that the frames have data for into ``folder``.

    Args:
        more: The other frames of :class:`~workflows.report.figures.data.Data`, by name.
    """
    data = Data(retain, differences, layers, **more)
    with use():
        for columns, below in FOLDERS.items():
            (folder / below).mkdir(parents=True, exist_ok=True)
            for name, draw in FIGURES.items():
                for suffix, figure in draw(data, columns).items():
                    for kind, metadata in METADATA.items():
                        file = folder / below / f"{name}{suffix}.{kind}"
                        figure.savefig(file, metadata=metadata)
