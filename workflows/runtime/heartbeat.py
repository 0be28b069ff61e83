"""What a step says of itself beside its log: that it runs, how far it came, why it failed.

A step whose output goes to NAME.log keeps NAME.status while it runs: JSON with ``status``,
``host``, ``pid``, the times ``began`` and ``beat`` (seconds since 1970) and ``progress``, the last
line. The file goes when the step ends well; else it stays as the record of a failed run, with its
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
TAIL = 4096


def own_log() -> Path | None:
    """The file NAME.log that this process writes its errors to, as every rule has it; else None.

    Of the processes of one fit the first speaks for all.
    """
    if "RANK" in os.environ:
        return None
    with suppress(OSError):
        log = Path(os.readlink("/proc/self/fd/2"))
        return log if log.suffix == ".log" and log.is_file() else None
    return None


@contextmanager
def watched(log: Path | None) -> Iterator[None]:
    """Beat beside a log for the length of the block; without one nothing is written."""
    if log is None:
        yield
        return
    file = log.with_suffix(".status")
    told = {"host": platform.node(), "pid": os.getpid(), "began": time.time()}
    over = Event()
    beats = Thread(target=_beat, args=(file, log, told, over), daemon=True)
    _tell(file, log, told)
    beats.start()
    failed: BaseException | None = None
    try:
        yield
    except BaseException as error:
        failed = None if isinstance(error, SystemExit) and not error.code else error
        raise
    finally:
        over.set()
        beats.join()
        if failed is not None:
            _tell(file, log, told, status="failed", reason=_reason(failed, log))
        else:
            with suppress(OSError):
                file.unlink()


def read_status(log: Path) -> dict[str, Any] | None:
    """What a step says of itself; None where it says nothing."""
    try:
        told: dict[str, Any] = json.loads(log.with_suffix(".status").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return told


def last_lines(log: Path, count: int) -> list[str]:
    """The end of a log, without empty lines."""
    try:
        with log.open("rb") as stream:
            stream.seek(max(0, log.stat().st_size - TAIL))
            text = stream.read().decode("utf-8", "replace")
    except OSError:
        return []
    return [line for line in text.splitlines() if line.strip()][-count:]


def _beat(file: Path, log: Path, told: dict[str, Any], over: Event) -> None:
    while not over.wait(BEAT):
        _tell(file, log, told)


def _tell(file: Path, log: Path, told: dict[str, Any], **ended: str) -> None:
    """Write the status whole; a disk that takes none of it stops no run."""
    now = {"status": "running", "beat": time.time(), "progress": "".join(last_lines(log, 1))}
    with suppress(OSError, ValueError):
        write_text(file, json.dumps(told | now | ended) + "\n")


def _reason(error: BaseException, log: Path) -> str:
    """An error in one line; an exit has said it itself."""
    if isinstance(error, SystemExit):
        return "".join(last_lines(log, 1)) or f"exit status {error.code}"
    told = sentence(error)
    if isinstance(error, (ValueError, OSError, KeyboardInterrupt)) and told:
        return told
    return f"{type(error).__name__}: {told}"
