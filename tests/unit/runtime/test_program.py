"""A step as a program."""

from __future__ import annotations

import gc

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
