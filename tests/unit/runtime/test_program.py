"""A step as a program."""

from __future__ import annotations

import gc
import io
import sys

import pytest
from tqdm import tqdm

from methods.core.training.interruption import Interrupted
from workflows.runtime.program import run


def test_a_step_collects_garbage_though_its_imports_do_not() -> None:
    seen = list[bool]()
    gc.disable()
    try:
        run(lambda: seen.append(gc.isenabled()))
        assert seen == [True]
        assert gc.get_freeze_count() > 0
    finally:
        gc.unfreeze()
        gc.enable()


@pytest.mark.parametrize(
    ("stop", "status", "told"),
    [
        (
            KeyboardInterrupt(),
            130,
            "interrupted; nothing half-written is left under its final name",
        ),
        (Interrupted("interrupted; it continues", 15), 143, "interrupted; it continues"),
    ],
)
def test_an_interrupted_step_says_so(
    stop: KeyboardInterrupt, status: int, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def main() -> None:
        raise stop

    with pytest.raises(SystemExit) as ended:
        run(main)
    assert (ended.value.code, capsys.readouterr().err) == (status, told + "\n")


def bars() -> None:
    """A bar that stays, one within it that goes, and what else is told of errors."""
    for _ in tqdm(range(2), desc="outer", mininterval=0):
        for _ in tqdm(range(3), desc="inner", mininterval=0, leave=False):
            pass
    print("a warning", file=sys.stderr)
    print("the rest", end="", file=sys.stderr)


def test_off_a_terminal_bars_are_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    log = io.StringIO()
    monkeypatch.setattr(sys, "stderr", log)
    run(bars)
    assert sys.stderr is log
    text = log.getvalue()
    assert not {"\r", "\x1b"} & set(text)
    lines = text.split("\n")
    assert lines[-3:] == ["a warning", "the rest", ""]
    shown = [line.partition("|")[0] for line in lines[:-3]]
    assert shown[0].split(":")[0] == "outer"
    assert {"outer: 100%", "inner: 100%", "inner:  33%"} <= set(shown)
    assert all(line == line.rstrip() and line for line in lines[:-1])


def test_on_a_terminal_bars_are_drawn_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    run(bars)
    assert "\r" in screen.getvalue()


def test_a_refusal_stands_behind_the_last_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def main() -> None:
        print("half a line", end="", file=sys.stderr)
        raise ValueError("it is wrong")

    log = io.StringIO()
    monkeypatch.setattr(sys, "stderr", log)
    with pytest.raises(SystemExit):
        run(main)
    assert log.getvalue() == "half a line\nerror: it is wrong\n"
