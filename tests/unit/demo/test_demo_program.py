"""The tiny language's interpreter on hand-computed programs."""

from __future__ import annotations

import pytest

from workflows.demo.program import MAX_STEPS, ProgramError, passes, run


@pytest.mark.parametrize(
    ("source", "start", "end"),
    [
        ("add 3", 4, 7),
        ("sub 9 mul 2", 4, -10),
        ("repeat 3 do add 2 end", 1, 7),
        ("repeat 2 do mul 2 add 1 end sub 1", 3, 14),
        ("repeat 2 do repeat 3 do add 1 end mul 2 end", 0, 18),
    ],
)
def test_run_by_hand(source: str, start: int, end: int) -> None:
    assert run(source, start) == end


@pytest.mark.parametrize(
    "source",
    [
        "",
        "add",
        "add x",
        "add -3",
        "add 1000",
        "end",
        "print 3",
        "repeat 0 do add 1 end",
        "repeat 3 add 1 end",
        "repeat 3 do end",
        "repeat 3 do add 1",
        "add ٣",
        "__import__ 1",
        "repeat 9 do " * 9 + "add 1 " + "end " * 9,
    ],
)
def test_broken_programs_are_errors(source: str) -> None:
    with pytest.raises(ProgramError):
        run(source, 0)


def test_steps_are_bounded() -> None:
    with pytest.raises(ProgramError, match=f"more than {MAX_STEPS} steps"):
        run("repeat 999 do add 1 end", 0)
    with pytest.raises(ProgramError, match="more than"):
        run("repeat 999 do repeat 999 do mul 999 end end", 1)


def test_passes_compares_what_programs_compute_not_how_they_are_written() -> None:
    assert passes("add 4", "add 1 add 3")
    assert passes("repeat 3 do add 2 end", "add 6")
    assert not passes("mul 2", "add 2")  # equal on the probe 2 only
    assert not passes("add", "add 1")
