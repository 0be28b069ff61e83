"""Launches: compiled for a target, then run program by program."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Any

import numpy as np
from torch import Tensor

from methods.kernels import choose
from methods.kernels.hero import router
from methods.kernels.launch import Launch
from tests.compiled import compile_launch
from tests.emulator.code import parse
from tests.emulator.memory import Memory
from tests.emulator.moves import MOVES
from tests.emulator.numbers import NUMBERS
from tests.emulator.program import Program, bits_of
from tests.programs import Watch

RUN = MOVES | NUMBERS


def emulate(target: int) -> None:
    """Run every launch of this process as compiled for ``target``, from now on.

    Args:
        target: Compute capability times ten.
    """
    rng = np.random.default_rng(0)

    def run(self: Launch) -> None:
        kernel, constants = compile_launch(self, target)
        code = parse(kernel.asm["ptx"], kernel.metadata.shared)
        arguments = list(_bits(self, constants))
        grid = (*self.grid, 1, 1)[:3]
        watch = Watch(self.tensors(), rng.permutation(prod(grid)))
        memory = Memory(self.tensors(), watch)
        for turn in range(prod(grid)):
            # The grid's first axis runs fastest.
            place = np.unravel_index(watch.place(turn), grid[::-1])[::-1]
            run_program(Program(code, arguments, place, grid, memory))
        watch.check()

    Launch.run = run  # type: ignore[method-assign]
    choose._interpreted = lambda tensor: True
    router.can_depend = lambda tensor: target >= 90


def run_program(program: Program) -> None:
    """Run a program to its end."""
    with np.errstate(all="ignore"):
        while program.next < len(program.code.instructions):
            words, operands, guard = program.code.instructions[program.next]
            program.next += 1
            mask = None if guard is None else program.flags(guard)
            RUN[words[0]](program, words, operands, mask)


def _bits(launch: Launch, constants: dict[tuple[int, ...], Any]) -> Iterator[int]:
    """The parameters of the compiled kernel: all arguments that are no constants, in order."""

    def parts(value: Any, path: tuple[int, ...]) -> Iterator[int]:
        if path in constants:
            return
        if isinstance(value, tuple):
            for number, part in enumerate(value):
                yield from parts(part, (*path, number))
        else:
            yield value.data_ptr() if isinstance(value, Tensor) else bits_of(value)

    for number, parameter in enumerate(launch.kernel.params):
        yield from parts(launch.arguments[parameter.name], (number,))
