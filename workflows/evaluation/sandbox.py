"""Programs that a model wrote are run and judged in a sandbox of bubblewrap.

Each program has two sandboxes: one runs the program, the other one, the judge, runs the tests. The
judge calls the program's function over two pipes (``inside.py``). The program passes if the last
thing that the judge writes is a random marker, which is new for each run.

Each sandbox has its own namespaces (user, pid, net, ipc, uts, mount), no capability, an empty
environment, a filter of system calls (``syscalls.py``), hard limits, and read-only files: the
interpreter and its libraries. Programs can import the standard library only.

Why a program cannot fake a pass: tests and marker never enter its sandbox. They are not in its
memory, its arguments, its files, or a process that it can see. If it exits early, patches ``print``
or ``assert``, walks frames or traces its parent, it reaches only itself. Nothing leaves its sandbox
but bytes on one pipe. They are read up to a fixed length, as JSON, into plain types, so an object
that equals everything arrives as a plain value or not at all. So a program passes only if each call
returns a value that the tests accept.

What the sandbox does not prevent:

- A model may know the data set's answers by heart.
- Tests may be so weak that they accept a wrong value.
- The kernel may have a hole.
- No limit counts empty files in ``/tmp``. A program has time to make a million of them, which take
  a gigabyte of the kernel's memory until it ends.

Two limits for tests: they see copies, so they cannot check what a program did to its arguments; and
values of types that ``inside.encode`` does not know fail. No test of HumanEval needs either.
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
    # Otherwise sets of strings have another order in every run.
    "--setenv", "PYTHONHASHSEED", "0", "--setenv", "LC_ALL", "C.UTF-8", "--setenv", "HOME", "/tmp",
]  # fmt: skip
PACKAGES = ("site-packages", "dist-packages")
# Largest number of bytes that are read of a verdict (the marker, or a few words) and of an error.
SHORT = 4096


@dataclass(frozen=True)
class Limits:
    """What one program may use.

    Args:
        wall: Seconds until both sandboxes are killed.
        cpu: Seconds of CPU time of one process.
        memory: Bytes of address space.
        file: Bytes of one file.
        files: Open files.
        folder: Bytes of ``/tmp``.
        reply: Bytes of one return value of the program's function, as JSON.
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
        zero = dict.fromkeys(("CORE", "MEMLOCK", "MSGQUEUE", "NPROC"), 0)
        own = {"CPU": self.cpu, "AS": self.memory, "FSIZE": self.file, "NOFILE": self.files}
        return zero | own


@dataclass(frozen=True)
class Verdict:
    """Whether a program passed; if not, the reason in a few words."""

    passed: bool
    reason: str = ""


def run(
    program: str, entry_point: str, tests: str, helpers: str = "", limits: Limits | None = None
) -> Verdict:
    """Whether a program's function passes its tests.

    Args:
        program: Python source that a model wrote, not trusted.
        entry_point: Name of the function that it defines.
        tests: Source of ``check(candidate)``, which returns if all tests pass.
        helpers: Source that the tests need in addition, such as the problem's text.
        limits: Of each of the two sandboxes; default: ``Limits()``.

    Raises:
        ValueError: No sandbox can be made here; nothing was run.
    """
    reason = reason_not_to_run()
    if reason is not None:
        raise ValueError(f"programs of a model are run in a sandbox only, and {reason}")
    return _run(program, entry_point, tests, helpers, limits or Limits())


@cache
def reason_not_to_run() -> str | None:
    """Why no sandbox can be made here, as a clause; None if one can be made."""
    if sys.platform != "linux" or platform.machine() not in syscalls.ARCHITECTURES:
        machines = " and ".join(syscalls.ARCHITECTURES)
        return f"the sandbox is for Linux on {machines}, not {sys.platform} on {platform.machine()}"
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
    task = {
        "program": program, "entry_point": entry_point, "tests": tests, "helpers": helpers,
        "marker": marker,
    }  # fmt: skip
    deadline = time.monotonic() + limits.wall
    with tempfile.TemporaryFile("w+") as stdin, tempfile.TemporaryFile() as errors:
        json.dump(task, stdin)
        stdin.seek(0)
        with _sandboxes(stdin, errors, limits) as output:
            verdict = _read(output, deadline)
        errors.seek(0)
        trouble = errors.read(SHORT).decode(errors="replace").strip()
    if trouble:
        raise ValueError(f"bubblewrap cannot make a sandbox here: {trouble.splitlines()[-1]}")
    if verdict is None:
        return Verdict(False, f"ran longer than {limits.wall:g} s")
    if verdict == marker.encode():
        return Verdict(True)
    return Verdict(False, verdict.decode(errors="replace") or "the judge ended without a word")


@contextmanager
def _sandboxes(stdin: IO[str], errors: IO[bytes], limits: Limits) -> Iterator[int]:
    """Both sandboxes, for the length of the block; then all their processes are killed.

    Args:
        stdin: Input of the judge.
        errors: For messages of bubblewrap.
        limits: Of each sandbox.

    Yields:
        The pipe with the verdict of the judge.
    """
    (call_out, call_in), (reply_out, reply_in), (output, verdict) = (os.pipe() for _ in range(3))
    options = {"limits": limits.of_process, "longest": limits.reply}
    ends = {"replies": reply_out, "calls": call_in}
    sandboxes: list[subprocess.Popen[bytes]] = []
    try:
        try:
            sandboxes.append(_start("program", options, limits, (call_out, reply_in, errors)))
            streams = (stdin, verdict, errors)
            sandboxes.append(_start("judge", options | ends, limits, streams, ends.values()))
        finally:
            # Only the sandboxes may have these ends: then a reader sees the end of a pipe when the
            # sandbox that writes to it ends.
            for end in (call_out, call_in, reply_out, reply_in, verdict):
                os.close(end)
        yield output
    finally:
        for sandbox in sandboxes:
            sandbox.kill()
            sandbox.wait()
        os.close(output)


def _start(
    role: str,
    options: Mapping[str, Any],
    limits: Limits,
    streams: tuple[Any, Any, Any],
    pipes: Iterable[int] = (),
) -> subprocess.Popen[bytes]:
    """Start a sandbox for one of the two roles of ``inside.py``.

    Args:
        role: ``judge`` or ``program``.
        options: Limits and numbers of pipes, for ``inside.py``.
        limits: Of the sandbox.
        streams: Standard input, output and error.
        pipes: Numbers of more pipes that the sandbox gets.
    """
    # bubblewrap reads the filter of system calls from a pipe.
    calls, end = os.pipe()
    try:
        os.write(end, syscalls.program(platform.machine()))
        os.close(end)
        words = [str(shutil.which("bwrap")), *FIXED, *_mounts(limits.folder)]
        words += ["--seccomp", str(calls), "--", str(INTERPRETER), "-s", "-S", "-P", "-B", SCRIPT]
        words += [role, json.dumps(options)]
        stdin, stdout, stderr = streams
        return subprocess.Popen(
            words, stdin=stdin, stdout=stdout, stderr=stderr, pass_fds=(calls, *pipes), env={}
        )
    finally:
        os.close(calls)


def _mounts(folder: int) -> list[str]:
    """Files of a sandbox: the interpreter, libraries, ``inside.py``, an empty ``/tmp``."""
    prefix = Path(sys.base_prefix).resolve()
    trees = {Path("/usr/lib"), Path("/usr/lib64"), prefix / "lib", prefix / sys.platlibdir}
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    # An interpreter that is built as a shared library finds it here.
    words = ["--setenv", "LD_LIBRARY_PATH", str(prefix / "lib")]
    for tree in sorted(tree for tree in trees if tree.is_dir()):
        words += ["--ro-bind", str(tree), str(tree)]
    for name in ("/lib", "/lib64"):
        # On most systems these are links into /usr.
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
    """Bytes of a pipe up to its end or the length of a verdict; None after the deadline."""
    data = b""
    while len(data) <= SHORT:
        seconds = deadline - time.monotonic()
        if seconds <= 0 or not select.select([output], [], [], seconds)[0]:
            return None
        part = os.read(output, SHORT)
        if not part:
            break
        data += part
    return data
