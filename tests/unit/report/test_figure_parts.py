"""A figure of many lines is split into parts."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from methods import discover
from workflows import ROOT
from workflows.report.figures.lines import parts, with_part


def test_of_too_many_sheets_the_first_of_each_target_is_left() -> None:
    lines = with_part(many(rows=20, targets=(20.0, 30.0, 40.0)), {})
    assert len(parts(lines, 8)) == 3
    assert [len(part) for part in parts(lines, 8).values()] == [8, 8, 8]
    assert list(parts(lines, 10)) == ["", "_b20_2", "_b30", "_b30_2", "_b40", "_b40_2"]


def many(rows: int, targets: Sequence[float]) -> pd.DataFrame:
    """Rows of the same names at every target."""
    lines = [
        {"backbone": "toy", "target": target, "match": None, "row": f"row{n}", "kind": "dynamic"}
        for target in targets
        for n in range(rows)
    ]
    return pd.DataFrame(lines)


def test_only_what_is_too_much_is_split() -> None:
    retain, names = pd.read_csv(ROOT / "tests/golden/many_rows.csv"), sorted(discover(), key=len)
    # The method of a variant is the longest known row that its name begins with.
    methods = {
        row: ([row] + [name for name in names if row.startswith(name)])[-1] for row in retain["row"]
    }
    lines = with_part(retain, methods)
    assert list(parts(lines, 100)) == [""]
    by_target = parts(lines, 60)
    assert list(by_target) == ["", "_b40", "_free"]
    assert by_target[""]["target"].dropna().unique().tolist() == [25]
    assert all({"dense", "lora"} <= set(part["row"]) for part in by_target.values())
    whole = parts(lines, 40)
    assert list(whole) == ["", "_b25_variants", "_b40", "_b40_variants", "_free_variants"]
    assert list(parts(lines, 20))[1:3] == ["_b25_variants", "_b25_variants_2"]
    assert set(whole["_b40_variants"]["row"]) == {
        row for row in retain[retain["target"] == 40]["row"] if row not in discover()
    }
