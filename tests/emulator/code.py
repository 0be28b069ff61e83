"""PTX as instructions."""

from __future__ import annotations

import re
from functools import cache
from typing import NamedTuple


class Instruction(NamedTuple):
    """``words``: the name and its suffixes, ``ld.global.b32`` in parts.

    It runs in threads where the predicate ``guard`` is set, or is not if it begins with ``!``.
    """

    words: list[str]
    operands: list[str]
    guard: str | None


class Code(NamedTuple):
    """A compiled kernel: instructions, label -> the next one, threads, bytes of shared memory."""

    instructions: list[Instruction]
    labels: dict[str, int]
    threads: int
    shared: int


@cache
def parse(ptx: str, shared: int) -> Code:
    """The only kernel of a module of Triton."""
    threads = int(re.findall(r"\.reqntid (\d+)", ptx)[0])
    start = ptx.index("{", ptx.index(".entry"))
    text = re.sub(r"//[^\n]*", "", ptx[start + 1 : ptx.rindex("}", 0, _end(ptx, start))])
    # Labels and directives have a line of their own; braces around assembly do as well.
    text = re.sub(r"^\s*(\$\w+):", r"label \1;", text, flags=re.M)
    text = re.sub(r"^\s*(\.\w.*|[{}])$", "", text, flags=re.M)
    instructions, labels = list[Instruction](), dict[str, int]()
    for statement in filter(None, map(str.strip, text.split(";"))):
        if statement.startswith("label"):
            labels[statement.split()[1]] = len(instructions)
            continue
        guard, name, rest = re.findall(r"^(?:@(!?%\w+)\s+)?(\S+)\s*(.*)$", statement, re.S)[0]
        instructions.append(Instruction(name.split("."), _operands(rest), guard or None))
    return Code(instructions, labels, threads, shared)


def _end(ptx: str, start: int) -> int:
    """Where the braces that open at ``start`` close."""
    depth = 0
    for place in range(start, len(ptx)):
        depth += {"{": 1, "}": -1}.get(ptx[place], 0)
        if depth == 0:
            return place + 1
    raise ValueError("a kernel does not end")


def _operands(text: str) -> list[str]:
    """Operands by the commas between them; a list in braces is one."""
    return [part.strip() for part in re.findall(r"\{[^}]*\}|\[[^]]*\]|[^,\s][^,]*", text)]
