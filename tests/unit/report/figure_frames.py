"""Frames of suites for figures, from records or from reports/reference with the rest made up."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.container import ErrorbarContainer
from matplotlib.figure import Figure

from methods import discover
from workflows import ROOT
from workflows.report.figures import FIGURES
from workflows.report.figures.data import CURVES, ROUTES, FigureFrames, run_frames
from workflows.report.results import read_results
from workflows.report.tables import make_frames
from workflows.stats.frames import layer_frame
from workflows.stats.lines import LINE_KEYS

LEAD = [*LINE_KEYS, "title", "kind"]


def read(folder: Path) -> FigureFrames:
    results = read_results(folder)
    frames = make_frames(results)
    runs = run_frames(results.records, results.files)
    layers = layer_frame(results.records)
    return FigureFrames(frames["retain"], frames["differences"], layers, frames["speeds"], **runs)


def one(name: str, data: FigureFrames) -> Figure:
    return FIGURES[name](data, 2)[""]


def marks(axes: Axes) -> list[tuple[float, ...]]:
    """x, y and the ends of the interval of every mark, sorted."""
    points = []
    for container in axes.containers:
        assert isinstance(container, ErrorbarContainer)
        bars = [[segment.ravel() for segment in bar.get_segments()] for bar in container.lines[2]]
        for point, *ends in zip(container.lines[0].get_xydata(), *bars, strict=True):
            points.append(tuple(np.concatenate([point, *ends]).tolist()))
    return sorted(points)


def rows_of(retain: pd.DataFrame) -> pd.DataFrame:
    return retain[(retain["kind"] != "reference") & retain["retain"].notna()]


def reference(suite: str) -> FigureFrames:
    """The committed frames of a suite; times, curves and routes are drawn at random."""
    folder = ROOT / "reports/reference" / suite
    retain = pd.read_csv(folder / "retain.csv")
    rng = np.random.default_rng(5)
    lines = retain[LEAD]
    speeds = [
        lines.assign(mode=mode, case=case, bound=rng.uniform(1.0, 1.3, len(lines)))
        for mode, case in (("prefill", "8x128"), ("decode", "1x128"))
    ]
    speed = pd.concat(speeds).drop(columns="kind").assign(speed=lambda f: f["bound"] * 0.8)
    routed = lines[(lines["kind"] == "dynamic") & lines["target"].notna()]
    return FigureFrames(
        retain,
        pd.read_csv(folder / "differences.csv"),
        lines.join(pd.DataFrame(rng.random((len(lines), 12)))),
        speeds=speed.assign(speed_low=speed["speed"] * 0.95, speed_high=speed["speed"] * 1.05),
        settings=settings(retain),
        curves=curves(routed, rng),
        routes=routes(routed, rng),
    )


def settings(retain: pd.DataFrame) -> pd.DataFrame:
    """The method of a variant is the known row that its name begins with."""
    known = sorted(discover(), key=len)
    rows = retain[["backbone", "row"]].drop_duplicates()
    methods = [
        ([row] + [name for name in known if row.startswith(name)])[-1] for row in rows["row"]
    ]
    return rows.assign(method=methods, params=[json.dumps(params_of(row)) for row in rows["row"]])


def params_of(row: str) -> dict[str, float | None]:
    """As the suite demo_full pins them."""
    *_, last = row.split("-")
    width = float(last) if "-memory-" in row else 64 if row == "hero" else None
    alpha = {"1e-4": 1e-4, "3e-4": 3e-4, "5e-4": 5e-4, "1e-3": 1e-3}
    pinned = alpha.get("-".join(row.split("-")[2:])) if "-alpha-" in row else None
    return {"memory_width": width or (64 if pinned else None), "alpha": pinned}


def curves(lines: pd.DataFrame, rng: np.random.Generator) -> pd.DataFrame:
    """Forty points of every line."""
    points = [
        line | {"update": n, "loss": 1 + rng.random(), "skip": 25 * rng.random(), "alpha": 0.01}
        for line in lines.to_dict("records")
        for n in range(40)
    ]
    return pd.DataFrame(points, columns=CURVES)


def routes(lines: pd.DataFrame, rng: np.random.Generator) -> pd.DataFrame:
    """Eighty tokens of a prompt, four layers."""
    points = [
        line | {"task": "a", "place": t, "token": f" word{t}", "answer": t > 76, "layer": n}
        for line in lines.to_dict("records")
        for n in range(4)
        for t in range(80)
    ]
    frame = pd.DataFrame(points).assign(ran=rng.integers(0, 2, len(points)).astype(float))
    return frame[ROUTES]
