"""Measured ratios as the speed that tables show."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from tests import steps
from tests.records import write_suite
from workflows.report.cautions import gap_cautions
from workflows.report.results import read_results
from workflows.stats.speeds import with_speed


def line(
    mode: str,
    case: str,
    over_dense: float,
    bound: float | None,
    timed_bound: float | None = None,
) -> dict[str, Any]:
    return {
        "mode": mode, "case": case, "bypass": 0.5, "over_dense": over_dense, "bound": bound,
        "timed_bound": timed_bound, "interval": [over_dense - 0.05, over_dense + 0.05],
        "realised_share": None if bound is None else (1 - over_dense) / (1 - bound),
    }  # fmt: skip


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of made runs of which HeRo's first seed at one target was timed."""
    folder = tmp_path_factory.mktemp("speeds")
    results = write_suite(folder / "results", ("pooled", "split"))
    lines = [
        line("training", "8x64", 0.4, None),
        line("prefill", "8x64", 0.8, 0.75, 0.78),
        line("decode", "2x64", 1.25, 0.5),
        line("decode", "1x64", 0.5, 0.25),
    ]
    first = sorted(results.glob("*/hero/b25/*/record.json"))[0]
    first.with_name("speed.json").write_text(json.dumps({"lines": lines}))
    steps.report_tables(results, folder / "report")
    return folder / "report"


def test_every_measurement_is_a_line(report: Path) -> None:
    frame = pd.read_csv(report / "tables/speeds.csv")
    assert set(frame["row"]) == {"hero"}
    assert set(frame["match"]) == {"pooled"}
    assert frame["case"].tolist() == ["8x64", "8x64", "2x64", "1x64"]
    assert frame["speed"].tolist() == [2.5, 1.25, 0.8, 2.0]
    assert frame["bound"].isna().tolist() == [True, False, False, False]
    assert frame["bound"].tolist()[1:] == pytest.approx([1 / 0.75, 2, 4], abs=1e-4)
    assert frame["realised"].tolist()[1:] == pytest.approx([80, -50, 200 / 3], abs=1e-3)
    assert frame["timed_bound"].isna().tolist() == [True, False, True, True]
    assert frame["timed_bound"][1] == pytest.approx(1 / 0.78, abs=1e-4)
    rows = (report / "tables/speeds.md").read_text().splitlines()[2:6]
    assert [line.split("|")[-2].strip() for line in rows] == ["–", "80", "–", "67"]
    assert (frame["speed_low"] < frame["speed"]).all()
    assert (frame["speed"] < frame["speed_high"]).all()


def test_the_retain_table_shows_the_first_case_of_each_mode(report: Path) -> None:
    lines = (report / "tables/retain.md").read_text().splitlines()
    heads = [cell.strip() for cell in lines[0].split("|")]
    rows = {}
    for text in (text for text in lines[2:] if text.startswith("|")):
        cells = dict(zip(heads, (cell.strip() for cell in text.split("|")), strict=True))
        rows[cells["Row"], cells["Target"]] = cells["Prefill"], cells["Decode"]
    assert rows["Hero", "25"] == ("1.25", "0.80")
    assert {pair for name, pair in rows.items() if name != ("Hero", "25")} == {("–", "–")}
    assert "Prefill" not in (report / "tables/retain_split.md").read_text()


def test_a_row_that_lacks_the_case_of_the_others_has_no_speed(tmp_path: Path) -> None:
    results = write_suite(tmp_path / "results")
    both = [line("prefill", case, 0.8, 0.75) for case in ("8x64", "1x64")]
    for row, lines in (("dense", both[1:]), ("lora", both)):
        (results / f"toy/{row}/b0/s42/speed.json").write_text(json.dumps({"lines": lines}))
    steps.report_tables(results, tmp_path / "report")
    frame = pd.read_csv(tmp_path / "report/tables/retain.csv")
    speeds = pd.read_csv(tmp_path / "report/tables/speeds.csv")
    shown = with_speed(frame, speeds).set_index("row")["prefill"]
    assert shown["lora"] == 1.25
    assert math.isnan(shown["dense"])


def test_the_page_says_that_a_skip_rate_is_no_speed_up(report: Path) -> None:
    page = (report / "index.html").read_text()
    assert "A skip rate is no speed-up." in page
    assert "<h2>Speed</h2>" in page


def test_rows_without_a_target_are_timed_as_well(tmp_path: Path) -> None:
    results = write_suite(tmp_path / "results")
    for file in [*results.rglob("record.json")]:
        if file.parents[1].name != "b0":
            shutil.rmtree(file.parent)
    lines = [line("prefill", "8x64", 0.8, 0.75)]
    for file in results.rglob("record.json"):
        file.with_name("speed.json").write_text(json.dumps({"lines": lines}))
    steps.report_tables(results, tmp_path / "report")
    assert set(pd.read_csv(tmp_path / "report/tables/speeds.csv")["row"]) == {"dense", "lora"}
    assert "1.25" in (tmp_path / "report/tables/retain.md").read_text()


def test_times_of_an_earlier_model_are_left_out(tmp_path: Path) -> None:
    results = write_suite(tmp_path / "results")
    lines = [line("prefill", "8x64", 0.8, 0.75)]
    files = sorted(results.glob("*/hero/b25/*/record.json"))
    for file, weights in zip(files, ("another", None), strict=False):
        own = json.loads(file.read_text())["weights_hash"]
        speed = {"lines": lines, "weights_hash": weights or own}
        file.with_name("speed.json").write_text(json.dumps(speed))
    steps.report_tables(results, tmp_path / "report")
    frame = pd.read_csv(tmp_path / "report/tables/speeds.csv")
    assert frame["row"].tolist() == ["hero"]
    place = files[0].parent.relative_to(results).as_posix()
    page = (tmp_path / "report/index.html").read_text()
    assert f"Times of an earlier model are left out: {place}/speed.json" in page
    assert "Not all cases were timed" not in page
    kept = files[1].with_name("speed.json")
    kept.write_text(json.dumps(json.loads(kept.read_text()) | {"left": 2}))
    (place,) = (
        one for one in gap_cautions(read_results(results)) if one.startswith("Not all cases")
    )
    assert kept.relative_to(results).as_posix() in place
