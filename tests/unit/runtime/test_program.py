"""A step as a program."""

from __future__ import annotations

import gc

import pytest

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
        (KeyboardInterrupt(), 130, "interrupted; nothing half-written is left"),
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
