"""The status file of a step: that it runs, its progress, and why it failed.

A step with the log NAME.log writes NAME.status every 30 seconds: JSON with ``status``, ``host``,
``pid``, the times ``began`` and ``beat`` (seconds since 1970) and ``progress``, the last line of
the log. If the step succeeds, the file is deleted. If it fails, the file stays, with the
``reason``.
"""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event, Thread
from typing import Any

from workflows.runtime.errors import sentence
from workflows.runtime.files import write_text

# Seconds between two beats.
BEAT = 30.0
# Bytes at the end of a log; the report of torchrun takes a few thousand.
TAIL = 32_768


def own_log() -> Path | None:
    """The log of this process: the file NAME.log to which a rule sends its errors; else None.

    If a fit has several processes, only the process that started them has a log.
    """
    if "RANK" in os.environ:
        return None
    with suppress(OSError):
        log = Path(os.readlink("/proc/self/fd/2"))
        return log if log.suffix == ".log" and log.is_file() else None
    return None


@contextmanager
def status_file(log: Path | None) -> Iterator[None]:
    """Write a status file beside a log for the length of the block; without a log do nothing."""
    if log is None:
        yield
        return
    file = log.with_suffix(".status")
    facts = {"host": platform.node(), "pid": os.getpid(), "began": time.time()}
    end = Event()
    beats = Thread(target=_beat, args=(file, log, facts, end), daemon=True)
    _write(file, log, facts)
    beats.start()
    failure: BaseException | None = None
    try:
        yield
    except BaseException as error:
        failure = None if isinstance(error, SystemExit) and not error.code else error
        raise
    finally:
        end.set()
        beats.join()
        if failure is not None:
            _write(file, log, facts, status="failed", reason=_reason(failure, log))
        else:
            with suppress(OSError):
                file.unlink()


def read_status(log: Path) -> dict[str, Any] | None:
    """The status of the step with this log; None without a readable status file."""
    try:
        status: dict[str, Any] = json.loads(log.with_suffix(".status").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return status


def last_lines(log: Path, count: int) -> list[str]:
    """The last lines of a log that are not empty; at most those in its last ``TAIL`` bytes."""
    try:
        with log.open("rb") as stream:
            stream.seek(max(0, log.stat().st_size - TAIL))
            text = stream.read().decode("utf-8", "replace")
    except OSError:
        return []
    return [line for line in text.splitlines() if line.strip()][-count:]


def _beat(file: Path, log: Path, facts: dict[str, Any], end: Event) -> None:
    while not end.wait(BEAT):
        _write(file, log, facts)


def _write(file: Path, log: Path, facts: dict[str, Any], **outcome: str) -> None:
    """Write the status file; an error in that (a full disk) does not stop the step."""
    now = {"status": "running", "beat": time.time(), "progress": "".join(last_lines(log, 1))}
    with suppress(OSError, ValueError):
        write_text(file, json.dumps(facts | now | outcome) + "\n")


def _reason(error: BaseException, log: Path) -> str:
    """An error in one line; if the step exits by itself, its log says why.

    torchrun puts a report of its own below what a process of the fit said last.
    """
    if isinstance(error, SystemExit):
        lines = last_lines(log, TAIL)
        said = [line for line in lines if line.startswith(("error: ", "interrupted"))] or lines
        return said[-1].removeprefix("error: ") if said else f"exit status {error.code}"
    message = sentence(error)
    if isinstance(error, (ValueError, OSError, KeyboardInterrupt)) and message:
        return message
    return f"{type(error).__name__}: {message}"
