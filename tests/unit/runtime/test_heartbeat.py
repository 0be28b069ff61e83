"""What a step leaves beside its log: while it runs, when it fails, when it ends well."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from workflows.runtime import heartbeat
from workflows.runtime.heartbeat import last_lines, read_status, status_file

BODY = """
import sys, time
from pathlib import Path
from workflows.runtime import heartbeat
from workflows.runtime.program import run
heartbeat.BEAT = 0.05
def wait(file):
    ends = time.monotonic() + 60
    while not Path(file).exists() and time.monotonic() < ends:
        time.sleep(0.01)
def main():
    print("half way", file=sys.stderr, flush=True)
    {what}
run(main)
"""


def step(folder: Path, what: str, name: str = "fit.log", **env: str) -> subprocess.Popen[bytes]:
    """A process that runs a step as a rule does: what it prints goes to its log."""
    with (folder / name).open("w") as log:
        return subprocess.Popen(
            [sys.executable, "-c", BODY.format(what=what)],
            stdout=log, stderr=subprocess.STDOUT, env=os.environ | env,
        )  # fmt: skip


def until(ready: Callable[[], Any]) -> Any:
    ends = time.monotonic() + 60
    while not (found := ready()):
        assert time.monotonic() < ends
        time.sleep(0.02)
    return found


def test_a_step_beats_while_it_runs_and_leaves_nothing(tmp_path: Path) -> None:
    folder, end = tmp_path / "logs", tmp_path / "end"
    folder.mkdir()
    log = folder / "fit.log"
    running = step(folder, f"wait({str(end)!r})")
    first = until(lambda: read_status(log))
    assert (first["status"], first["pid"]) == ("running", running.pid)
    until(lambda: (read_status(log) or first)["beat"] > first["beat"])
    until(lambda: (read_status(log) or first)["progress"] == "half way")
    assert log.with_suffix(".status").exists()
    end.touch()
    assert running.wait() == 0
    assert [file.name for file in folder.iterdir()] == ["fit.log"]


@pytest.mark.parametrize(
    ("what", "status", "reason"),
    [
        ("raise ValueError('budget 2 is\\n too high')", 2, "budget 2 is too high"),
        ("open('/gone/x')", 2, "No such file or directory: /gone/x"),
        ("raise RuntimeError('out of memory')", 1, "RuntimeError: out of memory"),
        ("raise MemoryError", 1, "MemoryError: "),
        ("raise SystemExit(3)", 3, "half way"),
        ("raise SystemExit(0)", 0, None),
    ],
)
def test_a_failed_step_leaves_its_reason(
    what: str, status: int, reason: str | None, tmp_path: Path
) -> None:
    assert step(tmp_path, what).wait() == status
    told = read_status(tmp_path / "fit.log")
    assert (told and (told["status"], told["reason"])) == (reason and ("failed", reason))
    assert step(tmp_path, "pass").wait() == 0
    assert read_status(tmp_path / "fit.log") is None


def test_a_killed_step_leaves_its_last_beat(tmp_path: Path) -> None:
    running = step(tmp_path, "time.sleep(60)")
    until(lambda: read_status(tmp_path / "fit.log"))
    running.send_signal(signal.SIGKILL)
    running.wait()
    told = read_status(tmp_path / "fit.log")
    assert told is not None and told["status"] == "running"


def test_only_a_log_is_watched_and_one_process_of_a_fit(tmp_path: Path) -> None:
    assert step(tmp_path, "raise ValueError('x')", name="printed.txt").wait() == 2
    assert step(tmp_path, "raise ValueError('x')", RANK="0").wait() == 2
    assert {file.name for file in tmp_path.iterdir()} == {"printed.txt", "fit.log"}


def test_a_disk_that_takes_no_status_stops_no_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(file: Path, text: str) -> None:
        raise OSError(28, "No space left on device", str(file))

    monkeypatch.setattr(heartbeat, "write_text", full)
    with status_file(tmp_path / "fit.log"):
        pass
    with pytest.raises(ValueError, match="own"), status_file(tmp_path / "fit.log"):
        raise ValueError("own")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("text", ["", "{", "\xff"])
def test_a_broken_status_says_nothing(text: str, tmp_path: Path) -> None:
    (tmp_path / "fit.status").write_text(text, encoding="latin-1")
    assert read_status(tmp_path / "fit.log") is None


def test_the_end_of_a_log(tmp_path: Path) -> None:
    log = tmp_path / "fit.log"
    assert last_lines(log, 3) == []
    log.write_text("\n".join(f"line {n}\n" for n in range(2000)))
    assert last_lines(log, 2) == ["line 1998", "line 1999"]
