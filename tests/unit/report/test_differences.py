"""Differences by the measures beside Retain."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.report.test_report_numbers import table


def test_differences_by_measures_beside_retain(site: Path) -> None:
    """Of each row from the row in focus, as the measures of both say; references have none."""
    keys = ("row", "target", "match", "measure")
    values = {tuple(line[key] for key in keys): line["value"] for line in table(site, "measures")}
    measures = {measure for *_, measure in values}
    lines = [line for line in table(site, "differences") if line["measure"] in measures]
    assert {line["against"] for line in lines} == {"hero"}
    # lora, random-skip and shortgpt+lora at two targets, under both protocols.
    assert len(lines) == len(measures) * 2 * 2 * 3
    for line in lines:
        row, *place = (line[key] for key in keys)
        mine = values.get((row, *place), values.get((row, None, *place[1:])))
        # Each of the three is rounded to four digits.
        assert line["difference"] == pytest.approx(mine - values["hero", *place], abs=2e-4)
        assert line["low"] <= line["difference"] <= line["high"]
    for against, shown in (("hero", True), ("dense", False)):
        head = (site / f"report/tables/differences_{against}.md").read_text().splitlines()[0]
        assert all((f"| {name} |" in head) == shown for name in ("Above chance", "KL on answers"))
