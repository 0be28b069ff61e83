"""Programs in the sandbox: right ones pass, hostile ones fail and leave nothing."""

from __future__ import annotations

import dataclasses
import os
import platform
import re
import socket
import subprocess
import sysconfig
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import hostile
from workflows import ROOT
from workflows.evaluation import inside, sandbox, syscalls
from workflows.evaluation.sandbox import Limits

REASON = sandbox.reason_not_to_run()
guarded = pytest.mark.skipif(REASON is not None, reason=f"no sandbox here: {REASON}")
# A number by which this process knows its own among all sandboxes.
OWN = (1 << 20) + os.getpid()
LIMITS = Limits(wall=60, cpu=1, memory=1 << 28, reply=OWN)
DOUBLE = "def f(x):\n    return 2 * x\n"


@pytest.fixture(scope="module")
def outside(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """What hostile programs look for: word -> what it stands for."""
    folder = tmp_path_factory.mktemp("outside")
    (folder / "secret").write_text("secret")
    abstract = f"skipbench-{os.getpid()}"
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket(socket.AF_UNIX) as unix:
        unix.bind(f"\0{abstract}")
        unix.listen(64)
        os.environ["SKIPBENCH_CANARY"] = "canary"
        yield {
            "PORT": str(server.getsockname()[1]), "ABSTRACT": abstract, "OUTSIDE": str(folder),
            "SECRET": str(folder / "secret"), "CHECKOUT": str(ROOT), "NODE": os.uname().nodename,
            "PACKAGES": sysconfig.get_path("purelib"),
            "X86": str(int(platform.machine() == "x86_64")),
            "KEYCTL": str(syscalls.REFUSED["keyctl"][platform.machine() == "aarch64"]),
        }  # fmt: skip
        del os.environ["SKIPBENCH_CANARY"]
        assert sorted(os.listdir(folder)) == ["secret"]


def aimed(name: str, outside: dict[str, str]) -> str:
    """A hostile program that looks for what is there."""
    program = hostile.PROGRAMS[name]
    for word, meant in outside.items():
        program = program.replace(f"@{word}@", meant)
    return program


@pytest.fixture
def asked_anew() -> Iterator[None]:
    """The test asks what keeps the sandbox from running, and so do those after it."""
    sandbox.reason_not_to_run.cache_clear()
    yield
    sandbox.reason_not_to_run.cache_clear()


def own_processes() -> list[str]:
    """Command lines of sandboxes that this process started and that are alive."""
    found = []
    for place in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = place.read_bytes().decode(errors="replace")
        except OSError:
            continue
        if str(OWN) in words and "/inside.py" in words:
            found.append(words)
    return found


def left() -> list[str]:
    """Processes that outlive a verdict by a second."""
    for _ in range(100):
        if not own_processes():
            return []
        time.sleep(0.01)
    return own_processes()


@guarded
@pytest.mark.parametrize("name", hostile.PROGRAMS)
def test_a_hostile_program_fails_and_leaves_nothing(name: str, outside: dict[str, str]) -> None:
    short = name in hostile.TIME
    limits = dataclasses.replace(LIMITS, wall=1.0) if short else LIMITS
    verdict = sandbox.run(aimed(name, outside), "f", hostile.TESTS, limits=limits)
    assert not verdict.passed
    # It was stopped by a guard, not by the end of its time.
    assert short or "ran longer" not in verdict.reason
    assert hostile.REASONS.get(name, "") in verdict.reason
    assert left() == []


@guarded
def test_what_attacks_stand_on_is_there(outside: dict[str, str]) -> None:
    """The same lines outside the sandbox: the attacks fail for the sandbox, not by themselves."""
    for name in ("a server outside", "an abstract socket outside", "a secret", "the environment"):
        names: dict[str, object] = {}
        exec(aimed(name, outside), names)
        function = names["f"]
        assert callable(function)
        assert function(4) == 8


RIGHT = {
    "numbers": ("return 2 * x", "assert c(2) == 4 and c(2.5) == 5.0 and c(1j) == 2j"),
    "big numbers": ("return x + 1", "assert c(10 ** 5000) == 10 ** 5000 + 1"),
    "truth": ("return x > 1", "assert c(2) is True and c(1) is False"),
    "nothing": ("return None", "assert c(1) is None"),
    "floats": ("return [x, -x, x - x]", "assert str(c(float('inf'))) == '[inf, -inf, nan]'"),
    "texts": ("return x[::-1]", "assert c('a\\ud800\\0ä') == 'ä\\0\\ud800a'"),
    "bytes": ("return x[::-1]", "assert c(b'\\xff0') == b'0\\xff'"),
    "containers": (
        "return (x, [x], {x}, frozenset([x]), {x: (x,)})",
        "assert c(3) == (3, [3], {3}, frozenset([3]), {3: (3,)}) and c('a')[4] == {'a': ('a',)}",
    ),
    "kinds of sequence": ("return (x,)", "assert c(1) == (1,) and c(1) != [1]"),
    "subclasses": (
        "import collections\n    return collections.OrderedDict(a=collections.Counter('aab'))",
        "assert c(1) == {'a': {'a': 2, 'b': 1}} and type(c(1)) is dict",
    ),
    "iterators": ("return map(str, x)", "assert tuple(c([1, 2])) == ('1', '2') and c([]) != []"),
    "copies": ("x.append(1)\n    return x", "v = [0]\n    assert c(v) == [0, 1] and v == [0]"),
    "several arguments": ("return sum(more, x)", "assert c(1) == 1 and c(1, 2, 3) == 6"),
    "errors": (
        "return 1 / x",
        "assert c(1) == 1\n    try: c(0)\n    except Exception: return\n    raise AssertionError",
    ),
    "output": ("print('x' * x)\n    return x", "assert c(10) == 10"),
    "a file of its own": (
        "open('t', 'w').write(x)\n    return open('/tmp/t').read()", "assert c('a') == 'a'",
    ),
    "modules": (
        "import re, math, itertools, heapq, typing, hashlib, dataclasses, decimal\n    return x",
        "assert c(1) == 1",
    ),
    "a state": ("f.n = getattr(f, 'n', 0) + 1\n    return f.n", "assert [c(1), c(1)] == [1, 2]"),
    "helpers and the name itself": ("return x + 1", "assert helper(f(1)) == 3 == helper(c(1))"),
}  # fmt: skip


@guarded
@pytest.mark.parametrize("name", RIGHT)
def test_a_right_program_passes(name: str) -> None:
    body, tests = RIGHT[name]
    helpers = "def helper(x):\n    return x + 1\n\ndef f(x):\n    '''To be written.'''\n"
    program, tests = f"def f(x, *more):\n    {body}\n", f"def check(c):\n    {tests}\n"
    assert sandbox.run(program, "f", tests, helpers, LIMITS) == sandbox.Verdict(True)


@guarded
@pytest.mark.parametrize(
    ("program", "tests", "reason"),
    [
        ("def f(x): return x", hostile.TESTS, "AssertionError"),
        ("def f(x): return 1 / 0", hostile.TESTS, "ZeroDivisionError: division by zero"),
        ("def f(x): return object()", hostile.TESTS, "a value of type object cannot be sent"),
        ("def f(x:", hostile.TESTS, "CallFailed: SyntaxError"),
        ("def g(x): return x", hostile.TESTS, "CallFailed: KeyError: 'f'"),
        (DOUBLE, "def check(c): raise SystemExit(0)", "SystemExit"),
        (DOUBLE, "import os\ndef check(c): os._exit(0)", "ended without a word"),
        (DOUBLE, "def check(c): print('x'); assert c(1) == 3", "AssertionError"),
        (DOUBLE, "check = None", "TypeError"),
        ("import os\nos._exit(0)", hostile.TESTS, "the program ended before its answer"),
    ],
)  # fmt: skip
def test_a_verdict_says_why(program: str, tests: str, reason: str) -> None:
    verdict = sandbox.run(program, "f", tests, limits=LIMITS)
    assert not verdict.passed
    assert reason in verdict.reason


@guarded
def test_two_runs_agree() -> None:
    """Sets of texts have one order, chance in tests one seed."""
    program = "def f(x):\n    raise ValueError(list({'a', 'b', 'c', 'd'}))\n"
    tests = "import random\ndef check(c):\n    try: c(1)\n    except Exception as e:"
    tests += "\n        raise AssertionError(str(e) + str(random.random()))\n"
    verdicts = [sandbox.run(program, "f", tests, limits=LIMITS) for _ in range(2)]
    assert verdicts[0] == verdicts[1]


@pytest.mark.usefixtures("asked_anew")
def test_without_bubblewrap_nothing_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    started: list[object] = []
    monkeypatch.setattr(subprocess, "Popen", lambda *words, **options: started.append(words))
    with pytest.raises(ValueError, match=r"in a sandbox only, and bubblewrap is not installed"):
        sandbox.run(DOUBLE, "f", hostile.TESTS)
    assert started == []


@pytest.mark.usefixtures("asked_anew")
@pytest.mark.parametrize(
    ("script", "sentence"),
    [
        (
            "#!/bin/sh\necho 'bwrap: setting up uid map: Permission denied' >&2\nexit 1\n",
            "bubblewrap cannot make a sandbox here: bwrap: setting up uid map: Permission denied",
        ),
        ("#!/bin/sh\nexit 0\n", "a sandbox was made that does not work: the judge ended"),
    ],
)
def test_a_bubblewrap_that_may_not_is_one_sentence(
    script: str, sentence: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "bwrap").write_text(script)
    (tmp_path / "bwrap").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert str(sandbox.reason_not_to_run()).startswith(sentence)


@pytest.mark.usefixtures("asked_anew")
def test_other_machines_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    reason = str(sandbox.reason_not_to_run())
    assert "Linux on x86_64 and aarch64, not linux on riscv64" in reason


@pytest.mark.parametrize(
    "told", [[], [[]], ["eval", "1"], ["list"], ["set", [["list", []]]], {"a": 1}]
)
def test_what_is_no_value_is_refused(told: object) -> None:
    with pytest.raises((ValueError, TypeError, LookupError)):
        inside.decode(told)


@pytest.mark.parametrize("machine", syscalls.ARCHITECTURES)
def test_the_filter_refuses_what_it_lists_and_nothing_else(machine: str) -> None:
    column = list(syscalls.ARCHITECTURES).index(machine)
    architecture = syscalls.ARCHITECTURES[machine]
    refused = {pair[column] for pair in syscalls.REFUSED.values()} - {None}
    for number in range(500):
        found = filtered(machine, number, architecture, 7)
        assert found == (syscalls.REFUSE if number in refused else syscalls.ALLOW)
    prctl = syscalls.PRCTL[column]
    assert filtered(machine, prctl, architecture, 1) == syscalls.REFUSE
    assert filtered(machine, syscalls.X32 + 1, architecture, 7) == syscalls.REFUSE
    assert filtered(machine, 1, 0x40000003, 7) == syscalls.KILL


def filtered(machine: str, number: int, architecture: int, argument: int) -> int:
    """What the filter says of a call: an interpreter of the four instructions that it has."""
    steps = [
        (int.from_bytes(s[:2], "little"), s[2], s[3], int.from_bytes(s[4:], "little"))
        for s in re.findall(rb"(?s).{8}", syscalls.program(machine))
    ]
    loads = {
        syscalls.NUMBER: number, syscalls.ARCHITECTURE: architecture, syscalls.ARGUMENT: argument,
    }  # fmt: skip
    at, held = 0, 0
    while True:
        code, true, false, value = steps[at]
        if code == syscalls.RETURN:
            return value
        if code == syscalls.LOAD:
            held, at = loads[value], at + 1
        else:
            holds = held == value if code == syscalls.EQUAL else held >= value
            at += 1 + (true if holds else false)
