"""What runs inside the two sandboxes of ``sandbox.py``; standard library only.

The sandbox ``judge`` has the tests, the sandbox ``program`` has the text that a model wrote. They
share two pipes and nothing else. The judge calls the program's function with JSON and gets JSON
back, so all values have plain types, whatever types the program defines.
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
    """The program's function raised, returned a value that JSON cannot carry, or has ended."""


def encode(value: Any) -> Any:
    """A value as JSON, with its type; a value of a subclass becomes one of the plain type.

    Raises:
        TypeError: It is no number, text, container, iterator or None.
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
        return ["dict", [[encode(key), encode(item)] for key, item in value.items()]]
    for name, container in SEQUENCES.items():
        if isinstance(value, container):
            return [name, [encode(item) for item in value]]
    if isinstance(value, (Iterator, range)):
        return ["iterator", [encode(item) for item in value]]
    raise TypeError(f"a value of type {type(value).__name__} cannot be sent")


def decode(data: Any) -> Any:
    """The value that :func:`encode` turned into JSON.

    Raises:
        ValueError, TypeError, LookupError: The JSON is of another form.
    """
    if not isinstance(data, list):
        if isinstance(data, dict):
            raise ValueError("not a value")
        return data
    name, *rest = data
    decoders: dict[str, Decoder] = {
        "complex": lambda parts: complex(*parts),
        "bytes": lambda parts: bytes.fromhex(*parts),
        "dict": lambda parts: {decode(key): decode(item) for key, item in parts[0]},
        "iterator": lambda parts: iter([decode(item) for item in parts[0]]),
    }
    if name in SEQUENCES:
        return SEQUENCES[name](decode(item) for item in rest[0])
    return decoders[name](rest)


def limit(limits: dict[str, int]) -> None:
    """Set hard limits, named as in ``resource`` without the prefix; a lower limit stays."""
    for name, value in limits.items():
        kind = getattr(resource, f"RLIMIT_{name}")
        old = resource.getrlimit(kind)[1]
        new = value if old == resource.RLIM_INFINITY else min(value, old)
        resource.setrlimit(kind, (new, new))


def silence(*streams: int) -> list[int]:
    """Redirect all standard streams to nothing; returns copies of those that are listed."""
    copies = [os.dup(stream) for stream in streams]
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):
        os.dup2(nothing, stream)
    os.close(nothing)
    return copies


def run_program() -> None:
    """Run the program of the first line, then answer calls of its function, one per line."""
    calls, replies = silence(0, 1)
    lines = os.fdopen(calls, "rb")

    def reply(message: dict[str, Any]) -> None:
        rest = json.dumps(message).encode() + b"\n"
        while rest:
            rest = rest[os.write(replies, rest) :]

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
        replies: Pipe from the program, which may write anything.
        calls: Pipe to the program.
        longest: Largest number of bytes that are read of a reply.
    """

    def __init__(self, replies: BinaryIO, calls: BinaryIO, longest: int) -> None:
        self.replies, self.calls, self.longest = replies, calls, longest

    def __call__(self, *arguments: Any) -> Any:
        """Call the function.

        Raises:
            CallFailed: It returned no value.
        """
        return self.ask(encode(arguments))

    def ask(self, message: Any) -> Any:
        """Send one line and read one line."""
        try:
            self.calls.write(json.dumps(message).encode() + b"\n")
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
    """Run the tests from standard input on the program; write the marker if all pass."""
    task = json.load(sys.stdin)
    (verdict,) = silence(1)
    random.seed(0)
    candidate = Candidate(os.fdopen(replies, "rb"), os.fdopen(calls, "wb"), longest)
    names: dict[str, Any] = {"__name__": "tests", "__builtins__": builtins}
    try:
        candidate.ask({key: task[key] for key in ("program", "entry_point")})
        exec(compile(task["helpers"], "helpers", "exec"), names)
        names[task["entry_point"]] = candidate
        exec(compile(task["tests"], "tests", "exec"), names)
        names["check"](candidate)
        result = task["marker"]
    except BaseException as error:
        result = describe(error)
    os.write(verdict, result.encode(errors="replace"))


if __name__ == "__main__":
    options = json.loads(sys.argv[2])
    sys.set_int_max_str_digits(0)
    limit(options["limits"])
    if sys.argv[1] == "judge":
        run_judge(options["replies"], options["calls"], options["longest"])
    else:
        run_program()
