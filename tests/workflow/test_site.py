"""The index of all suites, and pages of the tables that are committed."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pandas as pd
import pytest

from tests import steps
from tests.records import write_suite
from workflows.report.published import REFERENCE, read_frames


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A suite made here beside the committed tables."""
    folder = tmp_path_factory.mktemp("site")
    results = write_suite(folder / "results")
    steps.call("report", "--results", results, "--out", folder / "reports/made")
    shutil.copytree(
        REFERENCE, folder / "reports/reference", ignore=shutil.ignore_patterns("index.html")
    )
    steps.call("site", "--reports", folder / "reports")
    return folder / "reports"


def test_the_index_leads_to_every_suite(reports: Path) -> None:
    links = re.findall(r'<a href="([^"]+)">', (reports / "index.html").read_text())
    published = {file.parent.name for file in REFERENCE.glob("*/source.json")}
    assert set(links) == {
        "made/index.html", *(f"reference/{name}/index.html" for name in published)
    }  # fmt: skip
    for link in links:
        page = (reports / link).read_text()
        (home,) = re.findall(r'<a href="([^"]+)">All suites', page)
        assert (reports / link).parent.joinpath(home).resolve() == reports / "index.html"


def test_a_committed_table_is_a_page_with_its_numbers(reports: Path) -> None:
    for file in sorted((reports / "reference").glob("*/index.html")):
        page = file.read_text()
        (text,) = re.findall(r'<script type="application/json" id="data">(.*)</script>', page)
        lines = {line["id"]: line["numbers"] for line in json.loads(text)["lines"]}
        retain = pd.read_csv(file.with_name("retain.csv"))
        # What does not apply has a line without numbers.
        told = [numbers["retain"] for numbers in lines.values()]
        kept = retain["retain"].dropna()
        assert told.count(None) == len(retain) - len(kept)
        shown = {round(value, 3) for value in told if value is not None}
        assert shown == {round(float(f"{value:.6g}"), 3) for value in kept}
        for value in kept:
            assert f"{value:.2f}" in page
        for address in re.findall(r'href="([^"#:]+\.(?:csv|md|tex|svg))"', page):
            assert file.parent.joinpath(address).is_file(), address


def test_frames_come_back_as_the_report_made_them(reports: Path) -> None:
    frames = read_frames(reports / "made/tables")
    for name, frame in frames.items():
        file = reports / f"made/tables/{name}.csv"
        assert frame.to_csv(index=False) == file.read_text()
    assert str(frames["costs"]["trained_parameters"].dtype) == "Int64"


def test_the_index_names_the_reference_of_each_suite(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workflows.steps.site.RESULTS", tmp_path / "results")
    results = write_suite(tmp_path / "results/made")
    shutil.rmtree(results / "toy/dense/b0/s42/noise")  # of a reference
    settings = {"suite": "made", "retain_tasks": ["left"], "reference_row": "lora"}
    (results / "suite.json").write_text(json.dumps(settings))
    steps.report_tables(results, tmp_path / "reports/made")
    steps.call("site", "--reports", tmp_path / "reports")
    for page in ("index.html", "made/index.html"):
        assert "% of the scores of lora" in (tmp_path / "reports" / page).read_text()


def test_a_folder_without_pages_or_with_half_of_the_tables_is_refused(
    tmp_path: Path, reports: Path, refuse: steps.Refuse
) -> None:
    assert "holds no page of a suite" in refuse("site", "--reports", tmp_path)
    half = tmp_path / "half/reference/made"
    half.mkdir(parents=True)
    (half / "source.json").write_text("{}")
    assert "retain.csv is missing" in refuse("site", "--reports", tmp_path / "half")
