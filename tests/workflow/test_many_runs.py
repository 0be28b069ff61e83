"""A report of two thousand runs: what it costs, and how large its page is."""

from __future__ import annotations

import time
from pathlib import Path

from tests import steps
from tests.many_records import BUDGETS, ROWS, SEEDS, write_many

# Seconds of one core: twice what a quiet one should take, for clocks that slow down under load.
SECONDS = 120
BYTES = 20_000_000


def test_two_thousand_runs_make_a_page_in_time_and_of_a_size_to_send(tmp_path: Path) -> None:
    results = write_many(tmp_path / "results")
    assert len(list(results.rglob("record.json"))) == len(ROWS) * len(BUDGETS) * len(SEEDS) + 5
    before = time.process_time()
    steps.call("report", "--results", results, "--out", tmp_path / "report")
    assert time.process_time() - before < SECONDS
    assert (tmp_path / "report/index.html").stat().st_size < BYTES
