"""The files of the figures, drawn by one process or by two."""

from __future__ import annotations

import os
import signal
from io import BytesIO
from multiprocessing import get_context
from pathlib import Path
from time import sleep

import matplotlib
import pytest

from tests.unit.report.figure_frames import one
from workflows.report import figures
from workflows.report.figures import draw_all, start_deaf, use
from workflows.report.figures.data import FigureFrames
from workflows.report.figures.style import FULL, grey
from workflows.runtime.files import WRITTEN, write_json


@pytest.fixture(scope="module")
def figure_files(suite_data: FigureFrames, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of all figures, made by one process."""
    folder = tmp_path_factory.mktemp("figures")
    with use():
        draw_all(suite_data.retain, suite_data.differences, suite_data.layers, folder)
    return folder


def test_figures_without_data_are_not_made(figure_files: Path) -> None:
    names = {
        "retain_over_skip", "both_measures", "protocols", "differences", "scores_per_task",
        "executed_per_layer",
    }  # fmt: skip
    for folder in (figure_files, figure_files / "one_column"):
        files = {file.name for file in folder.iterdir() if file.is_file()}
        drawn = {f"{name}.{kind}" for name in names for kind in ("png", "svg", "pdf")}
        assert files == drawn | {WRITTEN}


def test_a_dollar_in_a_name_is_no_formula(suite_data: FigureFrames, tmp_path: Path) -> None:
    titles = suite_data.retain["title"].where(suite_data.retain["row"] != "hero", r"$\frac{$")
    draw_all(
        suite_data.retain.assign(title=titles), suite_data.differences, suite_data.layers, tmp_path
    )
    assert r"$\frac{$" in (tmp_path / "retain_over_skip.svg").read_text()


def test_the_settings_of_a_user_change_no_figure(suite_data: FigureFrames) -> None:
    def drawn() -> bytes:
        file = BytesIO()
        with use():
            one("retain_over_skip", suite_data).savefig(file, format="png")
        return file.getvalue()

    plain = drawn()
    with matplotlib.rc_context({"axes.facecolor": "red", "savefig.bbox": "tight"}):
        assert drawn() == plain


def test_a_sign_made_at_import_has_no_setting_of_a_user() -> None:
    with matplotlib.rc_context({"lines.markersize": 14, "lines.linewidth": 5}):
        sign = grey(marker="o")
    assert (sign.get_markersize(), sign.get_linewidth()) == (
        FULL.get_markersize(),
        FULL.get_linewidth(),
    )


def test_figures_of_others_stay(suite_data: FigureFrames, tmp_path: Path) -> None:
    below = tmp_path / "one_column"
    below.mkdir()
    for folder in (tmp_path, below):
        (folder / "mine.pdf").touch()
        (folder / "earlier.pdf").touch()
        write_json(folder / WRITTEN, {"files": ["earlier.pdf"]})
    draw_all(suite_data.retain, suite_data.differences, suite_data.layers, tmp_path)
    for folder in (tmp_path, below):
        assert (folder / "mine.pdf").is_file()
        assert not (folder / "earlier.pdf").exists()
        assert (folder / "differences.pdf").is_file()


def test_two_processes_draw_what_one_does(
    suite_data: FigureFrames, figure_files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(figures, "MANY", 0)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    draw_all(suite_data.retain, suite_data.differences, suite_data.layers, tmp_path)
    for file in (file for file in tmp_path.rglob("*") if file.is_file()):
        assert file.read_bytes() == (figure_files / file.relative_to(tmp_path)).read_bytes()


def test_what_fails_beside_is_told_here(
    suite_data: FigureFrames,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(figures, "MANY", 0)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    (tmp_path / "one_column").touch()
    with pytest.raises(FileExistsError, match="one_column"):
        draw_all(suite_data.retain, suite_data.differences, suite_data.layers, tmp_path)
    assert capfd.readouterr().err == ""


def test_the_process_beside_says_nothing_of_an_interrupt(capfd: pytest.CaptureFixture[str]) -> None:
    """Nor does it end: whoever started it does that."""
    before = signal.getsignal(signal.SIGINT)
    other = get_context("spawn").Process(target=sleep, args=(0.3,), daemon=True)
    start_deaf(other)
    assert other.pid is not None
    while other.is_alive():
        os.kill(other.pid, signal.SIGINT)
        sleep(0.02)
    assert (other.exitcode, capfd.readouterr().err) == (0, "")
    assert signal.getsignal(signal.SIGINT) is before
