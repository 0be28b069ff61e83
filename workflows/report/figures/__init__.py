"""The figures of a report, drawn from frames alone, as a paper prints them.

Each is drawn at the width of two columns, and of one below ``one_column``, as PDF (fonts embedded),
SVG (text as text) and PNG (300 dpi). A new figure is a function in a module here and a line of
``FIGURES``. A figure without data in a suite is left out.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable, Iterator, Mapping
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from workflows.report.figures.curves import training
from workflows.report.figures.data import FigureFrames
from workflows.report.figures.forest import differences
from workflows.report.figures.heat import executed_per_layer, scores_per_task
from workflows.report.figures.measures import both_measures
from workflows.report.figures.protocols import protocols
from workflows.report.figures.scatter import retain_over_skip, time_over_skip
from workflows.report.figures.style import use
from workflows.report.figures.sweeps import alpha_sweep, memory_width
from workflows.report.figures.tokens import token_map
from workflows.runtime.files import delete_earlier, whole_file

# Name -> from the data and a number of columns, 1 or 2, to figures by the suffix of the name.
FIGURES: Mapping[str, Callable[[FigureFrames, int], Mapping[str, Figure]]] = {
    "retain_over_skip": retain_over_skip,
    "both_measures": both_measures,
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
# Lines of a table beyond which a second process is worth its start.
MANY = 100
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
    """Write every figure that the frames have data for into ``folder``; many lines on two cores.

    Args:
        more: The other frames of :class:`~workflows.report.figures.data.FigureFrames`, by name.
    """
    data = FigureFrames(retain, differences, layers, **more)
    # Spawned, not forked: a fork has the locks of the other threads but not the threads.
    other = get_context("spawn").Process(target=_draw_silently, args=(data, 1, folder), daemon=True)
    if len(retain) > MANY and len(os.sched_getaffinity(0)) > 1:
        start_deaf(other)
    _draw(data, 2, folder)
    if other.pid is not None:
        other.join()
    if other.exitcode != 0:
        # The process was not started, or it failed: here the error is visible.
        _draw(data, 1, folder)


def start_deaf(process: BaseProcess) -> None:
    """Start a daemon that ignores Ctrl-C, at which it would print. It ends with its parent."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        process.start()
    finally:
        signal.signal(signal.SIGINT, before)


def drawings(
    data: FigureFrames, columns: int, names: Iterable[str]
) -> Iterator[tuple[str, Figure]]:
    """Figures of these names that the frames have data for, each with its name and suffix."""
    for name in names:
        for suffix, figure in FIGURES[name](data, columns).items():
            yield f"{name}{suffix}", figure


def _draw(data: FigureFrames, columns: int, folder: Path) -> None:
    """Every figure at one width."""
    below = folder / FOLDERS[columns]
    below.mkdir(parents=True, exist_ok=True)
    drawn = set()
    with use():
        for name, figure in drawings(data, columns, FIGURES):
            _save(figure, below / name)
            drawn |= {f"{name}.{kind}" for kind in METADATA}
    # Those of an earlier form of the suite.
    delete_earlier(below, drawn)


def _save(figure: Figure, file: Path) -> None:
    """One figure in every format; ``file`` without an ending."""
    for kind, metadata in METADATA.items():
        with whole_file(file.with_name(f"{file.name}.{kind}")) as part:
            figure.savefig(part, format=kind, metadata=metadata)


def _draw_silently(data: FigureFrames, columns: int, folder: Path) -> None:
    """As :func:`_draw`; an error gives exit status 1 and no text."""
    try:
        _draw(data, columns, folder)
    except BaseException:
        raise SystemExit(1) from None
