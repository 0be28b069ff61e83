"""Signals that end a training run after the current update, not within it."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType

SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Interrupted(KeyboardInterrupt):
    """A run was stopped by a signal and can be continued.

    Args:
        message: What a user should know.
        number: Of the signal.
    """

    def __init__(self, message: str, number: int) -> None:
        super().__init__(message)
        # The exit status by which a shell says that a signal ended a process.
        self.status = 128 + number


class Notice:
    """A context in which SIGTERM and SIGINT do not end the process but are noted.

    Only the main thread can handle signals; in any other thread the context does nothing.

    ``number`` is that of the first signal, 0 before. Later ones change nothing: a terminal and
    torchrun may both send one.
    """

    def __init__(self) -> None:
        self.number = 0
        self._before: dict[signal.Signals, signal._HANDLER] = {}

    def __enter__(self) -> None:
        if threading.current_thread() is threading.main_thread():
            self._before = {which: signal.signal(which, self._note) for which in SIGNALS}

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for which, handler in self._before.items():
            signal.signal(which, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.number = self.number or number
