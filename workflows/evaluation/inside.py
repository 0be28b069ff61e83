"""What runs inside the two sandboxes of ``sandbox.py``; standard library only.

``judge`` holds the tests, ``program`` the text that a model wrote. They share two pipes and nothing
else: the judge calls the program's function with JSON and gets JSON back, so that what comes back
has plain types, whatever the program made of its own.
"""

from __future__ import annotations

import builtins
import json
import os
import random
import resource
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, BinaryIO

SEQUENCES: dict[str, Any] = {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset}
Decoder = Callable[[Any], Any]


class CallFailed(Exception):
    """The program's function raised, gave what cannot be told, or is no more."""


def encode(value: Any) -> Any:
    """A value as JSON that keeps its type; a subclass counts as the plain type below it.

    Raises:
        TypeError: It is of another type than numbers, texts, containers, iterators and None.
    """
    for plain in (bool, int, float, str):
        if isinstance(value, plain):
            return plain(value)
    if value is None:
        return None
    if isinstance(value, complex):
        return ["complex", value.real, value.imag]
    if isinstance(value, bytes):
        return ["bytes", value.hex()]
    if isinstance(value, dict):
        return ["dict", [[encode(key), encode(held)] for key, held in value.items()]]
    for name, container in SEQUENCES.items():
        if isinstance(value, container):
            return [name, [encode(item) for item in value]]
    if isinstance(value, (Iterator, range)):
        return ["iterator", [encode(item) for item in value]]
    raise TypeError(f"a value of type {type(value).__name__} cannot be told")


def decode(told: Any) -> Any:
    """What :func:`encode` told.

    Raises:
        ValueError, TypeError, LookupError: Nothing that it tells.
    """
    if not isinstance(told, list):
        if isinstance(told, dict):
            raise ValueError("not a value")
        return told
    name, *rest = told
    made: dict[str, Decoder] = {
        "complex": lambda parts: complex(*parts),
        "bytes": lambda parts: bytes.fromhex(*parts),
        "dict": lambda parts: {decode(key): decode(held) for key, held in parts[0]},
        "iterator": lambda parts: iter([decode(item) for item in parts[0]]),
    }
    if name in SEQUENCES:
        return SEQUENCES[name](decode(item) for item in rest[0])
    return made[name](rest)


def limit(limits: dict[str, int]) -> None:
    """Set hard limits, by the names of ``resource`` without their prefix; lower ones stay."""
    for name, most in limits.items():
        kind = getattr(resource, f"RLIMIT_{name}")
        held = resource.getrlimit(kind)[1]
        least = most if held == resource.RLIM_INFINITY else min(most, held)
        resource.setrlimit(kind, (least, least))


def silence(*streams: int) -> list[int]:
    """Point standard streams at nothing; numbers of copies of those that are asked for."""
    copies = [os.dup(stream) for stream in streams]
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):
        os.dup2(nothing, stream)
    os.close(nothing)
    return copies


def run_program() -> None:
    """Define what the first line holds, then answer calls of its function until they end."""
    calls, replies = silence(0, 1)
    lines = os.fdopen(calls, "rb")

    def reply(told: dict[str, Any]) -> None:
        left = json.dumps(told).encode() + b"\n"
        while left:
            left = left[os.write(replies, left) :]

    try:
        first = json.loads(lines.readline())
        module = ModuleType("program")
        sys.modules["program"] = module
        exec(compile(first["program"], "program", "exec"), module.__dict__)
        function = module.__dict__[first["entry_point"]]
    except BaseException as error:
        return reply({"raised": describe(error)})
    reply({"value": None})
    for line in lines:
        try:
            reply({"value": encode(function(*decode(json.loads(line))))})
        except BaseException as error:
            reply({"raised": describe(error)})
    return None


def describe(error: BaseException) -> str:
    """An error in a few words."""
    return f"{type(error).__name__}: {error}"[:200]


class Candidate:
    """The program's function as the tests call it.

    Args:
        replies: What the program writes: anything.
        calls: What it reads.
        longest: Bytes of a reply that are read.
    """

    def __init__(self, replies: BinaryIO, calls: BinaryIO, longest: int) -> None:
        self.replies, self.calls, self.longest = replies, calls, longest

    def __call__(self, *arguments: Any) -> Any:
        """The function's value.

        Raises:
            CallFailed: It has none.
        """
        return self.ask(encode(arguments))

    def ask(self, told: Any) -> Any:
        """Send one line, read one."""
        try:
            self.calls.write(json.dumps(told).encode() + b"\n")
            self.calls.flush()
        except OSError:
            raise CallFailed("the program ended before its answer") from None
        line = self.replies.readline(self.longest)
        if not line.endswith(b"\n"):
            ended = len(line) < self.longest
            raise CallFailed("the program ended before its answer" if ended else "a reply too long")
        try:
            reply = json.loads(line)
            if "raised" in reply:
                raise CallFailed(str(reply["raised"]))
            return decode(reply["value"])
        except (ValueError, TypeError, LookupError, RecursionError) as error:
            raise CallFailed("a reply that is no value") from error


def run_judge(replies: int, calls: int, longest: int) -> None:
    """Run the tests on standard input against the program; say the marker when they are through."""
    told = json.load(sys.stdin)
    (verdict,) = silence(1)
    random.seed(0)
    candidate = Candidate(os.fdopen(replies, "rb"), os.fdopen(calls, "wb"), longest)
    names: dict[str, Any] = {"__name__": "tests", "__builtins__": builtins}
    try:
        candidate.ask({key: told[key] for key in ("program", "entry_point")})
        exec(compile(told["helpers"], "helpers", "exec"), names)
        names[told["entry_point"]] = candidate
        exec(compile(told["tests"], "tests", "exec"), names)
        names["check"](candidate)
        said = told["marker"]
    except BaseException as error:
        said = describe(error)
    os.write(verdict, said.encode(errors="replace"))


if __name__ == "__main__":
    options = json.loads(sys.argv[2])
    sys.set_int_max_str_digits(0)
    limit(options["limits"])
    if sys.argv[1] == "judge":
        run_judge(options["replies"], options["calls"], options["longest"])
    else:
        run_program()
