"""Figures of single runs: sweeps of a setting, training, what ran for each token."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tests.records import dense, record, run_folder, score, write_run
from tests.unit.report.figure_frames import marks, one, read
from workflows.records.files import to_record
from workflows.report.figures.data import FigureFrames, run_frames


def swept(folder: Path) -> FigureFrames:
    """HeRo at three widths of its memory, at two pinned alphas, and under another setting too."""
    write_run(folder, dense(score("a", [1, 1, 1, 1])))
    for row, width, right in (("hero", 64, 3), ("hero-32", 32, 2), ("hero-128", 128, 4)):
        entry = score("a", [1] * right + [0] * (4 - right))
        params = {"memory_width": width, "alpha": None, "rate": 1}
        write_run(folder, record(row, 0.25, entry, budget=0.25, method="hero", params=params))
    params = {"memory_width": 16, "alpha": None, "rate": 2}
    changes = {"method": "hero", "params": params, "budget": 0.25}
    write_run(folder, record("hero-fast", 0.25, score("a", [1, 1, 0, 0]), **changes))
    for row, alpha, skip in (("hero-low", 1e-4, 0.05), ("hero-high", 1e-3, 0.2)):
        params = {"memory_width": 64, "alpha": alpha, "rate": 1}
        changes = {"method": "hero", "params": params, "budget": None}
        write_run(folder, record(row, skip, score("a", [1, 1, 1, 0]), **changes))
    return read(folder)


def test_sweeps_take_rows_that_differ_in_one_setting_alone(tmp_path: Path) -> None:
    data = swept(tmp_path)
    retains, net = one("memory_width", data).axes
    assert [mark[:2] for mark in marks(retains)] == [(32, 50), (64, 75), (128, 100)]
    assert [mark[1] for mark in marks(net)] == pytest.approx([24] * 3)
    retains, skipped = one("alpha_sweep", data).axes
    assert [mark[:2] for mark in marks(retains)] == [(1e-4, 75), (1e-3, 75)]
    assert [mark[1] for mark in marks(skipped)] == pytest.approx([5, 20])


def with_training(folder: Path, log_at: str = "model/decisions.json") -> FigureFrames:
    """A row with a log of training, whose layers are routed, removed and left alone."""
    write_run(folder, dense(score("a", [1, 1])))
    units = [
        {"layer": 2, "kind": "attention", "parameters": 1, "executed": 0.5},
        {"layer": 2, "kind": "ffn", "parameters": 3, "executed": 0.5},
    ]
    run = record(
        "hero", 0.25, score("a", [1, 0]), budget=0.25, units=units,
        layers={"kept": 3, "dense": 4, "removed": [1]},
    )  # fmt: skip
    log = [{"update": n, "loss": 2.0**-n, "skip": n / 100, "alpha": 1 + n} for n in range(20)]
    file = run_folder(folder, run) / log_at
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps({"training": log}))
    write_run(folder, run)
    return read(folder)


@pytest.mark.parametrize("log_at", ["model/decisions.json", "record.decisions.json"])
def test_training_shows_running_means_with_and_without_a_model(tmp_path: Path, log_at: str) -> None:
    axes = one("training", with_training(tmp_path, log_at)).axes
    for axis, of in zip(axes, (lambda n: 2.0**-n, lambda n: n, lambda n: 1 + n), strict=True):
        (line,) = axis.lines
        means = [np.mean([of(m) for m in range(max(0, n - 14), n + 1)]) for n in range(20)]
        assert np.allclose(line.get_xdata(), range(20))
        assert np.allclose(np.asarray(line.get_ydata()), means)


def test_the_token_map_shows_what_ran(tmp_path: Path) -> None:
    route = {
        "task": "a",
        "tokens": ["one", "two", "\n"],
        "first_answer": 2,
        "executed": ["110", "010"],
    }
    data = with_training(tmp_path)
    (file,) = tmp_path.rglob("hero/**/record.json")
    entries = json.loads(file.read_text()) | {"routes": [route]}
    routes = run_frames([to_record(entries)], [file])["routes"]
    (axis,) = one(
        "token_map", FigureFrames(data.retain, data.differences, data.layers, routes=routes)
    ).axes
    ran = [[1, 1, 1], [0, 0, 0], [0.25, 1, 0], [1, 1, 1]]
    assert np.allclose(np.asarray(axis.images[0].get_array()), ran)
    assert [text.get_text() for text in axis.get_xticklabels()] == ["one", "two", "↵"]
    assert axis.lines[0].get_xdata()[0] == 1.5
    figure = axis.figure
    caption = figure.texts[0].get_window_extent()
    assert 0 < caption.x0 < caption.x1 < figure.bbox.width
