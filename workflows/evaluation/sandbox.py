"""Running text that a model wrote, and judging it, under bubblewrap.

Two sandboxes run per program, each with namespaces of its own (user, pid, net, ipc, uts, mount), no
capability, an empty environment, a filter of system calls (``syscalls.py``), hard limits, and a
read-only system of the interpreter and its libraries. One holds the program; the other, the judge,
holds the tests. Two pipes join them: the judge calls the program's function over them
(``inside.py``). A program passes if the judge wrote, as its last act, a random marker of this run.

Why a program cannot claim a pass. Tests and marker never enter its sandbox: not its memory, its
arguments, its files, nor a process it can see. To exit early, to patch ``print`` or ``assert``, to
walk frames or to trace a parent reaches nothing but itself. All that leaves it is bytes on one
pipe, read up to a length, as JSON, into plain types: an object that equals everything arrives as a
plain value or not at all. So it passes only by giving, call by call, what the tests accept.

What that does not hold off: a program that knows the data set's answers by heart, tests so weak
that a wrong value suits them, a hole in the kernel. Empty files in ``/tmp`` are not counted: in its
seconds a program can make a million, a gigabyte of the kernel's memory, until it ends. Tests
see copies, so one that looks at what a program did to its arguments would not see it, and values of
other types than ``inside.encode`` tells fail; no test of HumanEval rests on either. Programs have
the standard library and no other package.
"""

from __future__ import annotations

import json
import os
import platform
import secrets
import select
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import IO, Any

from workflows.evaluation import syscalls

INSIDE, SCRIPT = Path(__file__).with_name("inside.py"), "/inside.py"
INTERPRETER = Path(getattr(sys, "_base_executable", None) or sys.executable).resolve()
NAMESPACES = [f"--unshare-{name}" for name in ("user", "pid", "net", "ipc", "uts", "cgroup-try")]
FIXED = [
    *NAMESPACES, "--disable-userns", "--cap-drop", "ALL", "--uid", "65534", "--gid", "65534",
    "--hostname", "sandbox", "--as-pid-1", "--die-with-parent", "--new-session", "--clearenv",
    # Sets of strings have one order in every run.
    "--setenv", "PYTHONHASHSEED", "0", "--setenv", "LC_ALL", "C.UTF-8", "--setenv", "HOME", "/tmp",
]  # fmt: skip
PACKAGES = ("site-packages", "dist-packages")
# Bytes that are read of a verdict, which is a marker or a few words, and of an error.
SHORT = 4096


@dataclass(frozen=True)
class Limits:
    """What one program may use.

    Args:
        wall: Seconds until both sandboxes are killed.
        cpu: Seconds of one process.
        memory: Bytes of address space.
        file: Bytes of one file.
        files: Open files.
        folder: Bytes of ``/tmp``.
        reply: Bytes of one value that the program's function gives, as JSON.
    """

    wall: float = 30.0
    cpu: int = 5
    memory: int = 1 << 30
    file: int = 1 << 20
    files: int = 64
    folder: int = 16 << 20
    reply: int = 1 << 20

    @property
    def of_process(self) -> dict[str, int]:
        """Hard limits by their names in ``resource``."""
        none = dict.fromkeys(("CORE", "MEMLOCK", "MSGQUEUE", "NPROC"), 0)
        own = {"CPU": self.cpu, "AS": self.memory, "FSIZE": self.file, "NOFILE": self.files}
        return none | own


@dataclass(frozen=True)
class Verdict:
    """Whether a program passed, and in a few words why not."""

    passed: bool
    reason: str = ""


def run(
    program: str, entry_point: str, tests: str, helpers: str = "", limits: Limits | None = None
) -> Verdict:
    """Whether a program's function passes its tests.

    Args:
        program: Python source that a model wrote; nothing of it is trusted.
        entry_point: Name of the function that it defines.
        tests: Source of ``check(candidate)``, which returns if all is well.
        helpers: Source of what the tests name beside the function, such as the problem's text.
        limits: Of each of both sandboxes; default: ``Limits()``.

    Raises:
        ValueError: No sandbox can be made here; nothing was run.
    """
    reason = reason_not_to_run()
    if reason is not None:
        raise ValueError(f"programs of a model are run in a sandbox only, and {reason}")
    return _run(program, entry_point, tests, helpers, limits or Limits())


@cache
def reason_not_to_run() -> str | None:
    """One clause that says why no sandbox can be made here; None where one can."""
    if sys.platform != "linux" or platform.machine() not in syscalls.ARCHITECTURES:
        known = " and ".join(syscalls.ARCHITECTURES)
        return f"the sandbox is for Linux on {known}, not {sys.platform} on {platform.machine()}"
    if shutil.which("bwrap") is None:
        return "bubblewrap is not installed (there is no bwrap on the PATH)"
    try:
        verdict = _run("def f(x): return x", "f", "def check(f): assert f(1) == 1", "", Limits())
    except ValueError as error:
        return str(error)
    return None if verdict.passed else f"a sandbox was made that does not work: {verdict.reason}"


def _run(program: str, entry_point: str, tests: str, helpers: str, limits: Limits) -> Verdict:
    """Start both sandboxes, read the verdict, end both.

    Raises:
        ValueError: A sandbox cannot be made.
    """
    marker = secrets.token_hex(32)
    told = {
        "program": program, "entry_point": entry_point, "tests": tests, "helpers": helpers,
        "marker": marker,
    }  # fmt: skip
    deadline = time.monotonic() + limits.wall
    with tempfile.TemporaryFile("w+") as given, tempfile.TemporaryFile() as errors:
        json.dump(told, given)
        given.seek(0)
        with _sandboxes(given, errors, limits) as output:
            said = _read(output, deadline)
        errors.seek(0)
        trouble = errors.read(SHORT).decode(errors="replace").strip()
    if trouble:
        raise ValueError(f"bubblewrap cannot make a sandbox here: {trouble.splitlines()[-1]}")
    if said is None:
        return Verdict(False, f"ran longer than {limits.wall:g} s")
    if said == marker.encode():
        return Verdict(True)
    return Verdict(False, said.decode(errors="replace") or "the judge ended without a word")


@contextmanager
def _sandboxes(given: IO[str], errors: IO[bytes], limits: Limits) -> Iterator[int]:
    """What the judge says, to be read; all that lives in a sandbox is killed when the block ends.

    Args:
        given: What the judge reads.
        errors: Where bubblewrap says what it cannot do.
        limits: Of each sandbox.
    """
    (call_out, call_in), (reply_out, reply_in), (output, verdict) = (os.pipe() for _ in range(3))
    options = {"limits": limits.of_process, "longest": limits.reply}
    ends = {"replies": reply_out, "calls": call_in}
    started: list[subprocess.Popen[bytes]] = []
    try:
        try:
            started.append(_start("program", options, limits, (call_out, reply_in, errors)))
            judged = options | ends
            started.append(_start("judge", judged, limits, (given, verdict, errors), ends.values()))
        finally:
            # What is left of a pipe when one sandbox ends must be in the other one alone.
            for end in (call_out, call_in, reply_out, reply_in, verdict):
                os.close(end)
        yield output
    finally:
        for sandbox in started:
            sandbox.kill()
            sandbox.wait()
        os.close(output)


def _start(
    role: str,
    options: Mapping[str, Any],
    limits: Limits,
    streams: tuple[Any, Any, Any],
    kept: Iterable[int] = (),
) -> subprocess.Popen[bytes]:
    """A sandbox with one of the two roles of ``inside.py``.

    Args:
        role: ``judge`` or ``program``.
        options: What it is told of limits and pipes.
        limits: Of the sandbox.
        streams: Standard input, output and error.
        kept: Numbers of further pipes that it has.
    """
    calls, end = os.pipe()
    try:
        os.write(end, syscalls.program(platform.machine()))
        os.close(end)
        words = [str(shutil.which("bwrap")), *FIXED, *_mounts(limits.folder)]
        words += ["--seccomp", str(calls), "--", str(INTERPRETER), "-s", "-S", "-P", "-B", SCRIPT]
        words += [role, json.dumps(options)]
        given, output, errors = streams
        return subprocess.Popen(
            words, stdin=given, stdout=output, stderr=errors, pass_fds=(calls, *kept), env={}
        )
    finally:
        os.close(calls)


def _mounts(folder: int) -> list[str]:
    """Files of a sandbox: the interpreter, libraries, ``inside.py``, an empty ``/tmp``."""
    prefix = Path(sys.base_prefix).resolve()
    trees = {Path("/usr/lib"), Path("/usr/lib64"), prefix / "lib", prefix / sys.platlibdir}
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    # A shared interpreter finds its library here, wherever its environment had it from.
    words = ["--setenv", "LD_LIBRARY_PATH", str(prefix / "lib")]
    for tree in sorted(tree for tree in trees if tree.is_dir()):
        words += ["--ro-bind", str(tree), str(tree)]
    for name in ("/lib", "/lib64"):
        # Of one piece with /usr on most systems.
        kind = "--symlink" if Path(name).is_symlink() else "--ro-bind-try"
        words += [kind, os.readlink(name) if kind == "--symlink" else name, name]
    hidden = {
        tree / part / name for tree in trees for part in (version, "python3") for name in PACKAGES
    }
    for place in sorted(place for place in hidden if place.is_dir()):
        words += ["--tmpfs", str(place), "--remount-ro", str(place)]
    words += ["--ro-bind", str(INTERPRETER), str(INTERPRETER), "--ro-bind", str(INSIDE), SCRIPT]
    words += ["--proc", "/proc", "--remount-ro", "/proc", "--dev", "/dev", "--remount-ro", "/dev"]
    words += ["--size", str(folder), "--tmpfs", "/tmp", "--chdir", "/tmp", "--remount-ro", "/"]
    return words


def _read(output: int, deadline: float) -> bytes | None:
    """What is written until the end, no more than a verdict has; None if the end is late."""
    said = b""
    while len(said) <= SHORT:
        left = deadline - time.monotonic()
        if left <= 0 or not select.select([output], [], [], left)[0]:
            return None
        part = os.read(output, SHORT)
        if not part:
            break
        said += part
    return said
