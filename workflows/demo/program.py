"""The tiny language of the program task and its interpreter.

A program changes one integer, the register. It is a list of words:

    program     = instruction+
    instruction = ("add" | "sub" | "mul") number | "repeat" number "do" instruction+ "end"

The interpreter reads the words itself and never passes text to Python. Every instruction that runs
costs one step. A program that needs more than `MAX_STEPS` is an error, so hostile or broken text
ends quickly.
"""

from __future__ import annotations

MAX_STEPS = 200
MAX_DEPTH = 4
PROBES = (0, 1, 2, 5, 11)


class ProgramError(ValueError):
    """The text is not a program, or it runs too long."""


class _Machine:
    """Runs one program once; `steps` counts the instructions that ran."""

    def __init__(self, words: list[str], register: int) -> None:
        self.words = words
        self.register = register
        self.steps = 0

    def number_at(self, position: int) -> int:
        """Read the number at a position of the program."""
        word = self.words[position] if position < len(self.words) else ""
        if not (word.isascii() and word.isdigit() and len(word) <= 3):
            raise ProgramError(f"expected a number at word {position}, found {word!r}")
        return int(word)

    def step(self, position: int, depth: int) -> int:
        """Run the instruction at `position`; return the position after it."""
        self.steps += 1
        if self.steps > MAX_STEPS:
            raise ProgramError(f"more than {MAX_STEPS} steps")
        operation, number = self.words[position], self.number_at(position + 1)
        if operation == "repeat":
            return self.repeat(position + 2, number, depth)
        if operation == "add":
            self.register += number
        elif operation == "sub":
            self.register -= number
        elif operation == "mul":
            self.register *= number
        else:
            raise ProgramError(f"unknown instruction {operation!r}")
        return position + 2

    def repeat(self, position: int, times: int, depth: int) -> int:
        """Run the body at `position` the given number of times, at least once."""
        if depth >= MAX_DEPTH:
            raise ProgramError(f"loops nested deeper than {MAX_DEPTH}")
        if times < 1 or position >= len(self.words) or self.words[position] != "do":
            raise ProgramError("a loop is `repeat NUMBER do ... end` with a positive number")
        after = position
        for _ in range(times):
            after = self.body(position + 1, depth + 1)
        return after

    def body(self, position: int, depth: int) -> int:
        """Run instructions up to the matching `end`; return the position after it."""
        start = position
        while position < len(self.words) and self.words[position] != "end":
            position = self.step(position, depth)
        if position >= len(self.words) or position == start:
            raise ProgramError("a loop needs a body and an `end`")
        return position + 1


def run(source: str, register: int) -> int:
    """Run a program on one input.

    Args:
        source: The program, words separated by white space.
        register: The register's value at the start.

    Returns:
        The register's value at the end.

    Raises:
        ProgramError: If the text is no program or needs more than `MAX_STEPS` steps.
    """
    machine = _Machine(source.split(), register)
    if not machine.words:
        raise ProgramError("an empty program")
    position = 0
    while position < len(machine.words):
        position = machine.step(position, depth=0)
    return machine.register


def passes(source: str, reference: str) -> bool:
    """Tell whether `source` computes what `reference` computes on every probe input."""
    try:
        return all(run(source, probe) == run(reference, probe) for probe in PROBES)
    except ProgramError:
        return False
