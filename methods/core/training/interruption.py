"""Signals that end a training run behind the update at hand, not within it."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType

SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Interrupted(KeyboardInterrupt):
    """A run was asked to stop and can be continued.

    Args:
        message: What a user should know.
        number: Of the signal.
    """

    def __init__(self, message: str, number: int) -> None:
        super().__init__(message)
        # What a shell says of a process that a signal ended.
        self.status = 128 + number


class Notice:
    """Within it SIGTERM and SIGINT are noted, not followed; in a thread they stay what they are.

    ``number`` is that of the first signal, 0 before. Further ones change nothing: a terminal and
    torchrun both send theirs.
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
