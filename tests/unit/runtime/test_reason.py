"""Why a step failed that ended by itself: what its log says."""

from __future__ import annotations

from pathlib import Path

import pytest

from workflows.runtime.heartbeat import read_status, status_file

# As torchrun ends the log of a fit of several processes, longer with each of them.
REPORT = "Traceback (most recent call last):\n" + 200 * "rank 1: exitcode 2\n" + 60 * "=" + "\n"


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ("device cpu\nerror: no such folder\nerror: no such file\n" + REPORT, "no such file"),
        ("interrupted; the snapshot after update 3 continues\n" + REPORT, "interrupted; the snaps"),
        ("half way\n", "half way"),
        ("", "exit status 2"),
    ],
)
def test_the_last_sentence_of_the_step_is_the_reason(
    said: str, reason: str, tmp_path: Path
) -> None:
    log = tmp_path / "fit.log"
    log.write_text(said)
    with pytest.raises(SystemExit), status_file(log):
        raise SystemExit(2)
    status = read_status(log)
    assert status is not None and status["reason"].startswith(reason)
